#include "onnxgrad/optimizers.h"

#include <fmt/format.h>

#include <array>
#include <string>

#include "base/check.h"
#include "onnxgrad/option_error.h"

namespace onnxgrad {
namespace {

struct NamedOptimizer {
  std::string_view name;
  Optimizer optimizer;
};

const std::array<NamedOptimizer, 10>& named_optimizers() {
  static const std::array<NamedOptimizer, 10> optimizers{{
      {.name = "adagrad", .optimizer = Adagrad{}},
      {.name = "adam", .optimizer = Adam{}},
      {.name = "adamw", .optimizer = AdamW{}},
      {.name = "lamb", .optimizer = Lamb{}},
      {.name = "lbfgs", .optimizer = Lbfgs{}},
      {.name = "lion", .optimizer = Lion{}},
      {.name = "momentum", .optimizer = Sgd{.momentum = 0.9}},
      {.name = "nesterov", .optimizer = Sgd{.momentum = 0.9, .nesterov = true}},
      {.name = "rmsprop", .optimizer = RmsProp{}},
      {.name = "sgd", .optimizer = Sgd{}},
  }};
  return optimizers;
}

/// "Name(learning_rate=0.1, ...)", with what is added.
class Text {
 public:
  Text(std::string_view name, double learning_rate)
      : text_(fmt::format("{}(learning_rate={:g}", name, learning_rate)) {}

  Text& add(std::string_view name, double value) {
    text_ += fmt::format(", {}={:g}", name, value);
    return *this;
  }
  Text& add_unless_zero(std::string_view name, double value) {
    return value == 0 ? *this : add(name, value);
  }
  Text& add_flag(std::string_view name, bool value) {
    if (value) text_ += fmt::format(", {}=true", name);
    return *this;
  }
  std::string finish() const { return text_ + ")"; }

 private:
  std::string text_;
};

struct Describe {
  std::string operator()(const Sgd& sgd) const {
    return Text("Sgd", sgd.learning_rate)
        .add_unless_zero("momentum", sgd.momentum)
        .add_unless_zero("dampening", sgd.dampening)
        .add_flag("nesterov", sgd.nesterov)
        .add_unless_zero("weight_decay", sgd.weight_decay)
        .add_flag("decoupled_weight_decay", sgd.decoupled_weight_decay)
        .add_flag("rate_in_velocity", sgd.rate_in_velocity)
        .finish();
  }
  std::string operator()(const Adam& adam) const {
    return moments("Adam", adam).add_flag("amsgrad", adam.amsgrad).finish();
  }
  std::string operator()(const AdamW& adamw) const {
    return moments("AdamW", adamw).add_flag("amsgrad", adamw.amsgrad).finish();
  }
  std::string operator()(const Lamb& lamb) const { return moments("Lamb", lamb).finish(); }
  std::string operator()(const Adagrad& adagrad) const {
    return Text("Adagrad", adagrad.learning_rate)
        .add_unless_zero("rate_decay", adagrad.rate_decay)
        .add_unless_zero("weight_decay", adagrad.weight_decay)
        .add_unless_zero("initial_accumulator", adagrad.initial_accumulator)
        .add("epsilon", adagrad.epsilon)
        .finish();
  }
  std::string operator()(const RmsProp& rmsprop) const {
    return Text("RmsProp", rmsprop.learning_rate)
        .add("alpha", rmsprop.alpha)
        .add("epsilon", rmsprop.epsilon)
        .add_unless_zero("weight_decay", rmsprop.weight_decay)
        .add_unless_zero("momentum", rmsprop.momentum)
        .add_flag("centered", rmsprop.centered)
        .finish();
  }
  std::string operator()(const Lion& lion) const {
    return Text("Lion", lion.learning_rate)
        .add("beta1", lion.beta1)
        .add("beta2", lion.beta2)
        .add_unless_zero("weight_decay", lion.weight_decay)
        .finish();
  }
  std::string operator()(const Lbfgs& lbfgs) const {
    return Text("Lbfgs", lbfgs.learning_rate)
        .add("max_iterations", static_cast<double>(lbfgs.max_iterations))
        .add("history", static_cast<double>(lbfgs.history))
        .finish();
  }
  std::string operator()(const UserOptimizer& user) const {
    return Text("UserOptimizer", user.learning_rate)
        .add("model_bytes", user.model == nullptr ? 0 : static_cast<double>(user.model->size()))
        .add_unless_zero("weight_decay", user.weight_decay)
        .finish();
  }

 private:
  static Text moments(std::string_view name, const auto& spec) {
    return Text(name, spec.learning_rate)
        .add("beta1", spec.beta1)
        .add("beta2", spec.beta2)
        .add("epsilon", spec.epsilon)
        .add_unless_zero("weight_decay", spec.weight_decay);
  }
};

}  // namespace

Optimizer optimizer_from_name(std::string_view name) {
  for (const NamedOptimizer& known : named_optimizers()) {
    if (known.name == name) return known.optimizer;
  }
  const auto names = optimizer_names();
  throw OptionError({.what = "there is no optimizer '" + std::string(name) + "'",
                     .detail = "Known: " + base::quote_list(names, names.size()) + ".",
                     .hint = base::nearest_or(name, names)});
}

std::vector<std::string> optimizer_names() {
  std::vector<std::string> names;
  for (const NamedOptimizer& known : named_optimizers()) names.emplace_back(known.name);
  return names;
}

double learning_rate_of(const Optimizer& optimizer) {
  return std::visit([](const auto& spec) { return spec.learning_rate; }, optimizer);
}

std::string to_string(const Optimizer& optimizer) { return std::visit(Describe{}, optimizer); }

}  // namespace onnxgrad
