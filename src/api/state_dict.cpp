// Weights in the form of the program that a file was exported from.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "api/model_impl.h"
#include "base/check.h"
#include "ir/weight_alias.h"
#include "onnxgrad/weights.h"
#include "train/tools/engine.h"
#include "train/tools/patterns.h"
#include "train/weights/weights.h"

namespace onnxgrad {
namespace {

using ir::Value;

// The gates of ONNX's operators in torch's order of gates: block i of ONNX is block order[i] there.
std::span<const std::size_t> gate_order(std::string_view cell) {
  static constexpr std::array<std::size_t, 4> kLstm{0, 3, 1, 2};  // i, o, f, c of i, f, g, o
  static constexpr std::array<std::size_t, 3> kGru{1, 0, 2};      // z, r, h of r, z, n
  static constexpr std::array<std::size_t, 1> kRnn{0};
  if (cell == "LSTM") return kLstm;
  if (cell == "GRU") return kGru;
  return kRnn;
}

/// One parameter of the program and its rows in a stored weight.
struct Parameter {
  std::string name;
  Dims dims;
  /// Index in the stored weight of each row's first element; elements of a row are `stride` apart
  /// there.
  std::vector<std::size_t> rows = {};
  std::size_t columns = 1;
  std::size_t stride = 1;
};

// A whole weight, or its transposition.
Parameter whole_parameter(const Value& weight) {
  const Dims& dims = weight.initializer.dims();
  const auto alias = ir::find_alias(weight);
  Parameter parameter{.name = alias ? alias->names.front() : weight.name, .dims = dims};
  if (!alias || !alias->is_transposed) {
    parameter.rows = {0};
    parameter.columns = static_cast<std::size_t>(dims.num_elements());
    return parameter;
  }
  parameter.dims = Dims{dims[1], dims[0]};
  parameter.columns = static_cast<std::size_t>(dims[0]);
  parameter.stride = static_cast<std::size_t>(dims[1]);
  for (std::size_t row = 0; row < parameter.stride; ++row) parameter.rows.push_back(row);
  return parameter;
}

// W [D, G H, I], R [D, G H, H] or B [D, 2 G H] of a cell: parameters [G H, I], [G H, H], [G H].
std::vector<Parameter> parameters_in_cell(const Value& weight, const ir::WeightAlias& alias) {
  const Dims& dims = weight.initializer.dims();
  const std::vector<std::string>& names = alias.names;
  const auto order = gate_order(alias.cell);
  const bool is_bias = dims.rank() == 2;
  const auto columns = is_bias ? std::size_t{1} : static_cast<std::size_t>(dims[2]);
  const auto elements = static_cast<std::size_t>(dims.num_elements());
  const std::size_t num_rows = elements / names.size() / columns;
  const std::size_t hidden = num_rows / order.size();
  std::vector<Parameter> parameters;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto rows = static_cast<std::int64_t>(num_rows);
    Parameter parameter{.name = names[i],
                        .dims = is_bias ? Dims{rows} : Dims{rows, dims[2]},
                        .rows = std::vector<std::size_t>(num_rows),
                        .columns = columns};
    for (std::size_t gate = 0; gate < order.size(); ++gate) {
      for (std::size_t row = 0; row < hidden; ++row) {
        parameter.rows[(order[gate] * hidden) + row] =
            ((i * num_rows) + (gate * hidden) + row) * columns;
      }
    }
    parameters.push_back(std::move(parameter));
  }
  return parameters;
}

std::vector<Parameter> parameters_of(const Value& weight) {
  const auto alias = ir::find_alias(weight);
  if (alias && !alias->cell.empty()) return parameters_in_cell(weight, *alias);
  return {whole_parameter(weight)};
}

// Calls copy(place in the stored weight, place in the parameter, size), in bytes.
template <class Copy>
void for_each_run(const Parameter& parameter, DataType dtype, const Copy& copy) {
  const auto item = static_cast<std::size_t>(Dims{1}.size_bytes(dtype));
  std::size_t place = 0;
  for (const std::size_t first : parameter.rows) {
    if (parameter.stride == 1) {
      copy(first * item, place * item, parameter.columns * item);
      place += parameter.columns;
      continue;
    }
    for (std::size_t i = 0; i < parameter.columns; ++i) {
      copy((first + (i * parameter.stride)) * item, place++ * item, item);
    }
  }
}

Tensor take(const Tensor& stored, const Parameter& parameter) {
  Tensor taken = Tensor::empty(stored.dtype(), parameter.dims);
  for_each_run(parameter, stored.dtype(), [&](std::size_t from, std::size_t to, std::size_t size) {
    std::memcpy(taken.mutable_raw() + to, stored.raw() + from, size);
  });
  return taken;
}

void put(const Tensor& given, const Parameter& parameter, Tensor& stored) {
  for_each_run(parameter, stored.dtype(), [&](std::size_t to, std::size_t from, std::size_t size) {
    std::memcpy(stored.mutable_raw() + to, given.raw() + from, size);
  });
}

std::string in_double_quotes(const std::vector<std::string>& names) {
  return fmt::format("\"{}\"", fmt::join(names, "\", \""));
}

// A parameter or a running statistic.
bool is_of_program(const train::Weight& weight) {
  return weight.trainable || weight.is_under_adapter || weight.is_statistic;
}

class Loader {
 public:
  Loader(const Model& model, const NamedTensors& state)
      : model_(api::untied(model, /*untie=*/true)) {
    for (const NamedTensor& entry : state) {
      if (!entry.name.ends_with("num_batches_tracked")) given_.emplace(entry.name, &entry.tensor);
    }
  }

  LoadedStateDict load(const NamedTensors& state, bool strict) {
    const ir::Model& working = *model_.impl().working();
    for (const train::Weight& weight : train::find_weights(working, train::builtin_ops())) {
      take_weight(weight);
    }
    find_missing(working);
    if (!mismatches_.empty()) {
      throw ModelError(
          {.what = "load_state_dict: " + fmt::format("{}", fmt::join(mismatches_, "; ")),
           .hint = "Give tensors of the model's shapes, or leave them out with "
                   "strict=False."});
    }
    LoadedStateDict result{.model = model_, .missing = std::move(missing_), .unexpected = {}};
    for (const NamedTensor& entry : state) {
      if (given_.contains(entry.name) && !used_.contains(entry.name)) {
        result.unexpected.push_back(entry.name);
      }
    }
    if (strict) refuse(result);
    if (!weights_.empty()) result.model = api::with_weights(model_, weights_);
    return result;
  }

 private:
  void take_weight(const train::Weight& weight) {
    const Value& value = *weight.value;
    if (!is_floating(value.initializer.dtype())) return;
    Tensor stored;
    std::vector<std::string> absent;
    for (const Parameter& parameter : parameters_of(value)) {
      auto found = given_.find(parameter.name);
      if (found == given_.end() && !is_of_program(weight)) continue;
      if (found == given_.end()) {
        absent.push_back(parameter.name);
        continue;
      }
      used_.insert(parameter.name);
      const Tensor& tensor = *found->second;
      if (tensor.dims() != parameter.dims) {
        mismatches_.push_back(fmt::format("size mismatch for {}: {} was given, the model has {}",
                                          parameter.name, tensor.dims().to_string(),
                                          parameter.dims.to_string()));
        continue;
      }
      if (!stored.is_defined()) stored = value.initializer.clone();
      put(tensor.cast(stored.dtype()), parameter, stored);
    }
    if (!absent.empty()) absent_.emplace(value.name, std::move(absent));
    if (stored.is_defined()) weights_.push_back({.name = value.name, .tensor = std::move(stored)});
  }

  // Copies of tensors that were given are set with them; what is still absent is missing.
  void find_missing(const ir::Model& working) {
    const auto is_given = [this](const Value* value) {
      return std::ranges::find(weights_, value->name, &NamedTensor::name) != weights_.end();
    };
    for (const train::TiedWeight& tied : model_.impl().tied()) {
      if (is_given(tied.main)) absent_.erase(tied.copy->name);
      if (is_given(tied.copy)) absent_.erase(tied.main->name);
    }
    for (const Value* value : working.graph->initializers) {
      const auto absent = absent_.find(value->name);
      if (absent == absent_.end()) continue;
      missing_.insert(missing_.end(), absent->second.begin(), absent->second.end());
    }
  }

  static void refuse(const LoadedStateDict& result) {
    std::string text;
    if (!result.missing.empty()) {
      text += " Missing key(s) in state_dict: " + in_double_quotes(result.missing) + ".";
    }
    if (!result.unexpected.empty()) {
      text += " Unexpected key(s) in state_dict: " + in_double_quotes(result.unexpected) + ".";
    }
    if (text.empty()) return;
    text.pop_back();
    throw ModelError({.what = "load_state_dict:" + text,
                      .hint = "With strict=False, the others are loaded. An exporter may have "
                              "folded a layer, such as a BatchNormalization, into another."});
  }

  Model model_;
  std::unordered_map<std::string, const Tensor*> given_;
  std::unordered_set<std::string> used_;
  NamedTensors weights_;
  std::unordered_map<std::string, std::vector<std::string>> absent_;  // by weight
  std::vector<std::string> missing_;
  std::vector<std::string> mismatches_;
};

}  // namespace

NamedTensors state_dict(const Model& model) {
  const Model apart = api::untied(model, /*untie=*/true);
  NamedTensors state;
  for (const train::Weight& weight :
       train::find_weights(*apart.impl().working(), train::builtin_ops())) {
    if (!is_of_program(weight)) continue;
    for (Parameter& parameter : parameters_of(*weight.value)) {
      Tensor tensor = take(weight.value->initializer, parameter);
      state.push_back({.name = std::move(parameter.name), .tensor = std::move(tensor)});
    }
  }
  return state;
}

LoadedStateDict load_state_dict(const Model& model, const NamedTensors& state, bool strict) {
  return Loader(model, state).load(state, strict);
}

}  // namespace onnxgrad
