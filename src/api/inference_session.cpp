#include "onnxgrad/inference_session.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "api/call_guard.h"
#include "api/measures.h"
#include "api/model_impl.h"
#include "base/check.h"
#include "base/memory_budget.h"
#include "base/packed.h"
#include "onnx/file_bytes.h"
#include "opdef/packed_constants.h"
#include "passes/passes.h"
#include "runtime/packed_graph.h"
#include "train/engine.h"
#include "train/feeds.h"
#include "train/outputs.h"
#include "train/text_codes.h"

namespace onnxgrad {
namespace {

// Of the memory that a session may use, what packed weights take at most.
constexpr std::int64_t kPackedPart = 4;

// Inputs that may be omitted, with their defaults.
NamedTensors take_defaults(ir::Model& model) {
  NamedTensors defaults;
  ir::Graph& graph = *model.graph;
  constexpr std::int64_t kFirstWithDefaults = 4;  // IR version
  if (model.ir_version < kFirstWithDefaults) {
    ir::close_defaults(graph);
    return defaults;
  }
  for (ir::Value* input : graph.inputs) {
    if (!input->is_initializer()) continue;
    defaults.push_back({.name = input->name, .tensor = input->initializer});
    input->initializer = {};
  }
  std::erase_if(graph.initializers, [](const ir::Value* v) { return !v->is_initializer(); });
  return defaults;
}

}  // namespace

Tensor pack_values(std::span<const Tensor> elements) { return base::pack(elements); }
Tensor pack_nothing() { return base::pack_nothing(); }
std::optional<std::vector<Tensor>> unpack_values(const Tensor& packed) {
  return base::unpack(packed);
}

struct InferenceSession::Impl {
  Impl(const Model& model, const EngineOptions& options);

  std::vector<ValueInfo> inputs;
  std::vector<ValueInfo> outputs;
  std::vector<train::RunnableOutput> runnable;  ///< those that can be computed
  NamedTensors defaults;
  std::shared_ptr<const train::TextCodes> texts;  ///< nullptr: the model reads none
  std::weak_ptr<const onnx_io::FileBytes> file;   ///< expired when no weight is read in it
  std::optional<runtime::Executor> executor;
  std::optional<std::vector<Dims>> last_dims;
  api::Gate busy;
};

InferenceSession::Impl::Impl(const Model& model, const EngineOptions& options) {
  const std::shared_ptr<const ir::Model> given = model.impl().working();
  const train::NumberedModel numbered = train::number_texts(given);
  texts = numbered.texts;
  auto working = std::make_shared<ir::Model>(ir::clone(*numbered.model));
  ir::Graph& graph = *working->graph;
  for (const ir::Value* input : given->graph->inputs) {
    if (working->ir_version >= 4 || !input->is_initializer()) {
      inputs.push_back(train::value_info(input->name, input->type));
    }
  }
  train::describe_map_inputs(model.impl().file.model.get(), inputs);
  defaults = take_defaults(*working);
  const auto declared = graph.outputs;
  auto all = train::runnable_outputs(graph);
  graph.outputs.clear();
  for (std::size_t i = 0; i < all.size(); ++i) {
    const ir::Value& named = *given->graph->outputs[i];
    if (texts != nullptr && train::is_text_output(named, all[i])) {
      all[i].labels = texts->table();
      all[i].is_text = true;
    }
    const bool is_number = all[i].value != nullptr && !all[i].labels.is_defined();
    outputs.push_back(
        train::output_info(all[i], (is_number ? *all[i].value : named).type, named.type));
    if (all[i].value == nullptr && runtime::is_packed(declared[i]->type)) {
      all[i].value = declared[i];
    }
    if (all[i].value == nullptr) continue;
    graph.outputs.push_back(all[i].value);
    runnable.push_back(std::move(all[i]));
  }
  passes::fold_batch_norms(graph);
  ir::eliminate_dead_nodes(graph);
  runtime::ExecutorOptions own = train::executor_options(options);
  if (const auto& bytes = model.impl().file.bytes; bytes != nullptr) {
    file = bytes;
    own.counted_elsewhere = bytes->memory();
  }
  for (std::size_t i = 0; i < graph.outputs.size(); ++i) own.output_blocks.push_back(i);
  const auto& budget = own.budget != nullptr ? own.budget : base::current_budget();
  own.packed = std::make_shared<opdef::PackedConstants>(budget->limit_bytes() / kPackedPart);
  executor.emplace(std::move(working), train::builtin_engine(), std::move(own));
}

InferenceSession::InferenceSession(const Model& model, const EngineOptions& options)
    : impl_(std::make_unique<Impl>(model, options)) {}
InferenceSession::~InferenceSession() = default;
InferenceSession::InferenceSession(InferenceSession&&) noexcept = default;
InferenceSession& InferenceSession::operator=(InferenceSession&&) noexcept = default;

const std::vector<ValueInfo>& InferenceSession::inputs() const { return impl_->inputs; }

const std::vector<ValueInfo>& InferenceSession::outputs() const { return impl_->outputs; }

std::vector<Tensor> InferenceSession::run(std::span<const std::string> output_names,
                                          const NamedTensors& feeds) {
  const api::CallGuard guard(impl_->busy);
  NamedTensors complete = feeds;
  for (const NamedTensor& fallback : impl_->defaults) {
    if (std::ranges::find(feeds, fallback.name, &NamedTensor::name) == feeds.end()) {
      complete.push_back(fallback);
    }
  }
  // Texts that the model does not know have numbers in this call, so that outputs may return them.
  train::TextCodes known_texts;
  if (impl_->texts != nullptr) {
    known_texts = *impl_->texts;
    for (NamedTensor& feed : complete) {
      if (feed.tensor.dtype() != DataType::kString) continue;
      feed.tensor = known_texts.encode_growing(feed.tensor);
    }
  }
  const auto ordered = train::order_feeds(complete, impl_->executor->inputs());
  std::vector<Dims> dims;
  std::vector<Tensor> inputs;
  for (const Tensor* tensor : ordered) {
    dims.push_back(tensor->dims());
    inputs.push_back(*tensor);
  }
  const std::vector<Tensor> computed = impl_->executor->run_owning(inputs);
  impl_->last_dims = std::move(dims);

  std::vector<std::string> known;
  for (const train::RunnableOutput& output : impl_->runnable) known.push_back(output.name);
  std::vector<std::string> wanted(output_names.begin(), output_names.end());
  if (wanted.empty()) wanted = known;
  std::vector<Tensor> results;
  for (const std::string& name : wanted) {
    const auto place = std::ranges::find(known, name);
    if (place == known.end()) {
      throw DataError({.what = "there is no output '" + name + "' that can be computed",
                       .where = {.value = name},
                       .detail = "Outputs: " + base::quote_list(known) + ".",
                       .hint = base::nearest_or(name, known)});
    }
    const auto index = static_cast<std::size_t>(place - known.begin());
    train::RunnableOutput output = impl_->runnable[index];
    if (output.is_text) output.labels = known_texts.table();
    const bool is_repeated = &*std::ranges::find(wanted, name) != &name;
    results.push_back(output.finish(is_repeated ? computed[index].clone() : computed[index]));
  }
  return results;
}

void InferenceSession::set_profiling(bool on) {
  const api::CallGuard guard(impl_->busy);
  impl_->executor->set_profiling(on);
}

Profile InferenceSession::profile() const {
  const api::CallGuard guard(impl_->busy);
  return api::profile_of(*impl_->executor);
}

MemoryReport InferenceSession::memory() const {
  const api::CallGuard guard(impl_->busy);
  const runtime::MemoryUse use = impl_->executor->memory();
  const auto file = impl_->file.lock();
  return {.activations = use.arena - use.scratch + use.blocks,
          .scratch = use.scratch,
          .constants = use.constants,
          .dynamic = use.dynamic,
          .file = file == nullptr ? 0 : std::ssize(file->memory()),
          .recomputed_values = use.recomputed_values,
          .recomputed_bytes = use.recomputed_bytes,
          .recomputed_flops = use.recomputed_flops};
}

std::string InferenceSession::plan_summary() const {
  const api::CallGuard guard(impl_->busy);
  return impl_->last_dims ? impl_->executor->prepare(*impl_->last_dims).to_text() : "";
}

}  // namespace onnxgrad
