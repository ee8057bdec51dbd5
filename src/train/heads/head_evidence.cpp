#include "train/heads/head_evidence.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "ir/pattern.h"
#include "ir/uses.h"
#include "train/heads/head_patterns.h"
#include "train/tools/engine.h"

namespace onnxgrad::train {
namespace {

using ir::Node;
using ir::Value;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Bounds of the elements of a value.
struct Range {
  double low = -kInfinity;
  double high = kInfinity;

  bool is_positive() const { return low >= 0; }
  Range join(const Range& other) const {
    return {.low = std::min(low, other.low), .high = std::max(high, other.high)};
  }
};

constexpr Range kShare = {.low = 0, .high = 1};
constexpr Range kPositive = {.low = 0};

Range operator+(const Range& a, const Range& b) {
  return {.low = a.low + b.low, .high = a.high + b.high};
}
Range operator-(const Range& a, const Range& b) {
  return {.low = a.low - b.high, .high = a.high - b.low};
}
// Unbounded if a factor may be negative.
Range operator*(const Range& a, const Range& b) {
  if (!a.is_positive() || !b.is_positive()) return {};
  const double high = a.high * b.high;
  return {.low = 0, .high = std::isnan(high) ? kInfinity : high};
}
Range operator/(const Range& a, const Range& b) {
  if (!a.is_positive() || !b.is_positive()) return {};
  return {.low = 0, .high = b.low > 0 ? a.high / b.low : kInfinity};
}

class RangeFinder {
 public:
  Range range_of(const Value* value) {
    if (value == nullptr) return {};
    if (value->is_initializer()) return range_of_constant(value->initializer);
    if (value->producer == nullptr) return {};
    const auto known = found_.find(value);
    if (known != found_.end()) return known->second;
    if (depth_ >= kMaxDepth || --budget_ < 0) return {};
    ++depth_;
    const Range range = range_of_result(*value->producer);
    --depth_;
    found_.emplace(value, range);
    return range;
  }

 private:
  static constexpr int kMaxDepth = 512;

  static Range range_of_constant(const Tensor& tensor) {
    if (!is_floating(tensor.dtype()) && !is_integer(tensor.dtype())) return {};
    Range range = {.low = kInfinity, .high = -kInfinity};
    for (const double number : tensor.to_doubles()) {
      if (std::isnan(number)) return {};
      range = range.join({.low = number, .high = number});
    }
    return range;
  }

  Range range_of_input(const Node& node, std::size_t i) { return range_of(node.input(i)); }

  template <class Combine>
  Range fold(const Node& node, const Combine& combine) {
    Range range = range_of_input(node, 0);
    for (std::size_t i = 1; i < node.inputs.size(); ++i) {
      range = combine(range, range_of_input(node, i));
    }
    return range;
  }

  Range range_of_result(const Node& node) {
    if (match_logistic(node.output(0)) != nullptr) return kShare;
    if (ir::is_op(node, {"Softmax", "HardSigmoid", "OneHot", "Not", "Greater", "Less",
                         "GreaterOrEqual", "LessOrEqual", "Equal"})) {
      return kShare;
    }
    if (ir::is_op(node, {"Exp", "Abs", "Relu", "Sqrt", "Softplus", "ReduceL1", "ReduceL2",
                         "ReduceSumSquare", "ArgMax", "ArgMin"})) {
      return kPositive;
    }
    if (ir::is_op(node, {"Add", "Sum"})) return fold(node, std::plus<>());
    if (ir::is_op(node, {"Mul"})) return fold(node, std::multiplies<>());
    if (ir::is_op(node, {"Sub"})) return fold(node, std::minus<>());
    if (ir::is_op(node, {"Div"})) return fold(node, std::divides<>());
    if (ir::is_op(node, {"Concat", "Max", "Min", "Mean"})) {
      return fold(node, [](const Range& a, const Range& b) { return a.join(b); });
    }
    if (ir::is_op(node, {"MatMul", "Gemm"})) {
      const Range all = fold(node, [](const Range& a, const Range& b) { return a.join(b); });
      return all.is_positive() ? kPositive : Range{};
    }
    if (ir::is_op(node, {"ReduceSum", "ReduceProd"})) {
      return range_of_input(node, 0).is_positive() ? kPositive : Range{};
    }
    if (ir::is_op(node, {"Where"})) return range_of_input(node, 1).join(range_of_input(node, 2));
    if (ir::is_op(node, {"Clip"})) return range_of_clip(node);
    return keeps_range(node) ? range_of_input(node, 0) : Range{};
  }

  static bool keeps_range(const Node& node) {
    if (ir::is_op(node, {"ReduceMean", "ReduceMax", "ReduceMin", "AveragePool", "MaxPool",
                         "GlobalAveragePool", "GlobalMaxPool", "Gather", "GatherElements",
                         "GatherND", "TopK"})) {
      return true;
    }
    if (node.domain == "ai.onnx.ml") return node.op_type == "ArrayFeatureExtractor";
    const opdef::OpDef* def = builtin_ops().find(node);
    return def != nullptr && def->passage != opdef::Passage::kNone;
  }

  Range range_of_clip(const Node& node) {
    Range range = range_of_input(node, 0);
    if (node.input(1) != nullptr) range.low = std::max(range.low, range_of_input(node, 1).low);
    if (node.input(2) != nullptr) range.high = std::min(range.high, range_of_input(node, 2).high);
    return range;
  }

  std::unordered_map<const Value*, Range> found_;
  int budget_ = 4096;
  int depth_ = 0;
};

}  // namespace

bool is_never_negative(const Value* value) { return RangeFinder().range_of(value).is_positive(); }

bool may_have_gradient(const Value* value) {
  const auto is_source = [](const Value& one) {
    if (!one.type.is_tensor() || !is_floating(one.type.dtype)) return false;
    if (!one.is_initializer()) return one.producer == nullptr;
    const bool is_definition =
        one.origin != nullptr && one.origin->kind == ir::WeightOrigin::Kind::kDefinition;
    return !is_definition && one.initializer.num_elements() > 1;
  };
  const auto carries = [](const Node& node) {
    const opdef::OpDef* def = builtin_ops().find(node);
    const Value* output = node.output(0);
    const bool is_float = output == nullptr || !output->type.is_tensor() ||
                          output->dtype() == DataType::kUndefined || is_floating(output->dtype());
    return is_float && (def == nullptr || !def->zero_gradient);
  };
  std::unordered_set<const Value*> seen;
  std::vector<const Value*> open = {value};
  while (!open.empty()) {
    const Value* next = open.back();
    open.pop_back();
    if (!seen.insert(next).second) continue;
    if (is_source(*next)) return true;
    const Node* node = next->producer;
    if (node == nullptr || !carries(*node)) continue;
    for (const Value* read : ir::values_read(*node)) open.push_back(read);
  }
  return false;
}

}  // namespace onnxgrad::train
