#include <cstdint>
#include <limits>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ir/pattern.h"
#include "ir/uses.h"
#include "opdef/conv_chain.h"
#include "opdef/fused.h"
#include "passes/passes.h"
#include "passes/rewriter.h"

// Pattern: convolutions of float32 each of which alone reads the one before, where one of every two
// is depthwise: little arithmetic for each number, so that results which come from memory, not from
// the cache, decide the time. They become onnxgrad.fused.ConvChain, which computes some images
// at a time. Products of many channels are better computed for all images at once: their weights
// are then read once.

namespace onnxgrad::passes {
namespace {

using opdef::ConvChain;

// Minimum size of an intermediate result of all images: smaller ones stay in the cache anyway.
// Maximum for one image, which is to stay in the cache.
constexpr std::int64_t kLeastBytes = std::int64_t{1} << 20;
constexpr std::int64_t kMostImageBytes = std::int64_t{2} << 20;
constexpr std::size_t kMostAxes = 3;

std::optional<Dims> float32_dims(const ir::Value* value) {
  if (value == nullptr || value->dtype() != DataType::kFloat32) return std::nullopt;
  return value->type.static_dims();
}

class Chains {
 public:
  explicit Chains(ir::Graph& graph) : graph_(graph), uses_(graph) {}

  bool run() {
    const std::vector<ir::Node*> before = graph_.nodes;  // making a node moves the list
    for (ir::Node* node : before) {
      if (!is_convolution(node)) continue;
      std::vector<ir::Node*>& chain = chain_of_[node];
      if (ir::Node* last = node->inputs[0]->producer; follows(last, *node)) {
        chain = std::move(chain_of_[last]);
        chain_of_.erase(last);
      }
      chain.push_back(node);
    }
    std::vector<ir::Node*> nodes;
    bool changed = false;
    for (ir::Node* node : before) {
      // Only the last node of a chain is found with all of it.
      const auto found = chain_of_.find(node);
      if (found != chain_of_.end() && found->second.size() > 1) {
        nodes.push_back(emit(found->second));
        changed = true;
      } else if (!is_convolution(node) || found != chain_of_.end()) {
        nodes.push_back(node);
      }
    }
    if (changed) graph_.nodes = std::move(nodes);
    return changed;
  }

 private:
  static bool is_convolution(const ir::Node* node) {
    if (!ir::is_op(node, "Conv") && !opdef::is_fused(node, "Conv")) return false;
    const std::optional<Dims> x = float32_dims(node->input(0));
    return x && x->rank() <= kMostAxes + 2 && float32_dims(node->input(1)) &&
           float32_dims(node->outputs[0]);
  }

  static bool is_depthwise(const ir::Node& node) {
    const Dims x = *float32_dims(node.inputs[0]);
    const Dims w = *float32_dims(node.inputs[1]);
    return w[1] == 1 && w[0] == x[1];
  }

  bool follows(const ir::Node* last, const ir::Node& node) const {
    if (last == nullptr || !chain_of_.contains(last)) return false;
    const ir::Value* between = last->outputs[0];
    if (uses_.count(between) != 1 || (!is_depthwise(*last) && !is_depthwise(node))) return false;
    const Dims dims = *float32_dims(between);
    const auto bytes = dims.num_elements() * static_cast<std::int64_t>(sizeof(float));
    return dims[0] > 1 && bytes >= kLeastBytes && bytes <= kMostImageBytes * dims[0];
  }

  ir::Node* emit(const std::vector<ir::Node*>& chain) {
    std::vector<ir::Value*> inputs{chain[0]->inputs[0]};
    ConvChain links;
    for (const ir::Node* node : chain) {
      for (std::size_t i = 1; i <= ConvChain::kLinkInputs; ++i) inputs.push_back(node->input(i));
      std::vector<ir::Attribute>& attributes = links.links.emplace_back(node->attributes);
      if (node->domain == ir::kFusedDomain) continue;
      constexpr float kInfinity = std::numeric_limits<float>::infinity();
      attributes.push_back({.name = "low", .value = -kInfinity});
      attributes.push_back({.name = "high", .value = kInfinity});
    }
    return graph_.make_node(opdef::kConvChain, std::move(inputs), {chain.back()->outputs[0]},
                            chain.back()->name, links.attributes(), ir::kFusedDomain);
  }

  ir::Graph& graph_;
  ir::Uses uses_;
  std::unordered_map<const ir::Node*, std::vector<ir::Node*>> chain_of_;  ///< by its last node
};

}  // namespace

bool chain_convolutions(ir::Graph& graph, const PassContext& /*context*/) {
  const auto is_conv = [](const ir::Node& node) { return node.op_type == "Conv"; };
  if (!any_node(graph, is_conv)) return false;
  return Chains(graph).run();
}

}  // namespace onnxgrad::passes
