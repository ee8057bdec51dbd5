#ifndef ONNXGRAD_TABLES_H_
#define ONNXGRAD_TABLES_H_

#include <string>
#include <string_view>
#include <vector>

#include "onnxgrad/description.h"
#include "onnxgrad/losses.h"
#include "onnxgrad/optimizers.h"
#include "onnxgrad/schedules.h"
#include "onnxgrad/trainer.h"

// The available choices as data: a description of each struct of a family, in the order of
// its variant, and structs made from such data.

namespace [[gnu::visibility("default")]] onnxgrad {

/// A built-in metric.
struct MetricInfo {
  std::string name = {};
  bool is_of_classes = false;  ///< not of numbers
  bool is_larger_better = false;
  std::string meaning = {};
};

/// Table of loss functions; their last field, `class_axis`, where present, is that of the Loss.
std::vector<DescriptionInfo> loss_table();
std::vector<DescriptionInfo> optimizer_table();
/// Averages of weights.
std::vector<DescriptionInfo> average_table();
/// Changes of training rows, see onnxgrad/augmentation.h.
std::vector<DescriptionInfo> augmentation_table();
/// A table of one struct, Penalty.
std::vector<DescriptionInfo> penalty_table();
/// A table of one struct, FitOptions: its numbers, flags and choices.
std::vector<DescriptionInfo> fit_option_table();
/// Table of metrics, sorted by name; these are the names of metric_value().
std::vector<MetricInfo> metric_table();
std::vector<DescriptionInfo> schedule_table();

/// Make the struct of a type ("Sgd") with these options, the others at their defaults.
/// Throws: OptionError (an unknown type or option, a value out of range, incompatible
/// values).
/// For losses ModelError.
LossFunction make_loss_function(std::string_view type, const FieldValues& options);
Optimizer make_optimizer(std::string_view type, const FieldValues& options);
WeightAverage make_average(std::string_view type, const FieldValues& options);
Augmentation make_augmentation(std::string_view type, const FieldValues& options);
Schedule make_schedule(std::string_view type, const FieldValues& options);
Penalty make_penalty(std::string_view type, const FieldValues& options);
FitOptions make_fit_options(std::string_view type, const FieldValues& options);

/// The name of the function in the table, regardless of its parameters; "" if it has none.
std::string loss_name(const LossFunction& function);
/// The value of a field by member name. Throws: OptionError (unknown name).
FieldValue loss_field(const LossFunction& function, std::string_view name);

}  // namespace onnxgrad

#endif  // ONNXGRAD_TABLES_H_
