#include "onnxgrad/adapters.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/model_impl.h"
#include "base/check.h"
#include "ir/pattern.h"
#include "ir/uses.h"
#include "onnxgrad/weights.h"
#include "train/adapters/insert.h"
#include "train/adapters/merge.h"
#include "train/adapters/peft_files.h"
#include "train/tools/engine.h"
#include "train/tools/patterns.h"
#include "train/weights/tied_weights.h"

namespace onnxgrad {
namespace {

using train::kPeftPrefix;

[[noreturn]] void refuse_no_adapters() {
  throw ModelError({.what = "the model has no adapters",
                    .hint = "Add one: lora=8, adapters.add() in Python, add_adapter() in C++."});
}

const train::RecordedAdapter& find_adapter(const std::vector<train::RecordedAdapter>& record,
                                           std::string_view name) {
  std::vector<std::string> names;
  for (const train::RecordedAdapter& adapter : record) {
    if (adapter.options.name == name) return adapter;
    names.push_back(adapter.options.name);
  }
  if (record.empty()) refuse_no_adapters();
  if (name.empty() && record.size() == 1) return record.front();
  throw ModelError({.what = name.empty() ? "the model has several adapters"
                                         : fmt::format("the model has no adapter '{}'", name),
                    .where = {.value = std::string(name)},
                    .detail = "Adapters: " + base::quote_list(names) + ".",
                    .hint = base::nearest_or(name, names, "Give the name of one of them.")});
}

Tensor weight_of(const Model& model, const std::string& name) {
  return api::find_weight(*model.impl().working(), name)->initializer;
}

/// A tensor as PEFT has it.
struct PeftTensor {
  std::string part;                     ///< "lora_A.weight"
  std::string name;                     ///< of the model's weight
  bool is_transposed;                   ///< stored as its transposition here
  std::vector<std::int64_t> dims = {};  ///< further form of a vector, [out, 1]
};

std::vector<PeftTensor> peft_tensors(const train::RecordedLayer& layer, const Tensor& first) {
  if (!layer.factors.empty()) {
    const std::int64_t size = first.num_elements();
    std::vector<std::int64_t> dims{size, 1};
    if (first.dims().rank() > 1) {  // of a convolution
      dims.assign(first.dims().begin(), first.dims().end());
      dims.insert(dims.begin(), 1);
    } else if (layer.scales_inputs) {
      dims = {1, size};
    }
    return {{.part = "ia3_l", .name = layer.factors, .is_transposed = false, .dims = dims}};
  }
  const bool is_matrix = first.dims().rank() == 2;
  const bool is_embedding = layer.role == "embedding";
  std::vector<PeftTensor> tensors{
      {is_embedding ? "lora_embedding_A" : "lora_A.weight", layer.a, is_matrix},
      {is_embedding ? "lora_embedding_B" : "lora_B.weight", layer.b, is_matrix}};
  if (!layer.magnitude.empty()) {
    PeftTensor magnitude{"lora_magnitude_vector", layer.magnitude, false};
    if (!is_matrix) {  // [1, out, 1, 1]
      magnitude.dims.assign(first.dims().rank(), 1);
      magnitude.dims[1] = -1;
    }
    tensors.push_back(std::move(magnitude));
  }
  return tensors;
}

// The form of a vector, whose own size is written as -1.
Dims dims_for(const PeftTensor& form, const Tensor& tensor) {
  std::vector<std::int64_t> dims = form.dims;
  std::ranges::replace(dims, std::int64_t{-1}, tensor.num_elements());
  return Dims(dims);
}

// The name that the exporting program used, if it is known.
std::string program_name(const Model& model, const std::string& name) {
  const auto names = train::names_for_patterns(*api::find_weight(*model.impl().working(), name));
  return names.aliases.empty() ? names.name : names.aliases.front();
}

// Names without the wrappers that programs put around a module.
bool is_same_name(std::string_view given, std::string_view wanted) {
  if (given == wanted) return true;
  const auto ends_in = [](std::string_view longer, std::string_view shorter) {
    return longer.size() > shorter.size() && longer.ends_with(shorter) &&
           longer[longer.size() - shorter.size() - 1] == '.';
  };
  return ends_in(given, wanted) || ends_in(wanted, given);
}

std::string without_wrappers(std::string_view name) {
  if (name.starts_with(kPeftPrefix)) name.remove_prefix(kPeftPrefix.size());
  return train::without_base_layer(name);
}

std::vector<std::string> layer_names(const Model& model) {
  ir::Model graph = ir::clone(*model.impl().file_graph());
  std::vector<std::string> names;
  for (const train::AdaptableLayer& layer : train::find_layers(graph, *model.impl().working())) {
    names.push_back(layer.module);
  }
  return names;
}

// The module of the model that PEFT calls `module`; itself if there is none or several.
std::string nearest_module(const std::string& module, const std::vector<std::string>& names) {
  if (std::ranges::find(names, module) != names.end()) return module;
  const auto is_same = [&](const std::string& name) { return is_same_name(name, module); };
  if (std::ranges::count_if(names, is_same) != 1) return module;
  return *std::ranges::find_if(names, is_same);
}

/// Given tensors, each to be taken once.
class GivenTensors {
 public:
  explicit GivenTensors(const NamedTensors& tensors) {
    for (const NamedTensor& tensor : tensors) given_.push_back({&tensor, false});
  }

  // The tensor of that name, up to modules in front. Throws: ModelError (none, or several).
  const Tensor& take(const std::string& wanted) {
    Given* found = nullptr;
    for (Given& given : given_) {
      const std::string name = without_wrappers(given.tensor->name);
      if (name == wanted) {
        found = &given;
        break;
      }
      if (!is_same_name(name, wanted) || given.is_taken) continue;
      if (found != nullptr) {
        throw ModelError({.what = fmt::format("'{}' and '{}' could both be '{}'",
                                              found->tensor->name, given.tensor->name, wanted),
                          .where = {.value = wanted},
                          .hint = "Give the tensors the names of adapter_state()."});
      }
      found = &given;
    }
    if (found == nullptr) {
      std::vector<std::string> names;
      for (const Given& given : given_) names.push_back(given.tensor->name);
      throw ModelError({.what = fmt::format("there is no tensor '{}{}'", kPeftPrefix, wanted),
                        .where = {.value = wanted},
                        .detail = "Given: " + base::quote_list(names) + ".",
                        .hint = "The adapter must be of the same network, with the same targets."});
    }
    found->is_taken = true;
    return found->tensor->tensor;
  }

  void expect_all_taken() const {
    std::vector<std::string> left;
    for (const Given& given : given_) {
      if (!given.is_taken) left.push_back(given.tensor->name);
    }
    if (left.empty()) return;
    throw ModelError({.what = "the model's adapter has no place for " + base::quote_list(left),
                      .where = {.value = left.front()},
                      .hint = "The adapter must be of the same network, with the same targets."});
  }

 private:
  struct Given {
    const NamedTensor* tensor = nullptr;
    bool is_taken = false;
  };
  std::vector<Given> given_;
};

Tensor as_stored(const Tensor& given, const PeftTensor& form, const Tensor& old,
                 const std::string& name) {
  Tensor tensor =
      form.is_transposed && given.dims().rank() == 2 ? train::transposed_matrix(given) : given;
  if (tensor.num_elements() == old.num_elements() && !form.dims.empty()) {
    tensor = tensor.reshaped(old.dims());
  }
  if (!is_floating(tensor.dtype()) || tensor.dims() != old.dims()) {
    const Tensor wanted = form.is_transposed ? train::transposed_matrix(old) : old;
    throw ModelError(
        {.what = fmt::format("'{}' is {}{}, but {} was expected", name, dtype_name(given.dtype()),
                             given.dims().to_string(), wanted.dims().to_string()),
         .where = {.value = name},
         .hint = "The adapter must have the rank and the targets of the model's."});
  }
  return tensor.cast(old.dtype());
}

// A weight that something beside the adapted layers reads would change that too.
void expect_own_readers(const ir::Model& plain, const train::RecordedAdapter& adapter) {
  const ir::Uses uses(*plain.graph);
  for (const train::RecordedLayer& layer : adapter.layers) {
    const ir::Value* weight = plain.graph->find(layer.weight);
    if (weight == nullptr) continue;
    std::size_t readers = 0;
    std::vector<const ir::Value*> open{weight};
    while (!open.empty()) {
      const ir::Value* value = open.back();
      open.pop_back();
      for (const ir::Use& use : uses.of(value)) {
        if (use.node != nullptr && ir::is_op(*use.node, {"Shape", "Size"})) continue;
        if (use.node != nullptr &&
            ir::is_op(*use.node, {"Transpose", "Cast", "Identity", "DequantizeLinear"})) {
          open.push_back(use.node->output(0));
        } else {
          ++readers;
        }
      }
    }
    if (readers == layer.sites.size()) continue;
    throw ModelError({.what = fmt::format("the adapter of '{}' cannot be merged: {} other places "
                                          "read the weight '{}'",
                                          layer.module, readers - layer.sites.size(), layer.weight),
                      .where = {.value = layer.weight},
                      .hint = "Save the model with its adapters, or exclude this layer."});
  }
}

std::shared_ptr<const Model::Impl> with_adapter(const Model& given, const AdapterOptions& options,
                                                const train::LayerForms& forms) {
  // Weights that are named one by one are those that a session separates.
  const bool is_new = options.kind != AdapterKind::kBias && options.kind != AdapterKind::kNorm;
  const Model model = api::untied(given, !is_new || !options.full.empty());
  const Model::Impl& impl = model.impl();
  auto graph = std::make_shared<ir::Model>(ir::clone(*impl.current_file_or_graph().model));
  train::insert_adapter(*graph, *impl.working(), train::builtin_ops(), options, forms);
  auto made = api::edited(model, std::move(graph));
  // Merging writes the weights into this file.
  const bool is_first = !train::has_adapters(*impl.file.model);
  made->plain = is_first ? std::make_shared<const Model::Impl>(impl, NamedTensors{}) : impl.plain;
  return made;
}

// Ranks and scales of the layers of the model's adapter that the adapter of a folder is for.
train::LayerForms forms_in(const train::RecordedAdapter& adapter, const train::PeftAdapter& given) {
  std::vector<std::string> names;
  for (const train::RecordedLayer& layer : adapter.layers) names.push_back(layer.module);
  train::LayerForms forms;
  for (const auto& [module, form] : given.layers) {
    const auto layer = std::ranges::find(adapter.layers, nearest_module(module, names),
                                         &train::RecordedLayer::module);
    if (layer == adapter.layers.end()) continue;
    forms[module] = {.rank = train::rank_of(adapter, *layer),
                     .scale = train::scale_of(adapter, *layer),
                     .scales_inputs = layer->scales_inputs};
  }
  return forms;
}

// Drops weights that the model has as well and the adapter does not train: the rest of the modules
// that save_adapter() completes.
void drop_untrained(train::PeftAdapter& given, const Model& model,
                    const train::RecordedAdapter& adapter) {
  if (given.options.full.empty()) return;
  std::vector<std::string> own;
  for (const std::string& name : adapter.options.full) own.push_back(program_name(model, name));
  const NamedTensors all = state_dict(model);
  std::erase_if(given.tensors, [&](const NamedTensor& tensor) {
    const auto is_in = [&tensor](const std::vector<std::string>& names) {
      return std::ranges::find(names, tensor.name) != names.end();
    };
    if (!is_in(given.options.full) || is_in(own)) return false;
    const auto found = std::ranges::find(all, tensor.name, &NamedTensor::name);
    return found != all.end() && found->tensor.to_doubles() == tensor.tensor.to_doubles();
  });
}

// The names of a weight, that of the exporting program first.
std::vector<std::string> names_of(const ir::Value* weight) {
  const train::WeightNames known = train::names_for_patterns(*weight);
  std::vector<std::string> names = known.aliases;
  names.push_back(known.name);
  return names;
}

// If `name` is a table of embeddings that is a matrix of scores as well, written once or twice: a
// name of the other use, or "" if the file has none. Else nullopt.
std::optional<std::string> tied_name(const Model& model, const std::string& name) {
  const ir::Model& working = *model.impl().working();
  const auto has_name = [&name](const ir::Value* weight) {
    const std::vector<std::string> names = names_of(weight);
    return std::ranges::find(names, name) != names.end();
  };
  for (const train::TiedWeight& tied : train::find_tied_weights(working)) {
    if (has_name(tied.main)) return names_of(tied.copy).front();
    if (has_name(tied.copy)) return names_of(tied.main).front();
  }
  const auto weight = std::ranges::find_if(working.graph->initializers, has_name);
  if (weight == working.graph->initializers.end()) return std::nullopt;
  const ir::Uses uses(*working.graph);
  bool is_table = false;
  bool is_matrix = false;
  std::vector<const ir::Value*> open{*weight};
  for (std::size_t i = 0; i < open.size(); ++i) {
    for (const ir::Use& use : uses.of(open[i])) {
      if (use.node == nullptr) continue;
      if (ir::is_op(*use.node, {"Transpose", "Identity"})) open.push_back(use.node->output(0));
      is_table = is_table || ir::is_op(*use.node, {"Gather"});
      is_matrix = is_matrix || ir::is_op(*use.node, {"MatMul", "Gemm"});
    }
  }
  if (!is_table || !is_matrix) return std::nullopt;
  for (const std::string& other : names_of(*weight)) {
    if (other != name) return other;
  }
  return "";
}

// PEFT trains a copy of a tied matrix, and leaves the table as it is.
void refuse_untied_copies(const train::PeftAdapter& given, const Model& model) {
  if (given.keeps_ties || given.options.full.empty()) return;
  const NamedTensors all = state_dict(model);
  for (const NamedTensor& tensor : given.tensors) {
    const bool is_full =
        std::ranges::find(given.options.full, tensor.name) != given.options.full.end();
    const auto other = is_full ? tied_name(model, tensor.name) : std::nullopt;
    if (!other) continue;
    const auto own = std::ranges::find(all, tensor.name, &NamedTensor::name);
    if (own != all.end() && own->tensor.to_doubles() == tensor.tensor.to_doubles()) continue;
    throw ModelError(
        {.what = fmt::format("'{}' of the adapter is a copy that differs from the table '{}', but "
                             "the model has one weight for both",
                             tensor.name, other->empty() ? tensor.name : *other),
         .where = {.value = tensor.name},
         .hint = "Train with ensure_weight_tying=True in PEFT's configuration, or export the model "
                 "with tie_word_embeddings=False."});
  }
}

}  // namespace

Model add_adapter(const Model& model, const AdapterOptions& options) {
  return Model(with_adapter(model, options, {}));
}

std::vector<AdapterInfo> adapters(const Model& model) {
  std::vector<AdapterInfo> infos;
  for (train::RecordedAdapter& adapter : train::read_adapters(*model.impl().file.model)) {
    AdapterInfo info{.name = adapter.options.name,
                     .kind = adapter.options.kind,
                     .rank = adapter.options.rank,
                     .alpha = adapter.options.alpha,
                     .scale = adapter.scale,
                     .dropout = adapter.options.dropout,
                     .rank_stabilized = adapter.options.rank_stabilized,
                     .layers = {},
                     .full = adapter.options.full};
    for (train::RecordedLayer& layer : adapter.layers) {
      info.layers.push_back({.module = layer.module,
                             .weight = layer.weight,
                             .role = layer.role,
                             .tensors = train::tensor_names(layer),
                             .rank = train::rank_of(adapter, layer),
                             .scale = train::scale_of(adapter, layer)});
    }
    infos.push_back(std::move(info));
  }
  return infos;
}

Model merge_adapters(const Model& model) {
  const Model::Impl& impl = model.impl();
  const auto record = train::read_adapters(*impl.file.model);
  if (record.empty()) refuse_no_adapters();
  std::shared_ptr<const Model::Impl> plain = impl.plain;
  NamedTensors weights;
  if (plain == nullptr) {
    auto graph = std::make_shared<ir::Model>(ir::clone(*impl.current_file_or_graph().model));
    train::remove_adapters(*graph);
    plain = api::edited(model, std::move(graph));
  } else {
    weights = impl.changed_in(*plain);
  }
  for (const train::RecordedAdapter& adapter : record) {
    expect_own_readers(*plain->file.model, adapter);
  }
  const auto merged = train::merged_weights(
      record, [&model](const std::string& name) { return weight_of(model, name); });
  weights.insert(weights.end(), merged.begin(), merged.end());
  return Model(std::make_shared<const Model::Impl>(*plain, weights));
}

NamedTensors adapter_state(const Model& model, std::string_view name) {
  const auto record = train::read_adapters(*model.impl().file.model);
  const train::RecordedAdapter& adapter = find_adapter(record, name);
  NamedTensors state;
  for (const train::RecordedLayer& layer : adapter.layers) {
    const Tensor first = weight_of(model, train::tensor_names(layer).front());
    for (const PeftTensor& form : peft_tensors(layer, first)) {
      const Tensor stored = weight_of(model, form.name);
      Tensor tensor = form.is_transposed ? train::transposed_matrix(stored) : stored.clone();
      if (!form.dims.empty()) tensor = tensor.reshaped(dims_for(form, tensor));
      state.push_back({.name = fmt::format("{}{}.{}", kPeftPrefix, layer.module, form.part),
                       .tensor = std::move(tensor)});
    }
  }
  if (adapter.options.full.empty()) return state;
  const NamedTensors all = state_dict(model);
  for (const std::string& full : adapter.options.full) {
    const std::string wanted = program_name(model, full);
    const auto found = std::ranges::find(all, wanted, &NamedTensor::name);
    if (found == all.end()) continue;  // part of a cell
    state.push_back({.name = std::string(kPeftPrefix) + train::peft_weight_name(wanted, adapter),
                     .tensor = found->tensor});
  }
  return state;
}

namespace {

// Sets weights that were trained, or kept, beside an adapter, by their names in the program.
Model with_full_weights(const Model& model, const NamedTensors& full) {
  if (full.empty()) return model;
  try {
    return load_state_dict(model, full, /*strict=*/false).model;
  } catch (const ModelError& error) {
    Problem problem = error.problem();
    constexpr std::string_view kBegin = "load_state_dict: ";
    if (problem.what.starts_with(kBegin)) problem.what.erase(0, kBegin.size());
    problem.what = "weights beside the adapter do not fit the model: " + problem.what;
    problem.hint =
        "If they are a head for other classes, give the model one for as many first: "
        "replace_head(), or 'onnxgrad convert --new-head N --load-adapter FOLDER'.";
    throw ModelError(std::move(problem));
  }
}

}  // namespace

Model set_adapter_state(const Model& model, const NamedTensors& tensors, std::string_view name) {
  const auto record = train::read_adapters(*model.impl().file.model);
  const train::RecordedAdapter& adapter = find_adapter(record, name);
  GivenTensors given(tensors);
  NamedTensors weights;
  for (const train::RecordedLayer& layer : adapter.layers) {
    const Tensor first = weight_of(model, train::tensor_names(layer).front());
    for (const PeftTensor& form : peft_tensors(layer, first)) {
      const std::string wanted = layer.module + "." + form.part;
      weights.push_back(
          {.name = form.name,
           .tensor = as_stored(given.take(wanted), form, weight_of(model, form.name), wanted)});
    }
  }
  NamedTensors full;
  for (const std::string& weight : adapter.options.full) {
    const std::string wanted = program_name(model, weight);
    full.push_back({.name = wanted, .tensor = given.take(wanted)});
  }
  given.expect_all_taken();
  const Model changed = api::with_weights(model, weights);
  return with_full_weights(changed, full);
}

void save_adapter(const Model& model, const std::string& folder, std::string_view name) {
  const auto record = train::read_adapters(*model.impl().file.model);
  train::RecordedAdapter adapter = find_adapter(record, name);
  for (std::string& full : adapter.options.full) full = program_name(model, full);
  NamedTensors state = adapter_state(model, adapter.options.name);
  const std::vector<std::string> saved = train::saved_modules(adapter);
  if (!saved.empty()) {  // PEFT wants whole modules
    for (const NamedTensor& weight : state_dict(model)) {
      const std::string module = weight.name.substr(0, weight.name.rfind('.'));
      const std::string name = std::string(kPeftPrefix) + weight.name;
      if (std::ranges::find(saved, module) == saved.end() ||
          std::ranges::find(state, name, &NamedTensor::name) != state.end()) {
        continue;
      }
      state.push_back({.name = name, .tensor = weight.tensor});
    }
  }
  const bool keeps_ties = std::ranges::any_of(adapter.options.full, [&](const std::string& full) {
    return tied_name(model, full).has_value();
  });
  train::write_peft_files(folder, adapter, std::move(state), keeps_ties);
}

Model load_adapter(const Model& model, const std::string& folder, std::string_view name) {
  train::PeftAdapter given = train::read_peft_files(folder);
  given.options.name = name;
  refuse_untied_copies(given, model);
  for (const train::RecordedAdapter& adapter : train::read_adapters(*model.impl().file.model)) {
    if (adapter.options.name != name) continue;
    train::fit_tensors(given, forms_in(adapter, given));
    drop_untrained(given, model, adapter);
    return set_adapter_state(model, given.tensors, name);
  }
  // Names in the file may have further modules in front, or lack some.
  const auto names = layer_names(model);
  train::LayerForms forms;
  for (const auto& [module, form] : given.layers) forms[nearest_module(module, names)] = form;
  Model changed =
      set_adapter_state(Model(with_adapter(model, given.options, forms)), given.tensors, name);
  return with_full_weights(changed, given.frozen);
}

Model adapters_as_inputs(const Model& model) {
  auto graph = std::make_shared<ir::Model>(ir::clone(*model.impl().file_graph()));
  const auto record = train::read_adapters(*graph);
  if (record.empty()) refuse_no_adapters();
  for (const train::RecordedAdapter& adapter : record) {
    for (const train::RecordedLayer& layer : adapter.layers) {
      const std::int64_t own = layer.rank;
      const ir::Dim rank =
          ir::Dim::named(own == 0 ? adapter.options.name + "_rank"
                                  : fmt::format("{}_rank_{}", adapter.options.name, own));
      for (const std::string& name : train::tensor_names(layer)) {
        ir::Value* value = graph->graph->find(name);
        if (value == nullptr || !value->is_constant()) continue;
        value->is_input = true;
        const bool is_convolution = value->type.rank() > 2;
        if (value->type.shape && name == layer.a)
          value->type.shape->at(is_convolution ? 0 : 1) = rank;
        if (value->type.shape && name == layer.b)
          value->type.shape->at(is_convolution ? 1 : 0) = rank;
        graph->graph->inputs.push_back(value);
      }
    }
  }
  return Model(api::edited(model, std::move(graph)));
}

}  // namespace onnxgrad
