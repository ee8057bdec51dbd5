#include <cstddef>
#include <limits>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ir/pattern.h"
#include "ir/uses.h"
#include "opdef/conv_chain.h"
#include "opdef/fused.h"
#include "passes/candidate.h"
#include "passes/passes.h"
#include "passes/rewriter.h"

// Pattern: convolutions of float32 each of which alone reads the one before. Such a chain grows
// while the device prefers it to its convolutions one after another, and becomes
// onnxgrad.fused.ConvChain, which computes some images at a time.

namespace onnxgrad::passes {
namespace {

using opdef::ConvChain;

std::optional<Dims> float32_dims(const ir::Value* value) {
  if (value == nullptr || value->dtype() != DataType::kFloat32) return std::nullopt;
  return value->type.static_dims();
}

class Chains {
 public:
  Chains(ir::Graph& graph, const PassContext& context)
      : graph_(graph), context_(context), uses_(graph) {}

  bool run() {
    const std::vector<ir::Node*> before = graph_.nodes;  // making a node moves the list
    for (ir::Node* node : before) {
      if (!is_convolution(node)) continue;
      std::vector<ir::Node*> chain = chain_before(*node);
      const ir::Node* last = chain.empty() ? nullptr : chain.back();
      chain.push_back(node);
      if (last != nullptr && context_.prefers(chained(chain))) {
        chain_of_.erase(last);
      } else {
        chain = {node};
      }
      chain_of_.emplace(node, std::move(chain));
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
    return float32_dims(node->input(0)) && float32_dims(node->input(1)) &&
           float32_dims(node->outputs[0]);
  }

  // The chain that ends with the producer of x, if nothing else reads that.
  std::vector<ir::Node*> chain_before(const ir::Node& node) const {
    const auto found = chain_of_.find(node.inputs[0]->producer);
    if (found == chain_of_.end() || uses_.count(node.inputs[0]) != 1) return {};
    return found->second;
  }

  static ir::Node chained(const std::vector<ir::Node*>& chain) {
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
    return candidate(opdef::kConvChain, std::move(inputs), {chain.back()->outputs[0]},
                     links.attributes(), chain.back()->name);
  }

  ir::Node* emit(const std::vector<ir::Node*>& chain) {
    ir::Node made = chained(chain);
    return graph_.make_node(made.op_type, std::move(made.inputs), made.outputs, made.name,
                            std::move(made.attributes), made.domain);
  }

  ir::Graph& graph_;
  const PassContext& context_;
  ir::Uses uses_;
  std::unordered_map<const ir::Node*, std::vector<ir::Node*>> chain_of_;  ///< by its last node
};

}  // namespace

bool chain_convolutions(ir::Graph& graph, const PassContext& context) {
  const auto is_conv = [](const ir::Node& node) { return node.op_type == "Conv"; };
  if (!any_node(graph, is_conv)) return false;
  return Chains(graph, context).run();
}

}  // namespace onnxgrad::passes
