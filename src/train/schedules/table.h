#ifndef ONNXGRAD_TRAIN_SCHEDULES_TABLE_H_
#define ONNXGRAD_TRAIN_SCHEDULES_TABLE_H_

#include "onnxgrad/schedules.h"
#include "train/tools/descriptions.h"

namespace onnxgrad::train {

/// The table of schedules; their formulas are in train/schedules/schedule_formulas.h.
const DescriptionTable<Schedule::Rule>& schedule_rows();

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_SCHEDULES_TABLE_H_
