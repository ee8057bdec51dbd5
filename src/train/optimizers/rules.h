#ifndef ONNXGRAD_TRAIN_OPTIMIZERS_RULES_H_
#define ONNXGRAD_TRAIN_OPTIMIZERS_RULES_H_

#include <memory>

#include "onnxgrad/optimizers.h"
#include "train/optimizers/step_writer.h"

namespace onnxgrad::train {

/// Writes the formula of one optimizer (onnxgrad/optimizers.h) for one weight after the other.
class UpdateRule {
 public:
  virtual ~UpdateRule() = default;
  /// Appends the formula, binds the slots and returns the weight's new value, in its shape and
  /// dtype.
  virtual ir::Value* update(const WeightStep& step) = 0;
};

// The descriptions are copied; `writer` outlives the rule. Lbfgs has no rule.
std::unique_ptr<UpdateRule> make_rule(StepWriter& writer, const Sgd& spec);
std::unique_ptr<UpdateRule> make_rule(StepWriter& writer, const Lion& spec);
std::unique_ptr<UpdateRule> make_rule(StepWriter& writer, const Adam& spec);
std::unique_ptr<UpdateRule> make_rule(StepWriter& writer, const AdamW& spec);
std::unique_ptr<UpdateRule> make_rule(StepWriter& writer, const Lamb& spec);
std::unique_ptr<UpdateRule> make_rule(StepWriter& writer, const Adagrad& spec);
std::unique_ptr<UpdateRule> make_rule(StepWriter& writer, const RmsProp& spec);
/// Throws: ModelError (a model that is no update, or not one of weights of this type).
std::unique_ptr<UpdateRule> make_rule(StepWriter& writer, const UserOptimizer& spec);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_OPTIMIZERS_RULES_H_
