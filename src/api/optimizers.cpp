#include "onnxgrad/optimizers.h"

#include "onnxgrad/tables.h"
#include "train/optimizers/averages.h"
#include "train/optimizers/table.h"

namespace onnxgrad {

std::vector<DescriptionInfo> optimizer_table() { return train::optimizer_rows().infos(); }

Optimizer optimizer_from_name(std::string_view name) {
  return train::optimizer_rows().from_name(name);
}

std::vector<std::string> optimizer_names() { return train::optimizer_rows().names(); }

Optimizer make_optimizer(std::string_view type, const FieldValues& options) {
  return train::optimizer_rows().make(type, options);
}

std::vector<DescriptionInfo> average_table() { return train::average_rows().infos(); }

WeightAverage make_average(std::string_view type, const FieldValues& options) {
  return train::average_rows().make(type, options);
}

double learning_rate_of(const Optimizer& optimizer) {
  return std::visit([](const auto& spec) { return spec.learning_rate; }, optimizer);
}

std::string to_string(const Optimizer& optimizer) {
  return train::optimizer_rows().to_string(optimizer);
}

}  // namespace onnxgrad
