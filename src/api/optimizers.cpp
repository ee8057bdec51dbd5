#include "onnxgrad/optimizers.h"

#include <fmt/format.h>

#include <array>
#include <string>

#include "base/check.h"

namespace onnxgrad {
namespace {

struct NamedOptimizer {
  std::string_view name;
  Optimizer optimizer;
};

const std::array<NamedOptimizer, 4>& named_optimizers() {
  static const std::array<NamedOptimizer, 4> optimizers{{
      {.name = "adam", .optimizer = Adam{}},
      {.name = "momentum", .optimizer = Sgd{.momentum = 0.9}},
      {.name = "nesterov", .optimizer = Sgd{.momentum = 0.9, .nesterov = true}},
      {.name = "sgd", .optimizer = Sgd{}},
  }};
  return optimizers;
}

struct Describe {
  std::string operator()(const Sgd& sgd) const {
    std::string text = fmt::format("Sgd(learning_rate={:g}", sgd.learning_rate);
    if (sgd.momentum != 0) text += fmt::format(", momentum={:g}", sgd.momentum);
    if (sgd.dampening != 0) text += fmt::format(", dampening={:g}", sgd.dampening);
    if (sgd.nesterov) text += ", nesterov=true";
    if (sgd.weight_decay != 0) text += fmt::format(", weight_decay={:g}", sgd.weight_decay);
    return text + ")";
  }
  std::string operator()(const Adam& adam) const {
    std::string text = fmt::format("Adam(learning_rate={:g}, beta1={:g}, beta2={:g}, epsilon={:g}",
                                   adam.learning_rate, adam.beta1, adam.beta2, adam.epsilon);
    if (adam.weight_decay != 0) text += fmt::format(", weight_decay={:g}", adam.weight_decay);
    return text + ")";
  }
};

}  // namespace

Optimizer optimizer_from_name(std::string_view name) {
  for (const NamedOptimizer& known : named_optimizers()) {
    if (known.name == name) return known.optimizer;
  }
  const auto names = optimizer_names();
  throw ModelError({.what = "there is no optimizer '" + std::string(name) + "'." +
                            base::did_you_mean(name, names),
                    .detail = "Known: " + base::quote_list(names, names.size()) + "."});
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
