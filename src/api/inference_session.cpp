#include "onnxgrad/inference_session.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <iterator>
#include <list>
#include <memory>
#include <optional>
#include <type_traits>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "api/call_guard.h"
#include "api/measures.h"
#include "api/model_impl.h"
#include "base/check.h"
#include "base/memory_budget.h"
#include "base/packed.h"
#include "ir/uses.h"
#include "onnx/file_bytes.h"
#include "opdef/packed_constants.h"
#include "passes/passes.h"
#include "runtime/input_sizes.h"
#include "runtime/packed_graph.h"
#include "train/graphs/outputs.h"
#include "train/tools/engine.h"
#include "train/tools/feeds.h"
#include "train/tools/text_codes.h"

namespace onnxgrad {
namespace {

// Packed weights take at most 1 / kPackedPart of the memory that a session may use.
constexpr std::int64_t kPackedPart = 4;

// Plans for so many choices of outputs and inputs are kept.
constexpr std::size_t kMaxRunners = 8;

const Tensor& on_host(const Tensor& tensor) { return tensor; }
Tensor on_host(const DeviceTensor& tensor) { return tensor.to_host(); }

}  // namespace

Tensor pack_values(std::span<const Tensor> elements) { return base::pack(elements); }
Tensor pack_nothing() { return base::pack_nothing(); }
std::optional<std::vector<Tensor>> unpack_values(const Tensor& packed) {
  return base::unpack(packed);
}

struct InferenceSession::Impl {
  // The outputs and inputs of a run: positions of outputs, names of inputs.
  struct Call {
    std::vector<std::size_t> outputs = {};
    std::vector<std::string> overridden = {};  // inputs with a default that are fed
    std::vector<std::string> omitted = {};     // inputs that none of the outputs depends on
    bool operator==(const Call&) const = default;
  };
  struct Runner {
    Call call;
    runtime::Executor executor;
  };

  Impl(const Model& model, const EngineOptions& options);
  template <class Named>
  Call call_for(std::vector<std::size_t> wanted, const Named& feeds) const;
  template <class Named, class Compute, class Finish>
  auto run(const std::vector<std::size_t>& wanted, Named feeds, const Compute& compute,
           const Finish& finish);
  runtime::Executor& runner_for(Call call);
  std::shared_ptr<ir::Model> graph_for(const Call& call) const;

  std::vector<ValueInfo> inputs;
  std::vector<ValueInfo> overridable;
  std::vector<ValueInfo> outputs;
  std::vector<train::RunnableOutput> runnable;  ///< one per output, values of `model`
  std::shared_ptr<const ir::Model> model;
  std::shared_ptr<const train::TextCodes> texts;  ///< nullptr: the model reads none
  std::weak_ptr<const onnx_io::FileBytes> file;   ///< expired when no weight is read in it
  train::Backend backend;
  std::list<Runner> runners;  ///< most recently used first
  bool is_profiling = false;
  runtime::SizeWatch sizes;
  std::optional<std::vector<Dims>> last_dims;
  api::Gate busy;
};

InferenceSession::Impl::Impl(const Model& source, const EngineOptions& engine_options)
    : backend(train::backend_for(engine_options)), sizes(engine_options.warn) {
  const std::shared_ptr<const ir::Model> given = source.impl().working();
  const train::NumberedModel numbered = train::number_texts(given);
  texts = numbered.texts;
  model = numbered.model;
  for (const ir::Value* input : given->graph->inputs) {
    auto& list = input->is_initializer() ? overridable : inputs;
    list.push_back(train::value_info(input->name, input->type));
  }
  train::describe_map_inputs(source.impl().file.model.get(), inputs);
  runnable = train::runnable_outputs(*model->graph);
  for (std::size_t i = 0; i < runnable.size(); ++i) {
    train::RunnableOutput& output = runnable[i];
    outputs.push_back(train::describe_output(output, *given->graph->outputs[i], texts.get()));
    ir::Value* const declared = model->graph->outputs[i];
    if (output.value == nullptr && runtime::is_packed(declared->type)) output.value = declared;
  }
  if (const auto& bytes = source.impl().file.bytes; bytes != nullptr) {
    file = bytes;
    backend.options.counted_elsewhere = bytes->memory();
  }
  const auto& budget =
      backend.options.budget != nullptr ? backend.options.budget : base::current_budget();
  backend.options.packed =
      std::make_shared<opdef::PackedConstants>(budget->limit_bytes() / kPackedPart);
  const auto is_left_out = [](const train::RunnableOutput& output) {
    return output.value == nullptr;
  };
  try {
    if (std::ranges::none_of(runnable, is_left_out)) {
      runner_for({.outputs = train::choose_outputs(runnable, {})});
      return;
    }
  } catch (const UnsupportedOperatorError&) {
    train::leave_out_unsupported(*model, runnable);
    if (std::ranges::all_of(runnable, is_left_out)) throw;
    return;
  }
  train::leave_out_unsupported(*model, runnable);
  if (std::ranges::all_of(runnable, is_left_out)) train::choose_outputs(runnable, {});  // throws
}

// An input without a value is left out if no wanted output needs it; else it is reported missing.
template <class Named>
InferenceSession::Impl::Call InferenceSession::Impl::call_for(std::vector<std::size_t> wanted,
                                                              const Named& feeds) const {
  Call call{.outputs = std::move(wanted)};
  std::unordered_set<const ir::Value*> needed;
  for (const ir::Value* input : model->graph->inputs) {
    const bool is_fed =
        std::ranges::any_of(feeds, [&](const auto& feed) { return feed.name == input->name; });
    if (is_fed && input->is_initializer()) call.overridden.push_back(input->name);
    if (is_fed || input->is_initializer()) continue;
    if (needed.empty()) {
      std::vector<const ir::Value*> values;
      for (const std::size_t i : call.outputs) values.push_back(runnable[i].value);
      needed = ir::ancestors_of(values);
    }
    if (!needed.contains(input)) call.omitted.push_back(input->name);
  }
  return call;
}

std::shared_ptr<ir::Model> InferenceSession::Impl::graph_for(const Call& call) const {
  std::unordered_map<const ir::Value*, ir::Value*> map;
  auto result = std::make_shared<ir::Model>(ir::clone(*model, &map));
  ir::Graph& graph = *result->graph;
  const auto is_listed = [](const std::vector<std::string>& names, const ir::Value* value) {
    return std::ranges::find(names, value->name) != names.end();
  };
  graph.outputs.clear();
  for (const std::size_t i : call.outputs) graph.outputs.push_back(map.at(runnable[i].value));
  for (ir::Value* input : graph.inputs) {
    if (is_listed(call.overridden, input)) input->initializer = {};
  }
  std::erase_if(graph.initializers, [](const ir::Value* v) { return !v->is_initializer(); });
  ir::close_defaults(graph);  // defaults that are not overridden become constants
  std::erase_if(graph.inputs,
                [&](const ir::Value* input) { return is_listed(call.omitted, input); });
  passes::fold_batch_norms(graph);
  ir::eliminate_dead_nodes(graph);
  return result;
}

runtime::Executor& InferenceSession::Impl::runner_for(Call call) {
  const auto known = std::ranges::find(runners, call, &Runner::call);
  if (known != runners.end()) {
    runners.splice(runners.begin(), runners, known);
    return runners.front().executor;
  }
  train::Backend own = backend;
  for (std::size_t i = 0; i < call.outputs.size(); ++i) own.options.output_blocks.push_back(i);
  runtime::Executor executor = own.executor(graph_for(call));
  if (runners.size() == kMaxRunners) runners.pop_back();
  runners.push_front({.call = std::move(call), .executor = std::move(executor)});
  runners.front().executor.set_profiling(is_profiling);
  return runners.front().executor;
}

InferenceSession::InferenceSession(const Model& model, const EngineOptions& options)
    : impl_(std::make_unique<Impl>(model, options)) {}
InferenceSession::~InferenceSession() = default;
InferenceSession::InferenceSession(InferenceSession&&) noexcept = default;
InferenceSession& InferenceSession::operator=(InferenceSession&&) noexcept = default;

const std::vector<ValueInfo>& InferenceSession::inputs() const { return impl_->inputs; }

const std::vector<ValueInfo>& InferenceSession::overridable_inputs() const {
  return impl_->overridable;
}

const std::vector<ValueInfo>& InferenceSession::outputs() const { return impl_->outputs; }

namespace {

// The outputs of a call, each once, in the order of the model.
std::vector<std::size_t> each_once(const std::vector<std::size_t>& wanted, std::size_t count) {
  std::vector<std::size_t> ones;
  for (std::size_t i = 0; i < count; ++i) {
    if (std::ranges::find(wanted, i) != wanted.end()) ones.push_back(i);
  }
  return ones;
}

}  // namespace

// Computes the outputs `wanted`: `compute` takes an executor and its feeds, `finish` one result,
// its form, and whether it was returned before.
template <class Named, class Compute, class Finish>
auto InferenceSession::Impl::run(const std::vector<std::size_t>& wanted, Named feeds,
                                 const Compute& compute, const Finish& finish) {
  const std::vector<std::size_t> computed_ones = each_once(wanted, runnable.size());
  runtime::Executor& executor = runner_for(call_for(computed_ones, feeds));
  // Texts that the model does not know have numbers in this call, so that outputs may return them.
  train::TextCodes known_texts;
  if (texts != nullptr) {
    known_texts = *texts;
    for (auto& feed : feeds) {
      if (feed.tensor.dtype() != DataType::kString) continue;
      using Feed = std::remove_cvref_t<decltype(feed.tensor)>;
      feed.tensor = Feed(known_texts.encode_growing(on_host(feed.tensor)));
    }
  }
  const auto ordered = train::order_feeds(feeds, executor.inputs());
  std::vector<Dims> dims;
  std::vector<std::remove_cvref_t<decltype(*ordered.front())>> inputs;
  for (const auto* tensor : ordered) {
    dims.push_back(tensor->dims());
    inputs.push_back(*tensor);
  }
  const auto computed = compute(executor, inputs);
  sizes.look_at(executor.inputs(), dims);
  last_dims = std::move(dims);
  std::remove_cvref_t<decltype(computed)> results;
  for (auto index = wanted.begin(); index != wanted.end(); ++index) {
    train::RunnableOutput output = runnable[*index];
    if (output.is_text) output.labels = known_texts.table();
    const auto place = std::ranges::find(computed_ones, *index) - computed_ones.begin();
    const bool is_repeated = std::find(wanted.begin(), index, *index) != index;
    results.push_back(finish(output, computed[static_cast<std::size_t>(place)], is_repeated));
  }
  return results;
}

std::vector<Tensor> InferenceSession::run(std::span<const std::string> output_names,
                                          const NamedTensors& feeds) {
  const api::CallGuard guard(impl_->busy);
  return impl_->run(
      train::choose_outputs(impl_->runnable, output_names), feeds,
      [](runtime::Executor& executor, const std::vector<Tensor>& inputs) {
        return executor.run_owning(inputs);
      },
      [](const train::RunnableOutput& output, const Tensor& computed, bool is_repeated) {
        return output.finish(is_repeated ? computed.clone() : computed);
      });
}

std::vector<DeviceTensor> InferenceSession::run_on_device(std::span<const std::string> output_names,
                                                          const NamedDeviceTensors& feeds) {
  const api::CallGuard guard(impl_->busy);
  return impl_->run(
      train::choose_outputs(impl_->runnable, output_names), feeds,
      [](runtime::Executor& executor, const std::vector<DeviceTensor>& inputs) {
        return executor.run_on_device(inputs);
      },
      [](const train::RunnableOutput& output, const DeviceTensor& computed, bool /*repeated*/) {
        return output.labels.is_defined() ? DeviceTensor(output.finish(computed.to_host()))
                                          : computed;
      });
}

void InferenceSession::set_profiling(bool on) {
  const api::CallGuard guard(impl_->busy);
  impl_->is_profiling = on;
  for (Impl::Runner& runner : impl_->runners) runner.executor.set_profiling(on);
}

Profile InferenceSession::profile() const {
  const api::CallGuard guard(impl_->busy);
  Profile result;
  for (const Impl::Runner& runner : impl_->runners) {
    Profile own = api::profile_of(runner.executor);
    if (result.trace_json.empty()) result.trace_json = std::move(own.trace_json);
    std::ranges::move(own.kernels, std::back_inserter(result.kernels));
  }
  std::ranges::stable_sort(result.kernels, std::greater<>(), &KernelTime::total_s);
  return result;
}

MemoryReport InferenceSession::memory() const {
  const api::CallGuard guard(impl_->busy);
  const auto file = impl_->file.lock();
  const std::int64_t packed = impl_->backend.options.packed->size_bytes();
  MemoryReport report{.file = file == nullptr ? 0 : std::ssize(file->memory())};
  const bool is_host = impl_->backend.engine->device.is_host();
  std::int64_t& packed_there = is_host ? report.constants : report.host;
  packed_there = packed;
  for (const Impl::Runner& runner : impl_->runners) {
    train::add_memory(report, runner.executor);
    packed_there -= packed;  // they share it
  }
  report.device = impl_->backend.engine->device.name();
  return report;
}

std::string InferenceSession::plan_summary() const {
  const api::CallGuard guard(impl_->busy);
  if (!impl_->last_dims) return "";
  return impl_->runners.front().executor.prepare(*impl_->last_dims).to_text();
}

}  // namespace onnxgrad
