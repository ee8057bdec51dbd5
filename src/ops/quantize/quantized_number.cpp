#include "ops/quantize/quantized_number.h"

#include <algorithm>
#include <initializer_list>
#include <unordered_map>
#include <vector>

#include "ir/pattern.h"

namespace onnxgrad::ops {
namespace {

constexpr int kMaxDepth = 64;

bool is_one_of(const Node& node, std::initializer_list<std::string_view> op_types) {
  return ir::is_op(node, op_types);
}

// Operators that move, repeat or drop elements of input 0, or take maxima; the other inputs are
// indices.
bool moves_elements(const Node& node) {
  return is_one_of(node, {"Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose",
                          "Slice", "Gather", "GatherElements", "GatherND", "Compress", "Expand",
                          "Tile", "DepthToSpace", "SpaceToDepth", "ReverseSequence", "Trilu",
                          "MaxPool", "Relu"}) &&
         node.output(1) == nullptr;
}

// Operators that give equal results for floating-point values and for integers that do not
// overflow.
bool is_arithmetic(const Node& node) {
  if (!is_one_of(node, {"Add", "Sub", "Mul", "Neg", "Max", "Min"})) return false;
  const DataType dtype = node.outputs[0]->dtype();
  return dtype == DataType::kInt32 || dtype == DataType::kInt64 || is_one_of(node, {"Max", "Min"});
}

bool is_widening(DataType from, DataType to) {
  return is_integer(to) && size_bits(from) < size_bits(to) && size_bits(to) >= 16 &&
         (to != DataType::kUint16 && to != DataType::kUint32 && to != DataType::kUint64);
}

// Returns true for floating-point values that are integers for all inputs: products of converted
// integers, as in the body of MatMulInteger.
bool is_whole(const Value* value, int depth) {
  const Node* node = value->producer;
  if (node == nullptr || depth > 8) return false;
  if (node->domain == ir::kFunctionDomain) return node->op_type.starts_with("QuantizedNumber");
  if (ir::is_op(node, "Cast")) {
    return is_integer(node->inputs[0]->dtype()) || is_whole(node->inputs[0], depth + 1);
  }
  return (is_one_of(*node, {"Add", "Sub", "Mul", "MatMul", "Conv"}) || moves_elements(*node)) &&
         std::ranges::all_of(
             moves_elements(*node) ? std::vector<Value*>{node->inputs[0]} : node->inputs,
             [&](const Value* input) { return input == nullptr || is_whole(input, depth + 1); });
}

class Search {
 public:
  explicit Search(GraphBuilder& g) : g_(g) {}

  Value* find(Value* q, int depth) {
    if (q == nullptr || q->producer == nullptr || depth > kMaxDepth) return nullptr;
    if (const auto known = found_.find(q); known != found_.end()) return known->second;
    Value* number = make(*q, depth);
    found_.emplace(q, number);
    return number;
  }

 private:
  Value* make(const Value& q, int depth) {
    const Node& node = *q.producer;
    if (is_one_of(node, {"QuantizeLinear"})) return number_of_quantize(g_, node);
    if (is_one_of(node, {"Cast"})) return of_cast(node, depth);
    if (moves_elements(node)) return with_numbers(node, 0, 1, depth);
    if (is_one_of(node, {"Concat"}) || is_arithmetic(node)) {
      return with_numbers(node, 0, node.inputs.size(), depth);
    }
    if (is_one_of(node, {"Where"})) return with_numbers(node, 1, 3, depth);
    if (is_one_of(node, {"Split"})) return of_split(node, q, depth);
    return is_one_of(node, {"Pad"}) ? of_pad(node, depth) : nullptr;
  }

  Value* of_cast(const Node& node, int depth) {
    Value* x = node.inputs[0];
    const DataType to = node.outputs[0]->dtype();
    if (is_floating(x->dtype())) {
      const bool is_exact = to == DataType::kInt32 || to == DataType::kInt64;
      return is_exact && is_whole(x, 0) ? x : nullptr;
    }
    return is_widening(x->dtype(), to) ? find(x, depth + 1) : nullptr;
  }

  Value* of_split(const Node& node, const Value& q, int depth) {
    Value* x = find(node.inputs[0], depth + 1);
    if (x == nullptr) return nullptr;
    std::vector<Value*> inputs = node.inputs;
    inputs[0] = x;
    return g_.ops("Split", std::move(inputs), node.outputs.size(),
                  node.attributes)[static_cast<std::size_t>(q.output_index)];
  }

  Value* of_pad(const Node& node, int depth) {
    Value* x = find(node.inputs[0], depth + 1);
    if (x == nullptr) return nullptr;
    std::vector<Value*> inputs = node.inputs;
    inputs[0] = x;
    if (node.input(2) != nullptr) inputs[2] = g_.cast(inputs[2], x->dtype());
    return g_.op("Pad", std::move(inputs), node.attributes);
  }

  // Copies the node with floating-point values for inputs [first, last); nullptr if none of them
  // has any.
  Value* with_numbers(const Node& node, std::size_t first, std::size_t last, int depth) {
    std::vector<Value*> inputs = node.inputs;
    bool is_any = false;
    DataType wide = DataType::kFloat32;
    for (std::size_t i = first; i < std::min(last, inputs.size()); ++i) {
      Value* number = find(inputs[i], depth + 1);
      is_any = is_any || number != nullptr;
      if (number != nullptr) inputs[i] = number;
      // Sums of 32-bit integers need more precision than float32 has.
      if (last > 1 && size_bits(node.inputs[i]->dtype()) > 16) wide = DataType::kFloat64;
    }
    if (!is_any) return nullptr;
    for (std::size_t i = first; last > 1 && i < std::min(last, inputs.size()); ++i) {
      inputs[i] = g_.cast(inputs[i], wide);
    }
    return g_.op(node.op_type, std::move(inputs), node.attributes);
  }

  GraphBuilder& g_;
  std::unordered_map<const Value*, Value*> found_;
};

}  // namespace

Value* quantized_number(GraphBuilder& g, Value* q) { return Search(g).find(q, 0); }

}  // namespace onnxgrad::ops
