#include "train/weights/tied_weights.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "ir/weight_alias.h"
#include "train/tools/engine.h"
#include "train/tools/patterns.h"
#include "train/weights/constant_evidence.h"
#include "train/weights/weights.h"

namespace onnxgrad::train {
namespace {

using ir::Value;

std::size_t item_size(const Tensor& tensor) {
  return static_cast<std::size_t>(Dims{1}.size_bytes(tensor.dtype()));
}

std::string element(const Tensor& tensor, std::int64_t i) {
  const std::size_t size = item_size(tensor);
  return {reinterpret_cast<const char*>(tensor.raw()) + static_cast<std::size_t>(i) * size, size};
}

// A key that a matrix and its transposition have in common, from a few elements of either.
using MatrixKey = std::tuple<DataType, std::int64_t, std::int64_t, std::string, std::string>;

MatrixKey key_of(const Tensor& matrix) {
  const Dims& dims = matrix.dims();
  return {matrix.dtype(), std::min(dims[0], dims[1]), std::max(dims[0], dims[1]),
          element(matrix, 0), element(matrix, matrix.num_elements() - 1)};
}

bool is_transposition(const Tensor& a, const Tensor& b) {
  return a.dims()[0] == b.dims()[1] && a.dims()[1] == b.dims()[0] && transposed_matrix(a).equals(b);
}

/// A matrix and what is known of its parameter.
struct Matrix {
  Value* value = nullptr;
  std::optional<ir::WeightAlias> alias = {};
  bool is_trained = false;
  const Tensor& numbers() const { return value->initializer; }
};

bool is_one_parameter(const Matrix& a, const Matrix& b) {
  return a.alias && b.alias && a.alias->parameter == b.alias->parameter;
}

// The metadata of one names another parameter than the other is.
bool are_different_parameters(const Matrix& a, const Matrix& b) {
  const auto contradicts = [](const Matrix& one, const Matrix& other) {
    if (!one.alias || !one.alias->is_certain) return false;
    if (!other.alias) return !has_constant_name(other.value->name);
    return other.alias->is_certain && !is_one_parameter(one, other);
  };
  return contradicts(a, b) || contradicts(b, a);
}

}  // namespace

Tensor transposed_matrix(const Tensor& matrix) {
  const std::int64_t rows = matrix.dims()[0];
  const std::int64_t columns = matrix.dims()[1];
  const std::size_t size = item_size(matrix);
  Tensor result = Tensor::empty(matrix.dtype(), Dims{columns, rows});
  constexpr std::int64_t kBlock = 32;  // columns whose lines stay in a cache
  for (std::int64_t first = 0; first < columns; first += kBlock) {
    const std::int64_t end = std::min(first + kBlock, columns);
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t j = first; j < end; ++j) {
        std::memcpy(result.mutable_raw() + (static_cast<std::size_t>((j * rows) + i) * size),
                    matrix.raw() + (static_cast<std::size_t>((i * columns) + j) * size), size);
      }
    }
  }
  return result;
}

std::vector<TiedWeight> find_tied_weights(const ir::Model& working) {
  std::map<MatrixKey, std::vector<Matrix>> groups;
  for (const Weight& weight : find_weights(working, builtin_ops())) {
    const Tensor& numbers = weight.value->initializer;
    const bool is_whole = weight.value->origin == nullptr || weight.value->origin->index.empty();
    const bool is_parameter = weight.trainable || weight.is_under_adapter;
    const bool is_matrix =
        is_parameter && is_whole && numbers.dims().rank() == 2 && numbers.num_elements() > 1;
    if (!is_matrix) continue;
    groups[key_of(numbers)].push_back(
        {weight.value, ir::find_alias(*weight.value), weight.trainable});
  }
  std::vector<TiedWeight> tied;
  for (auto& [key, matrices] : groups) {
    if (matrices.size() < 2) continue;
    // Matrices with a name in the program come first.
    std::ranges::stable_partition(matrices,
                                  [](const Matrix& matrix) { return !matrix.alias.has_value(); });
    std::vector<Matrix> mains;
    for (const Matrix& matrix : matrices) {
      if (!has_own_values(matrix.numbers())) continue;
      bool is_transposed = false;
      const auto main = std::ranges::find_if(mains, [&](const Matrix& other) {
        if (!other.is_trained && !matrix.is_trained) return false;
        is_transposed = !other.numbers().equals(matrix.numbers());
        if (!is_transposed) return is_one_parameter(other, matrix);
        return !are_different_parameters(other, matrix) &&
               is_transposition(other.numbers(), matrix.numbers());
      });
      if (main == mains.end()) {
        mains.push_back(matrix);
      } else {
        tied.push_back({.main = main->value, .copy = matrix.value, .is_transposed = is_transposed});
      }
    }
  }
  // In the order of the file.
  std::unordered_map<const Value*, std::size_t> order;
  for (const Value* value : working.graph->initializers) order.emplace(value, order.size());
  std::ranges::sort(tied, {}, [&](const TiedWeight& one) { return order.at(one.copy); });
  return tied;
}

Tensor tied_form(const TiedWeight& tied, const Tensor& numbers) {
  return tied.is_transposed ? transposed_matrix(numbers) : numbers;
}

std::shared_ptr<const ir::Model> tie_weights(std::shared_ptr<const ir::Model> working) {
  const std::vector<TiedWeight> found = find_tied_weights(*working);
  if (found.empty()) return working;
  std::unordered_map<const Value*, Value*> map;
  auto copy = std::make_shared<ir::Model>(ir::clone(*working, &map));
  ir::Graph& graph = *copy->graph;
  for (const TiedWeight& tied : found) {
    Value* const main = map.at(tied.main);
    Value* const value = map.at(tied.copy);
    ir::WeightAlias alias = ir::find_alias(*main).value_or(ir::WeightAlias{});
    const WeightNames names = names_for_patterns(*value);
    alias.names.push_back(names.name);
    alias.names.insert(alias.names.end(), names.aliases.begin(), names.aliases.end());
    ir::set_alias(*main, alias);
    ir::remove_alias(*value);
    value->origin = nullptr;
    value->initializer = {};
    value->is_input = false;
    std::erase(graph.initializers, value);
    std::erase(graph.inputs, value);
    graph.nodes.insert(graph.nodes.begin(),
                       graph.make_node(tied.is_transposed ? "Transpose" : "Identity", {main},
                                       {value}, value->name));
  }
  return copy;
}

std::string tied_text(std::span<const TiedWeight> tied) {
  std::string text;
  for (const TiedWeight& one : tied) {
    text += (text.empty() ? "'" : ", '") + one.copy->name + "' is '" + one.main->name + "'" +
            (one.is_transposed ? " transposed" : " again");
  }
  return text;
}

}  // namespace onnxgrad::train
