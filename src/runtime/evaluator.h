#ifndef ONNXGRAD_RUNTIME_EVALUATOR_H_
#define ONNXGRAD_RUNTIME_EVALUATOR_H_

#include "opdef/kernel.h"
#include "runtime/engine.h"

namespace onnxgrad::runtime {

/// Runs single nodes with the engine's own kernels. Types of the node's outputs must be inferred.
class KernelEvaluator : public opdef::Evaluator {
 public:
  explicit KernelEvaluator(const Engine& engine) : engine_(engine) {}
  std::optional<std::vector<Tensor>> evaluate(const ir::Node& node,
                                              std::span<const Tensor> inputs) const override;

 private:
  const Engine& engine_;
};

}  // namespace onnxgrad::runtime

#endif  // ONNXGRAD_RUNTIME_EVALUATOR_H_
