#include "train/heads/tie_columns.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "ir/uses.h"
#include "train/heads/head_patterns.h"
#include "train/tools/engine.h"

namespace onnxgrad::train {
namespace {

using ir::Graph;
using ir::is_op;
using ir::Node;
using ir::Value;

// Layout of a constant [.., 2] or, transposed, [2, ..] as pairs.
struct Pairs {
  std::int64_t count = 0;
  bool transposed = false;

  std::size_t first(std::int64_t pair) const {
    return static_cast<std::size_t>(transposed ? pair : 2 * pair);
  }
  std::size_t second(std::int64_t pair) const {
    return static_cast<std::size_t>(transposed ? count + pair : (2 * pair) + 1);
  }
};

/// A layer that computes [-s, s].
struct TwoColumnLayer {
  Node* product = nullptr;  // MatMul or Gemm
  Node* last = nullptr;     // the Add of the bias, or `product`
  Value* weight = nullptr;
  Pairs weight_pairs = {};
  Value* bias = nullptr;  // or none

  Value* scores() const { return last->output(0); }
};

class Tier {
 public:
  explicit Tier(Graph& graph) : graph_(graph), uses_(graph) {}

  std::vector<TwoColumnLayer> find() const;
  void tie(const TwoColumnLayer& layer);

 private:
  bool is_opposite(const Value* constant, const Pairs& pairs) const;
  bool is_opposite_bias(const Value* constant) const;
  bool add_bias(TwoColumnLayer& layer) const;
  bool gives_classes(const TwoColumnLayer& layer) const;
  bool is_normalized(const Value* rows) const;

  Graph& graph_;
  ir::Uses uses_;
};

// True for a constant read only by this node whose pairs are all (-a, a).
bool Tier::is_opposite(const Value* constant, const Pairs& pairs) const {
  if (pairs.count == 0 || uses_.only_reader(constant) == nullptr) return false;
  if (constant->origin != nullptr && !constant->origin->index.empty()) return false;
  const std::vector<double> numbers = constant->initializer.to_doubles();
  for (std::int64_t i = 0; i < pairs.count; ++i) {
    if (numbers[pairs.first(i)] != -numbers[pairs.second(i)]) return false;
  }
  return true;
}

bool is_float_constant(const Value* value) {
  return value != nullptr && value->is_constant() && is_floating(value->initializer.dtype());
}

// [2] or [1, 2]
bool Tier::is_opposite_bias(const Value* constant) const {
  const Dims& dims = constant->initializer.dims();
  const bool is_row = dims.rank() == 1 || (dims.rank() == 2 && dims[0] == 1);
  return is_row && dims.num_elements() == 2 && is_opposite(constant, {.count = 1});
}

// Adds the bias to `layer`. False: something is added that is not opposite.
bool Tier::add_bias(TwoColumnLayer& layer) const {
  layer.last = layer.product;
  if (layer.product->op_type == "Gemm") {
    layer.bias = layer.product->input(2);
    return layer.bias == nullptr || (is_float_constant(layer.bias) && is_opposite_bias(layer.bias));
  }
  Node* sum = uses_.only_reader(layer.product->output(0));
  if (!is_op(sum, "Add")) return true;
  const std::size_t place = sum->input(0) == layer.product->output(0) ? 1 : 0;
  layer.last = sum;
  layer.bias = sum->input(place);
  return is_float_constant(layer.bias) && is_opposite_bias(layer.bias);
}

bool Tier::is_normalized(const Value* rows) const {
  return std::ranges::any_of(graph_.nodes, [&](const Node* node) {
    if (node->op_type == "Normalizer") {
      return node->input(0) == rows && complete_node(*node).string_attribute("norm") == "L1";
    }
    return is_op(node, "Div") && match_row_share(node->output(0)) == rows;
  });
}

bool Tier::gives_classes(const TwoColumnLayer& layer) const {
  const bool is_zero = std::ranges::all_of(layer.weight->initializer.to_doubles(),
                                           [](double number) { return number == 0; });
  return std::ranges::any_of(uses_.of(layer.scores()), [&](const ir::Use& use) {
    if (is_op(use.node, "Sigmoid")) return !is_zero || is_normalized(use.node->output(0));
    return !is_zero && (is_op(use.node, "Softmax") || is_op(use.node, "ArgMax"));
  });
}

std::vector<TwoColumnLayer> Tier::find() const {
  std::vector<TwoColumnLayer> layers;
  for (Node* node : graph_.nodes) {
    const bool is_gemm = is_op(node, "Gemm");
    if (!is_gemm && !is_op(node, "MatMul")) continue;
    TwoColumnLayer layer{.product = node, .weight = node->input(1)};
    if (!is_float_constant(layer.weight) || !has_two_columns(*node->output(0))) continue;
    const Dims& dims = layer.weight->initializer.dims();
    const bool transposed = is_gemm && complete_node(*node).int_attribute("transB") != 0;
    if (dims.rank() != 2 || dims[transposed ? 0 : 1] != 2) continue;
    layer.weight_pairs = {.count = dims[transposed ? 1 : 0], .transposed = transposed};
    if (is_opposite(layer.weight, layer.weight_pairs) && add_bias(layer) &&
        has_two_columns(*layer.scores()) && gives_classes(layer)) {
      layers.push_back(layer);
    }
  }
  return layers;
}

// Keeps the second of each pair; the origin maps back to both.
void keep_second(Value* constant, const Pairs& pairs, Dims dims) {
  const std::vector<double> numbers = constant->initializer.to_doubles();
  std::vector<double> kept(static_cast<std::size_t>(pairs.count));
  ir::WeightOrigin origin{.name = constant->name};
  if (constant->origin != nullptr) origin = *constant->origin;
  origin.index.resize(numbers.size());
  origin.factor.resize(numbers.size());
  for (std::int64_t i = 0; i < pairs.count; ++i) {
    kept[static_cast<std::size_t>(i)] = numbers[pairs.second(i)];
    origin.index[pairs.first(i)] = origin.index[pairs.second(i)] = i;
    origin.factor[pairs.first(i)] = -1;
    origin.factor[pairs.second(i)] = 1;
  }
  constant->initializer = Tensor::from(kept, std::move(dims)).cast(constant->initializer.dtype());
  constant->type = ir::Type::tensor(constant->initializer.dtype(), constant->initializer.dims());
  constant->origin = std::make_shared<const ir::WeightOrigin>(std::move(origin));
}

void Tier::tie(const TwoColumnLayer& layer) {
  const Pairs& pairs = layer.weight_pairs;
  keep_second(layer.weight, pairs, pairs.transposed ? Dims{1, pairs.count} : Dims{pairs.count, 1});
  if (layer.bias != nullptr) {
    const bool is_vector = layer.bias->initializer.dims().rank() == 1;
    keep_second(layer.bias, {.count = 1}, is_vector ? Dims{1} : Dims{1, 1});
  }
  Value* scores = layer.scores();
  ir::Type column = scores->type;
  column.shape->back() = ir::Dim(1);
  if (layer.product != layer.last) {
    Value* product = layer.product->output(0);
    graph_.rename(product, graph_.names().unique(product->name + "_1"));
    product->type = column;
  }
  const auto name = [&](const char* end) { return graph_.names().unique(scores->name + end); };
  Value* positive = graph_.add_value(name("_1"), column);
  Value* negative = graph_.add_value(name("_0"), column);
  Graph::set_output(layer.last, 0, positive);
  const Node* negation = graph_.insert_after(layer.last, "Neg", {positive}, {negative});
  graph_.insert_after(negation, "Concat", {negative, positive}, {scores},
                      {{.name = "axis", .value = std::int64_t{1}}});
}

}  // namespace

std::shared_ptr<const ir::Model> tie_opposite_columns(std::shared_ptr<const ir::Model> working) {
  // Found in `working`, which is not changed; tied in a copy, which has its nodes in the same
  // order.
  if (Tier(*working->graph).find().empty()) return working;
  auto copy = std::make_shared<ir::Model>(ir::clone(*working));
  Tier tier(*copy->graph);
  for (const TwoColumnLayer& layer : tier.find()) tier.tie(layer);
  return copy;
}

}  // namespace onnxgrad::train
