#ifndef ONNXGRAD_TRAIN_OPTIMIZERS_AVERAGES_H_
#define ONNXGRAD_TRAIN_OPTIMIZERS_AVERAGES_H_

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ir/builder.h"
#include "onnxgrad/optimizers.h"
#include "train/tools/descriptions.h"

// Averages of weights, as nodes of the step: for each weight w a state "average/<w>".

namespace onnxgrad::train {

/// The table of averages.
const DescriptionTable<WeightAverage>& average_rows();

/// Name of the state with the epoch of a fit (from 1), int64, which the epoch loop sets. Only
/// averages that begin with a later epoch than the first have it.
inline constexpr const char* kAverageEpoch = "average_epoch";

/// Name of the state with the average of a weight or a running statistic.
std::string average_of(std::string_view weight);
bool is_average(std::string_view state);

/// Appends the average of `averaged`, bindings of weights and running statistics to their new
/// values; returns the bindings of the new states. `is_update`: rank 0, bool; if it is false
/// nothing changes; nullptr: always.
std::vector<ir::StateBinding> write_average(ir::GraphBuilder& g, const WeightAverage& average,
                                            std::span<const ir::StateBinding> averaged,
                                            ir::Value* is_update);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_OPTIMIZERS_AVERAGES_H_
