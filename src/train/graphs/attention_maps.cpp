#include "train/graphs/attention_maps.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>

#include "ir/uses.h"

namespace onnxgrad::train {
namespace {

// A node that passes the numbers on, but for those that it drops or sets to 0.
bool passes_on(const ir::Node& node) {
  constexpr std::array<std::string_view, 5> kOperators = {"Dropout", "Identity", "Cast", "CastLike",
                                                          "Where"};
  return node.domain.empty() && std::ranges::find(kOperators, node.op_type) != kOperators.end();
}

bool reaches_product(const ir::Uses& uses, const ir::Value* value, int depth) {
  for (const ir::Use& use : uses.of(value)) {
    const ir::Node* node = use.node;
    if (node == nullptr || !node->domain.empty()) continue;
    if (node->op_type == "MatMul" && node->input(0) == value) return true;
    if (depth > 0 && passes_on(*node) && reaches_product(uses, node->output(0), depth - 1)) {
      return true;
    }
  }
  return false;
}

}  // namespace

std::vector<std::string> find_attention_maps(const ir::Graph& graph) {
  constexpr int kMaxDepth = 4;
  const ir::Uses uses(graph);
  std::vector<std::string> maps;
  for (const ir::Node* node : graph.nodes) {
    if (!node->domain.empty() || node->op_type != "Softmax") continue;
    const ir::Value* value = node->output(0);
    if (value == nullptr || !value->type.has_rank() || value->type.rank() < 3) continue;
    const auto rank = static_cast<std::int64_t>(value->type.rank());
    const std::int64_t axis = node->int_attribute("axis", -1);
    if (axis != -1 && axis != rank - 1) continue;
    if (reaches_product(uses, value, kMaxDepth)) maps.push_back(value->name);
  }
  return maps;
}

}  // namespace onnxgrad::train
