#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "ir/pattern.h"
#include "ir/uses.h"
#include "passes/candidate.h"
#include "passes/passes.h"
#include "passes/rewriter.h"

// Pattern: Conv whose result is read only by Relu, by Clip with constant bounds, or by a sum with a
// residual, which may be followed by one of them. The node that results, onnxgrad.fused.Conv (x, w,
// b?, residual?), has Conv's attributes and low and high, to which its results are restricted.

namespace onnxgrad::passes {
namespace {

using ir::is_op;

struct ConvEnd {
  std::vector<ir::Node*> after = {};
  ir::Value* residual = nullptr;
  float low = -std::numeric_limits<float>::infinity();
  float high = std::numeric_limits<float>::infinity();
};

bool is_dense_float(const ir::Value* value) {
  return value != nullptr && value->type.static_dims() &&
         (value->dtype() == DataType::kFloat32 || value->dtype() == DataType::kFloat64);
}

bool bound_of(const ir::Value* value, float& bound) {
  if (value == nullptr) return true;
  if (!value->is_constant() || value->initializer.num_elements() != 1) return false;
  const double number = value->initializer.to_doubles().front();
  bound = static_cast<float>(number);
  return static_cast<double>(bound) == number;
}

class ConvolutionFusion {
 public:
  ConvolutionFusion(ir::Graph& graph, const PassContext& context)
      : graph_(graph), context_(context), uses_(graph) {}

  bool run() {
    const std::vector<ir::Node*> before = graph_.nodes;  // making a node moves the list
    for (ir::Node* node : before) {
      if (!is_op(node, "Conv") || node->outputs.empty() || !is_dense_float(node->outputs[0])) {
        continue;
      }
      const ConvEnd end = follow(*node);
      if (!end.after.empty()) emit(*node, end);
    }
    if (fused_.empty()) return false;
    std::vector<ir::Node*> nodes;
    for (ir::Node* node : before) {
      if (const auto found = fused_.find(node); found != fused_.end()) {
        nodes.push_back(found->second);
      } else if (!taken_.contains(node)) {
        nodes.push_back(node);
      }
    }
    graph_.nodes = std::move(nodes);
    return true;
  }

 private:
  ir::Node* next(const ir::Value* value) const {
    ir::Node* reader = uses_.count(value) == 1 ? uses_.only_reader(value) : nullptr;
    return reader != nullptr && !taken_.contains(reader) ? reader : nullptr;
  }

  ConvEnd follow(const ir::Node& conv) const {
    ConvEnd end;
    const ir::Value* y = conv.outputs[0];
    const auto same_shape = [&](const ir::Value* value) {
      return is_dense_float(value) && value->dtype() == y->dtype() &&
             value->type.static_dims() == y->type.static_dims();
    };
    if (ir::Node* add = next(y); is_op(add, "Add")) {
      ir::Value* other = add->inputs[add->inputs[0] == y ? 1 : 0];
      if (other != y && same_shape(other) && same_shape(add->outputs[0]) &&
          !is_op(other->producer, "Expand")) {
        end.residual = other;
        end.after.push_back(add);
        y = add->outputs[0];
      }
    }
    ir::Node* last = next(y);
    if (is_op(last, "Relu")) {
      end.low = 0;
      end.after.push_back(last);
    } else if (is_op(last, "Clip")) {
      float low = end.low;
      float high = end.high;
      if (last->inputs[0] == y && bound_of(last->input(1), low) && bound_of(last->input(2), high) &&
          low <= high) {
        end.low = low;
        end.high = high;
        end.after.push_back(last);
      }
    }
    return end;
  }

  static ir::Node with_end(const ir::Node& conv, const ConvEnd& end) {
    std::vector<ir::Value*> inputs = conv.inputs;
    if (end.residual != nullptr) {
      inputs.resize(3, nullptr);
      inputs.push_back(end.residual);
    }
    std::vector<ir::Attribute> attributes = conv.attributes;
    attributes.push_back({.name = "low", .value = end.low});
    attributes.push_back({.name = "high", .value = end.high});
    return candidate("Conv", std::move(inputs), {end.after.back()->outputs[0]},
                     std::move(attributes), conv.name);
  }

  void emit(const ir::Node& conv, const ConvEnd& end) {
    ir::Node fused = with_end(conv, end);
    if (!context_.prefers(fused)) return;
    taken_.insert(&conv);
    taken_.insert(end.after.begin(), end.after.end());
    fused_[end.after.back()] =
        graph_.make_node(fused.op_type, std::move(fused.inputs), fused.outputs, fused.name,
                         std::move(fused.attributes), fused.domain);
  }

  ir::Graph& graph_;
  const PassContext& context_;
  ir::Uses uses_;
  std::unordered_set<const ir::Node*> taken_;
  std::unordered_map<const ir::Node*, ir::Node*> fused_;  // by the node in whose place it is
};

}  // namespace

bool fuse_convolutions(ir::Graph& graph, const PassContext& context) {
  if (!any_node(graph, [](const ir::Node& node) { return is_op(&node, "Conv"); })) return false;
  return ConvolutionFusion(graph, context).run();
}

}  // namespace onnxgrad::passes
