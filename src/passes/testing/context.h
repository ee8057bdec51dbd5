#ifndef ONNXGRAD_PASSES_TESTING_CONTEXT_H_
#define ONNXGRAD_PASSES_TESTING_CONTEXT_H_

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "ir/builder.h"
#include "onnx/inference.h"
#include "ops/builtin.h"
#include "passes/passes.h"

namespace onnxgrad::passes::testing_support {

class NoEvaluator : public opdef::Evaluator {
 public:
  std::optional<std::vector<Tensor>> evaluate(const ir::Node&,
                                              std::span<const Tensor>) const override {
    return std::nullopt;
  }
};

/// An empty graph of the internal opset, a builder for it, and a context for passes.
class Workbench {
 public:
  ir::Graph& graph() { return *model_.graph; }
  ir::GraphBuilder& builder() { return builder_; }
  /// The context of a device that prefers every fused node.
  PassContext context() const {
    PassContext context{registry(), *inferer_, evaluator_};
    context.prefers = [](const ir::Node&) { return true; };
    return context;
  }

  static const opdef::OpRegistry& registry() {
    static const opdef::OpRegistry instance = [] {
      opdef::OpRegistry ops;
      ops::register_builtin_ops(ops);
      return ops;
    }();
    return instance;
  }

 private:
  ir::Model model_ = [] {
    ir::Model model;
    model.set_opset("", ir::kInternalOpset);
    return model;
  }();
  std::unique_ptr<ir::TypeInferer> inferer_ = onnx_io::make_type_inferer(model_);
  NoEvaluator evaluator_;
  ir::GraphBuilder builder_{model_, *model_.graph, *inferer_, registry()};
};

}  // namespace onnxgrad::passes::testing_support

#endif  // ONNXGRAD_PASSES_TESTING_CONTEXT_H_
