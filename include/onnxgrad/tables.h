#ifndef ONNXGRAD_TABLES_H_
#define ONNXGRAD_TABLES_H_

#include <string_view>
#include <vector>

#include "onnxgrad/description.h"
#include "onnxgrad/optimizers.h"
#include "onnxgrad/schedules.h"

// What there is to choose from, as data: a description of each struct of a family, in the order of
// its variant, and structs made of such data.

namespace [[gnu::visibility("default")]] onnxgrad {

std::vector<DescriptionInfo> optimizer_table();
std::vector<DescriptionInfo> schedule_table();

/// The struct of a type ("Sgd") with these options, the others as the struct has them.
/// Throws: OptionError (an unknown type or option, a value out of its range, values that do not go
/// together).
Optimizer make_optimizer(std::string_view type, const FieldValues& options);
Schedule make_schedule(std::string_view type, const FieldValues& options);

}  // namespace onnxgrad

#endif  // ONNXGRAD_TABLES_H_
