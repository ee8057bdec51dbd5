#ifndef ONNXGRAD_TABLES_H_
#define ONNXGRAD_TABLES_H_

#include <string>
#include <string_view>
#include <vector>

#include "onnxgrad/description.h"
#include "onnxgrad/losses.h"
#include "onnxgrad/optimizers.h"
#include "onnxgrad/schedules.h"

// What there is to choose from, as data: a description of each struct of a family, in the order of
// its variant, and structs made of such data.

namespace [[gnu::visibility("default")]] onnxgrad {

/// A built-in metric.
struct MetricInfo {
  std::string name = {};
  bool is_of_classes = false;  ///< and not of numbers
  bool is_larger_better = false;
  std::string meaning = {};
};

/// Of functions; a last field `class_axis`, of losses that have one, is that of the Loss.
std::vector<DescriptionInfo> loss_table();
std::vector<DescriptionInfo> optimizer_table();
/// Sorted by name; values are those of metric_value().
std::vector<MetricInfo> metric_table();
std::vector<DescriptionInfo> schedule_table();

/// The struct of a type ("Sgd") with these options, the others as the struct has them.
/// Throws: OptionError (an unknown type or option, a value out of its range, values that do not go
/// together).
/// Of losses ModelError.
LossFunction make_loss_function(std::string_view type, const FieldValues& options);
Optimizer make_optimizer(std::string_view type, const FieldValues& options);
Schedule make_schedule(std::string_view type, const FieldValues& options);

/// The name in the table that stands for the function, whatever its numbers; "" without one.
std::string loss_name(const LossFunction& function);
/// The value of a field by the name of its member. Throws: OptionError (unknown name).
FieldValue loss_field(const LossFunction& function, std::string_view name);

}  // namespace onnxgrad

#endif  // ONNXGRAD_TABLES_H_
