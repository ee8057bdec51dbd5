#include "onnxgrad/model.h"

#include <utility>

#include "api/model_impl.h"
#include "base/check.h"
#include "ir/builder.h"
#include "onnx/edited_file.h"
#include "onnx/gradient_nodes.h"
#include "onnx/training_info.h"
#include "train/graphs/outputs.h"
#include "train/heads/tie_columns.h"
#include "train/tools/engine.h"
#include "train/tools/patterns.h"
#include "train/weights/aliases.h"
#include "train/weights/untie.h"
#include "train/weights/weights.h"

namespace onnxgrad {
namespace {

onnx_io::LoadOptions io_options(const LoadOptions& options) {
  return {.external_root = options.external_root};
}

// The caller's limit for what loading allocates, if there is one; else the active one.
std::shared_ptr<base::MemoryBudget> budget_of(const LoadOptions& options) {
  if (options.memory_limit_bytes <= 0) return base::current_budget();
  return std::make_shared<base::MemoryBudget>(options.memory_limit_bytes);
}

}  // namespace

Model::Impl::Impl(onnx_io::FileModel file_model, LoadOptions load_options)
    : file(std::move(file_model)),
      options(std::move(load_options)),
      operators(onnx_io::current_operators()) {
  const ir::Graph& graph = *file.model->graph;
  // Before IR version 4 every initializer was listed as an input; none was meant to be fed.
  for (const ir::Value* input : graph.inputs) {
    if (!input->is_initializer()) inputs.push_back(train::value_info(input->name, input->type));
  }
  for (const ir::Value* output : graph.outputs) {
    outputs.push_back(train::value_info(output->name, output->type));
  }
}

Model::Impl::Impl(const Impl& base, const NamedTensors& new_weights)
    : file(base.file),
      options(base.options),
      operators(base.operators),
      inputs(base.inputs),
      outputs(base.outputs),
      separated(base.separated),
      plain(base.plain),
      changed_(base.changed_) {
  auto model = std::make_shared<ir::Model>(ir::clone(*base.working()));
  for (const NamedTensor& weight : new_weights) {
    std::erase_if(changed_, [&](const auto& old) { return old.first == weight.name; });
    changed_.emplace_back(weight.name, weight.tensor);
    api::find_weight(*model, weight.name)->initializer = weight.tensor;
  }
  std::call_once(working_made_, [&] {
    working_ = std::move(model);
    weights_ = base.weight_list();
  });
}

Model::Impl::Impl(const Impl& base, const NamedTensors& states,
                  std::shared_ptr<const ir::Model> step)
    : file(base.file),
      options(base.options),
      operators(base.operators),
      inputs(base.inputs),
      outputs(base.outputs),
      step_(std::move(step)) {
  auto model = std::make_shared<ir::Model>(ir::clone(*base.working()));
  for (const NamedTensor& state : states) {
    changed_.emplace_back(state.name, state.tensor);
    const ir::Value* place = step_->graph->find(state.name);
    if (place->origin != nullptr) continue;  // in an algorithm
    if (ir::Value* weight = model->graph->find(state.name)) weight->initializer = state.tensor;
  }
  std::call_once(working_made_, [&] {
    working_ = std::move(model);
    weights_ = base.weight_list();
  });
}

const std::shared_ptr<const ir::Model>& Model::Impl::working() const {
  std::call_once(working_made_, [&] {
    const base::MemoryBudgetScope scope(budget_of(options));
    const opdef::OpRegistry& ops = train::builtin_ops();
    auto model = std::make_shared<ir::Model>(train::to_working_copy(file, operators.get()));
    const std::vector<train::Weight> found = train::find_weights(*model, ops);
    train::give_aliases(*model, found, ops, separated);
    weights_ = train::weight_infos(found);
    working_ = std::move(model);
  });
  return working_;
}

const train::FloatForm& Model::Impl::float_form() const {
  std::call_once(float_form_made_, [&] {
    const base::MemoryBudgetScope scope(budget_of(options));
    float_form_ = train::with_float_weights(
        train::tie_weights(train::tie_opposite_columns(working())), float_weights);
  });
  return float_form_;
}

const std::vector<train::TiedWeight>& Model::Impl::tied() const {
  std::call_once(tied_found_, [&] { tied_ = train::find_tied_weights(*working()); });
  return tied_;
}

const std::shared_ptr<const Model::Impl>& Model::Impl::untied() const {
  std::call_once(untied_made_, [&] {
    if (!separated.empty()) return;                               // it is one
    if (onnx_io::has_gradient_nodes(*file.model->graph)) return;  // they name tensors of the file
    const base::MemoryBudgetScope scope(budget_of(options));
    const opdef::OpRegistry& ops = train::builtin_ops();
    if (!train::may_untie(file, *working(), ops)) return;
    const onnx_io::FileModel current = current_file();
    auto parts = train::untie(current, *working(), ops, {.table = operators.get()});
    if (!parts) return;
    const onnx_io::LoadOptions load{.external_root = current.external_root};
    auto apart = std::make_shared<Impl>(
        onnx_io::load_bytes(std::move(parts->bytes), load, file.path), options);
    apart->separated = std::move(parts->weights);
    apart->operators = operators;
    apart->plain = plain;
    apart->float_weights = float_weights;
    untied_ = std::move(apart);
  });
  return untied_;
}

onnx_io::FileModel Model::Impl::current_file() const {
  if (file.bytes != nullptr && changed_.empty()) return file;
  return onnx_io::load_bytes(bytes(), {.external_root = file.external_root}, file.path);
}

onnx_io::FileModel Model::Impl::current_file_or_graph() const {
  return is_graph_alone() ? file : current_file();
}

NamedTensors Model::Impl::changed_in(const Impl& other) const {
  NamedTensors found;
  for (const auto& [name, tensor] : changed_) {
    const ir::Value* value = other.working()->graph->find(name);
    if (value == nullptr || !value->is_initializer()) continue;
    found.push_back({.name = name, .tensor = tensor});
  }
  return found;
}

const std::vector<WeightInfo>& Model::Impl::weight_list() const {
  working();
  return weights_;
}

std::string Model::Impl::bytes() const {
  if (is_graph_alone()) return onnx_io::to_bytes(*file.model);
  if (changed_.empty() && !onnx_io::has_external_data(file)) {
    return std::string(*file.bytes->whole());
  }
  return onnx_io::with_weights(written_graph(), places(), changed_, note());
}

// States of the file's own training are no initial values anymore.
std::string Model::Impl::note() const {
  const bool is_new =
      step_ != nullptr && onnx_io::has_initial_values(file) && !onnx_io::is_initialized(file);
  return is_new ? onnx_io::initialized_note() : "";
}

std::shared_ptr<const ir::Model> Model::Impl::file_graph() const {
  if (changed_.empty()) return file.model;
  return onnx_io::load_bytes(bytes(), io_options(options), file.path).model;
}

onnx_io::FileModel Model::Impl::written_graph() const {
  if (file.bytes != nullptr) return file;
  return onnx_io::load_bytes(onnx_io::to_bytes(*file.model), {}, file.path);
}

void Model::Impl::save(const std::string& path) const {
  if (is_graph_alone()) return onnx_io::save_file(*file.model, path);
  onnx_io::save_with_weights(written_graph(), places(), changed_, path, note());
}

Model Model::load(const std::string& path, const LoadOptions& options) {
  const base::MemoryBudgetScope scope(budget_of(options));
  return Model(
      std::make_shared<const Impl>(onnx_io::load_file(path, io_options(options)), options));
}

Model Model::from_bytes(std::string bytes, const LoadOptions& options) {
  const base::MemoryBudgetScope scope(budget_of(options));
  return Model(std::make_shared<const Impl>(
      onnx_io::load_bytes(std::move(bytes), io_options(options)), options));
}

Model Model::from_text(std::string_view text) {
  return Model(std::make_shared<const Impl>(onnx_io::load_text(text), LoadOptions{}));
}

void Model::save(const std::string& path) const {
  try {
    impl_->save(path);
  } catch (const Error& error) {
    throw CheckpointError(error.problem());
  }
}

std::string Model::to_bytes() const { return impl_->bytes(); }

std::string Model::to_text() const { return ir::to_text(*impl_->file.model); }

const std::vector<ValueInfo>& Model::inputs() const { return impl_->inputs; }

const std::vector<ValueInfo>& Model::outputs() const { return impl_->outputs; }

const std::vector<WeightInfo>& Model::weights() const { return impl_->weight_list(); }

Tensor Model::weight(std::string_view name) const {
  return api::find_weight(*impl_->working(), name)->initializer;
}

const std::string& Model::path() const { return impl_->file.path; }

std::int64_t Model::opset(std::string_view domain) const {
  return impl_->file.model->opset(domain);
}

std::int64_t Model::ir_version() const { return impl_->file.model->ir_version; }

const std::string& Model::producer_name() const { return impl_->file.model->producer_name; }

const std::vector<std::pair<std::string, std::string>>& Model::metadata() const {
  return impl_->file.model->metadata;
}

namespace api {

std::shared_ptr<Model::Impl> edited(const Model& model, std::shared_ptr<const ir::Model> graph) {
  const Model::Impl& impl = model.impl();
  const onnx_io::FileModel file = impl.current_file_or_graph();
  onnx_io::FileModel changed;
  if (file.bytes == nullptr) {
    changed.model = std::move(graph);
  } else {
    changed = onnx_io::edited_file(file, std::move(graph));
  }
  auto made = std::make_shared<Model::Impl>(std::move(changed), impl.options);
  made->operators = impl.operators;
  return made;
}

Model untied(const Model& model, bool untie) {
  if (!untie || model.impl().untied() == nullptr) return model;
  return Model(model.impl().untied());
}

Model wrap(ir::Model model) {
  onnx_io::FileModel file;
  file.model = std::make_shared<const ir::Model>(std::move(model));
  return Model(std::make_shared<const Model::Impl>(std::move(file), LoadOptions{}));
}

ir::Value* find_weight(const ir::Model& working, std::string_view name) {
  if (ir::Value* value = train::find_by_any_name(*working.graph, name)) return value;
  std::vector<train::WeightNames> weights;
  for (const ir::Value* value : working.graph->initializers) {
    weights.push_back(train::names_for_patterns(*value));
  }
  const std::vector<std::string> names = train::all_names(weights);
  throw ModelError({.what = "the model has no weight '" + std::string(name) + "'",
                    .where = {.value = std::string(name)},
                    .detail = "Weights: " + base::quote_list(names) + ".",
                    .hint = base::nearest_or(name, names)});
}

}  // namespace api
}  // namespace onnxgrad
