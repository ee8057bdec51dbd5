#include "onnx/known_branches.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "ir/inline.h"
#include "onnx/functions.h"
#include "onnx/known_values.h"
#include "onnxgrad/error.h"

namespace onnxgrad::onnx_io {
namespace {

constexpr int kMaxBranchDepth = 64;          // depth of producers that are traced back
constexpr int kMaxBranchWork = 512;          // nodes visited for one value
constexpr std::int64_t kMaxBytes = 1 << 16;  // size of a value

class ConstantFinder {
 public:
  ConstantFinder(const opdef::OpRegistry& ops, const opdef::Evaluator* evaluator)
      : ops_(ops), evaluator_(evaluator), integers_(ir::kInternalOpset) {}

  Tensor find(const ir::Value& value, int depth) {
    if (value.is_constant()) return is_small(value) ? value.initializer : Tensor();
    const ir::Node* node = value.producer;
    if (node == nullptr || depth >= kMaxBranchDepth || ++work_ > kMaxBranchWork) return {};
    Tensor numbers = integers_.integers(value);
    return numbers.is_defined() ? numbers : compute(*node, value, depth);
  }

 private:
  static bool is_small(const ir::Value& value) {
    if (!value.type.is_tensor() || value.dtype() == DataType::kString) return false;
    const auto dims = value.type.static_dims();
    return dims && dims->size_bytes(value.dtype()) <= kMaxBytes;
  }

  Tensor compute(const ir::Node& node, const ir::Value& value, int depth) {
    const opdef::OpDef* def = ops_.find(node);
    if (def == nullptr || def->is_random || !node.subgraphs().empty()) return {};
    const ir::Node complete = ops_.complete(node);
    if (def->fold_types != nullptr) return def->fold_types(complete).value_or(Tensor());
    if (evaluator_ == nullptr || !is_small(value)) return {};
    std::vector<Tensor> inputs;
    for (const ir::Value* input : node.inputs) {
      inputs.push_back(input == nullptr ? Tensor() : find(*input, depth + 1));
      if (input != nullptr && !inputs.back().is_defined()) return {};
    }
    try {
      auto results = evaluator_->evaluate(complete, inputs);
      if (!results) return {};
      return std::move((*results)[static_cast<std::size_t>(value.output_index)]);
    } catch (const Error&) {
      return {};  // a faulty node is reported when it is planned or run
    }
  }

  const opdef::OpRegistry& ops_;
  const opdef::Evaluator* evaluator_;
  KnownValues integers_;
  int work_ = 0;
};

class BranchTaker {
 public:
  BranchTaker(const ir::TypeInferer& inferer, const opdef::OpRegistry& ops,
              const opdef::Evaluator& evaluator)
      : inferer_(inferer), ops_(ops), evaluator_(evaluator) {}

  void rewrite(ir::Graph& graph) {
    std::vector<ir::Node*> stack = std::exchange(graph.nodes, {});
    std::ranges::reverse(stack);
    while (!stack.empty()) {
      ir::Node* node = stack.back();
      stack.pop_back();
      if (const ir::Graph* body = known_body(*node, ops_, &evaluator_)) {
        std::vector<ir::Node*> inner = ir::expand_body(*node, *body);
        stack.insert(stack.end(), inner.rbegin(), inner.rend());
        has_changed_ = true;
        continue;
      }
      for (ir::Graph* subgraph : node->subgraphs()) rewrite(*subgraph);
      if (has_changed_) inferer_.infer(*node);
      graph.nodes.push_back(node);
    }
  }

 private:
  const ir::TypeInferer& inferer_;
  const opdef::OpRegistry& ops_;
  const opdef::Evaluator& evaluator_;
  bool has_changed_ = false;
};

}  // namespace

Tensor find_constant(const ir::Value& value, const opdef::OpRegistry& ops,
                     const opdef::Evaluator* evaluator) {
  return ConstantFinder(ops, evaluator).find(value, 0);
}

const ir::Graph* known_body(const ir::Node& node, const opdef::OpRegistry& ops,
                            const opdef::Evaluator* evaluator) {
  const opdef::OpDef* def =
      is_standard_domain(node.domain) ? ops.find("", node.op_type) : ops.find(node);
  if (def == nullptr || def->taken_body == nullptr) return nullptr;
  std::vector<Tensor> inputs;
  for (const ir::Value* input : node.inputs) {
    inputs.push_back(input == nullptr ? Tensor() : find_constant(*input, ops, evaluator));
    if (input != nullptr && !inputs.back().is_defined()) return nullptr;
  }
  const ir::Graph* body = def->taken_body(node, inputs);
  const bool fits =
      body != nullptr && body->inputs.empty() && body->outputs.size() == node.outputs.size();
  return fits ? body : nullptr;
}

void take_known_branches(ir::Model& model, const ir::TypeInferer& inferer,
                         const opdef::OpRegistry& ops, const opdef::Evaluator& evaluator) {
  const bool has_subgraphs = std::ranges::any_of(
      model.graph->nodes, [](const ir::Node* node) { return !node->subgraphs().empty(); });
  if (has_subgraphs) BranchTaker(inferer, ops, evaluator).rewrite(*model.graph);
}

}  // namespace onnxgrad::onnx_io
