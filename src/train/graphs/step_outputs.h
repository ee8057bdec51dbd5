#ifndef ONNXGRAD_TRAIN_STEP_OUTPUTS_H_
#define ONNXGRAD_TRAIN_STEP_OUTPUTS_H_

#include <string>
#include <utility>
#include <vector>

#include "train/graphs/outputs.h"
#include "train/graphs/step_parts.h"
#include "train/weights/weights.h"

namespace onnxgrad::train {

/// The further outputs that a training step can be asked for: outputs of the model,
/// "<weight>_grad" and "gradient_norm".
class StepOutputs {
 public:
  /// `gradients`: one for each of `weights`. All outlive this.
  StepOutputs(Draft& draft, const std::vector<Weight>& weights,
              const std::vector<ir::Value*>& gradients, std::vector<RunnableOutput> model_outputs)
      : draft_(draft),
        weights_(weights),
        gradients_(gradients),
        model_outputs_(std::move(model_outputs)) {}

  /// The value of an output, which is made if need be. Throws: ModelError (unknown name, with the
  /// known ones).
  ir::Value* find(const std::string& name);

 private:
  ir::Value* named(ir::Value* value, const std::string& name);
  [[noreturn]] void throw_unknown(const std::string& name) const;

  Draft& draft_;
  const std::vector<Weight>& weights_;
  const std::vector<ir::Value*>& gradients_;
  std::vector<RunnableOutput> model_outputs_;
};

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_STEP_OUTPUTS_H_
