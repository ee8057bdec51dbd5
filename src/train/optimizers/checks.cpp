#include <cmath>
#include <string>

#include "onnxgrad/option_error.h"
#include "train/optimizers.h"

// Ranges of the parameters of optimizers.

namespace onnxgrad::train {
namespace {

void check_range(std::string_view name, double value, bool good, std::string_view range) {
  if (good && std::isfinite(value)) return;
  throw OptionError({.what = "optimizer: " + std::string(name) + " is " + std::to_string(value) +
                             ", expected " + std::string(range),
                     .hint = "Give " + std::string(range) + ", or leave it out."});
}

void at_least_zero(std::string_view name, double value) {
  check_range(name, value, value >= 0, "a number >= 0");
}

void below_one(std::string_view name, double value) {
  check_range(name, value, value >= 0 && value < 1, "a number in [0, 1)");
}

void at_least_one(std::string_view name, std::int64_t value) {
  check_range(name, static_cast<double>(value), value >= 1, "a whole number >= 1");
}

void check(const Sgd& sgd) {
  at_least_zero("momentum", sgd.momentum);
  check_range("dampening", sgd.dampening, true, "a number");
  if (sgd.nesterov && (sgd.momentum == 0 || sgd.dampening != 0)) {
    throw OptionError({.what = "optimizer: nesterov needs momentum > 0 and dampening 0",
                       .hint = "Pass momentum=0.9, or leave nesterov out."});
  }
  if (sgd.rate_in_velocity && (sgd.momentum == 0 || sgd.dampening != 0)) {
    throw OptionError({.what = "optimizer: rate_in_velocity needs momentum > 0 and dampening 0",
                       .hint = "Pass momentum=0.9, or leave rate_in_velocity out."});
  }
}

void check_moments(const auto& spec) {
  below_one("beta1", spec.beta1);
  below_one("beta2", spec.beta2);
  at_least_zero("epsilon", spec.epsilon);
}

void check(const Adam& adam) { check_moments(adam); }

void check(const AdamW& adamw) { check_moments(adamw); }

void check(const Lamb& lamb) { check_moments(lamb); }

void check(const Lion& lion) {
  below_one("beta1", lion.beta1);
  below_one("beta2", lion.beta2);
}

void check(const Adagrad& adagrad) {
  at_least_zero("rate_decay", adagrad.rate_decay);
  at_least_zero("initial_accumulator", adagrad.initial_accumulator);
  at_least_zero("epsilon", adagrad.epsilon);
}

void check(const RmsProp& rmsprop) {
  below_one("alpha", rmsprop.alpha);
  at_least_zero("momentum", rmsprop.momentum);
  at_least_zero("epsilon", rmsprop.epsilon);
}

void check(const UserOptimizer& /*spec*/) {}  // its model is checked where it is written

void check(const Lbfgs& lbfgs) {
  at_least_one("max_iterations", lbfgs.max_iterations);
  at_least_one("history", lbfgs.history);
  at_least_zero("max_evaluations", static_cast<double>(lbfgs.max_evaluations));
  at_least_zero("gradient_tolerance", lbfgs.gradient_tolerance);
  at_least_zero("change_tolerance", lbfgs.change_tolerance);
}

}  // namespace

void check_optimizer(const Optimizer& optimizer) {
  std::visit(
      [](const auto& spec) {
        at_least_zero("learning_rate", spec.learning_rate);
        if constexpr (requires { spec.weight_decay; }) {
          at_least_zero("weight_decay", spec.weight_decay);
        }
        check(spec);
      },
      optimizer);
}

void check_update_options(const UpdateOptions& options) {
  const auto above_zero = [](std::string_view name, double value) {
    check_range(name, value, value > 0, "a number > 0");
  };
  if (options.clip_value) above_zero("clip_value", *options.clip_value);
  if (options.clip_norm) above_zero("clip_norm", *options.clip_norm);
  at_least_one("accumulate", options.accumulate);
  for (const ParameterGroup& group : options.groups) {
    at_least_zero("rate_factor of a group", group.rate_factor);
    if (group.weight_decay) at_least_zero("weight_decay of a group", *group.weight_decay);
    if (group.optimizer) {
      check_optimizer(*group.optimizer);
      if (is_host_loop(*group.optimizer)) {
        throw OptionError({.what = "optimizer: L-BFGS cannot be that of a group of weights",
                           .hint = "Give it to all weights, or take another one."});
      }
    }
    if (group.patterns.empty()) {
      throw OptionError({.what = "optimizer: a group of weights without patterns",
                         .hint = "Name its weights, or a pattern such as 'fc*'."});
    }
  }
}

}  // namespace onnxgrad::train
