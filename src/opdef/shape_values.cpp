#include "opdef/shape_values.h"

#include <algorithm>
#include <cstddef>
#include <ranges>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

// A forward pass finds what can be known once the integers are, a backward pass what of it is
// needed.

namespace onnxgrad::opdef {
namespace {

using ir::Node;
using ir::Value;

constexpr int kMaxDepth = 32;  // nesting of calls

bool has_static_outputs(const Node& node) {
  return std::ranges::all_of(node.outputs, [](const Value* output) {
    return output == nullptr || (output->type.is_tensor() && output->type.static_dims());
  });
}

class ShapeValues {
 public:
  ShapeValues(const ir::Model& model, const OpRegistry& ops, const KernelRegistry& kernels)
      : model_(model), ops_(ops), kernels_(kernels) {}

  std::unordered_set<const Value*> find(std::span<Node* const> nodes, int depth = 0) {
    std::unordered_map<const Value*, bool> knowable;  // results of `nodes`
    const auto is_knowable = [&](const Value* value) {
      const auto result = knowable.find(value);
      return result == knowable.end() ? is_integer(*value) : result->second;
    };
    for (const Node* node : nodes) {
      const bool all =
          can_be_known(*node) &&
          (is_known_by_types(*node) || std::ranges::all_of(node->inputs, [&](const Value* input) {
             return input == nullptr || is_knowable(input);
           }));
      for (const Value* output : node->outputs) knowable[output] = all;
    }
    std::unordered_set<const Value*> wanted;
    const auto want = [&](const Value* value) {
      if (value != nullptr && is_knowable(value)) wanted.insert(value);
    };
    for (const Node* node : nodes | std::views::reverse) {
      for (const Value* value : direct_values(*node, depth)) {
        want(value);
        // A list that is fed, or what Casts have made of it in the part that ran before.
        for (const Value* list = value; list != nullptr; list = before_cast(list)) {
          if (!knowable.contains(list) && is_float_list(*list)) wanted.insert(list);
        }
      }
      const bool is_wanted = std::ranges::any_of(
          node->outputs, [&](const Value* output) { return wanted.contains(output); });
      if (!is_wanted || is_known_by_types(*node)) continue;
      for (const Value* input : node->inputs) want(input);
    }
    return wanted;
  }

 private:
  // Among outside values: integers and constants; the types in a function's body are unknown.
  static bool is_integer(const Value& value) {
    const DataType dtype = value.dtype();
    return value.is_constant() || onnxgrad::is_integer(dtype) || dtype == DataType::kUndefined;
  }

  // A list that a plan can be compiled for by value, such as the scales of Resize.
  static bool is_float_list(const Value& value) {
    return is_floating(value.dtype()) && value.type.has_rank() && value.type.rank() <= 1;
  }

  // The value that a Cast converts; nullptr if none makes this one.
  const Value* before_cast(const Value* value) const {
    const Node* node = value->producer;
    const OpDef* def = node == nullptr ? nullptr : ops_.find(*node);
    const bool is_cast =
        def != nullptr && def->passage == Passage::kConverted && node->inputs.size() == 1;
    return is_cast ? node->inputs[0] : nullptr;
  }

  bool is_known_by_types(const Node& node) const {
    const OpDef* def = ops_.find(node);
    return def != nullptr && def->fold_types != nullptr;
  }

  bool can_be_known(const Node& node) const {
    const OpDef* def = ops_.find(node);
    if (def == nullptr || def->is_random || !node.subgraphs().empty()) return false;
    const bool is_dynamic = kernels_.dynamic(node.domain, node.op_type) != nullptr;
    return !is_dynamic || !def->shape_inputs.empty();
  }

  static void add(const Node& node, const std::vector<int>& inputs,
                  std::vector<const Value*>& values) {
    for (const int i : inputs) values.push_back(node.input(static_cast<std::size_t>(i)));
  }

  // The values that the node's kernel, or one in its function's body, needs at plan time.
  std::vector<const Value*> planned_values(const Node& node, int depth) {
    std::vector<const Value*> values;
    if (const ir::Function* function = model_.find_function(node.domain, node.op_type)) {
      for (const std::size_t i : inputs_of_call(*function, depth)) values.push_back(node.input(i));
    } else if (const OpDef* def = ops_.find(node); def != nullptr && depth < kMaxDepth) {
      add(node, def->planned_inputs, values);
    }
    return values;
  }

  // Values that this node itself reads and that a plan needs to know.
  std::vector<const Value*> direct_values(const Node& node, int depth) {
    std::vector<const Value*> values = planned_values(node, depth);
    const OpDef* def = ops_.find(node);
    const bool is_call = model_.find_function(node.domain, node.op_type) != nullptr;
    if (is_call || def == nullptr || depth >= kMaxDepth) return values;
    if (!has_static_outputs(node)) add(node, def->shape_inputs, values);
    for (const ir::Graph* body : node.subgraphs()) {
      const auto wanted = find(body->nodes, depth + 1);
      values.insert(values.end(), wanted.begin(), wanted.end());  // captured ones, and its own
    }
    return values;
  }

  const std::vector<std::size_t>& inputs_of_call(const ir::Function& function, int depth) {
    const auto [entry, is_new] = calls_.try_emplace(&function);
    if (!is_new || depth >= kMaxDepth) return entry->second;
    const auto wanted = find(function.body->nodes, depth + 1);
    std::vector<std::size_t>& numbers = calls_.at(&function);
    for (std::size_t i = 0; i < function.body->inputs.size(); ++i) {
      if (wanted.contains(function.body->inputs[i])) numbers.push_back(i);
    }
    return numbers;
  }

  const ir::Model& model_;
  const OpRegistry& ops_;
  const KernelRegistry& kernels_;
  std::unordered_map<const ir::Function*, std::vector<std::size_t>> calls_;
};

}  // namespace

std::unordered_set<const ir::Value*> shape_values(std::span<ir::Node* const> nodes,
                                                  const ir::Model& model, const OpRegistry& ops,
                                                  const KernelRegistry& kernels) {
  return ShapeValues(model, ops, kernels).find(nodes);
}

}  // namespace onnxgrad::opdef
