#include "train/optimizers/table.h"

#include "train/optimizers/averages.h"
#include "train/optimizers/optimizers.h"

namespace onnxgrad::train {

const OptimizerTable& optimizer_rows() {
  static const OptimizerTable table = [] {
    OptimizerTable made;
    register_optimizers(made);
    made.finish();
    return made;
  }();
  return table;
}

void check_optimizer(const Optimizer& optimizer) {
  optimizer_rows().check(optimizer, "optimizer: ");
}

void check_update_options(const UpdateOptions& options) {
  const auto check = [](std::string name, FieldValue value, const NumberRange& range) {
    const FieldInfo field{.name = std::move(name), .default_value = value, .range = range};
    if (auto problem = field_problem(field, value, "optimizer: ")) {
      throw OptionError(std::move(*problem));
    }
  };
  if (options.clip_value) check("clip_value", *options.clip_value, kAboveZero);
  if (options.clip_norm) check("clip_norm", *options.clip_norm, kAboveZero);
  check("accumulate", options.accumulate, kAtLeastOne);
  if (options.average) average_rows().check(*options.average, "average: ");
  if (options.sharpness_aware) check("rho", options.sharpness_aware->rho, kAboveZero);
  for (const ParameterGroup& group : options.groups) {
    check("rate_factor of a group", group.rate_factor, kAtLeastZero);
    if (group.weight_decay) check("weight_decay of a group", *group.weight_decay, kAtLeastZero);
    if (group.optimizer) {
      check_optimizer(*group.optimizer);
      if (is_host_loop(*group.optimizer)) {
        throw OptionError(
            {.what = "optimizer: L-BFGS cannot be the optimizer of a group of weights",
             .hint = "Use it for all weights, or choose another one."});
      }
    }
    if (group.patterns.empty()) {
      throw OptionError({.what = "optimizer: a group of weights without patterns",
                         .hint = "Name its weights, or a pattern such as 'fc*'."});
    }
  }
}

}  // namespace onnxgrad::train
