#include "train/graphs/step_outputs.h"

#include "base/check.h"
#include "ir/naming.h"
#include "onnxgrad/option_error.h"
#include "train/optimizers/optimizers.h"
#include "train/tools/patterns.h"

namespace onnxgrad::train {

using ir::Value;

Value* StepOutputs::find(const std::string& name) {
  for (const RunnableOutput& output : model_outputs_) {
    if (output.name == name && output.value != nullptr && !output.labels.is_defined()) {
      return output.value;
    }
  }
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    const std::vector<WeightNames> weight{names_for_patterns(*weights_[i].value)};
    for (const std::string& one : all_names(weight)) {
      if (one + "_grad" == name) return named(gradients_[i], name);
    }
  }
  if (name == "gradient_norm") return named(write_global_norm(draft_.g(), gradients_), name);
  throw_unknown(name);
}

// A separate value, so that its name can be chosen freely.
Value* StepOutputs::named(Value* value, const std::string& name) {
  Value* copy = draft_.g().identity(value);
  ir::give_name(draft_.graph(), copy, name);
  return copy;
}

void StepOutputs::throw_unknown(const std::string& name) const {
  std::vector<std::string> known;
  for (const RunnableOutput& output : model_outputs_) known.push_back(output.name);
  for (const Weight& weight : weights_) known.push_back(weight.value->name + "_grad");
  known.emplace_back("gradient_norm");
  throw ModelError({.what = "a training step has no output '" + name + "'",
                    .detail = "It can return " + base::quote_list(known) + ".",
                    .hint = base::nearest_or(name, known)});
}

}  // namespace onnxgrad::train
