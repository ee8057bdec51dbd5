#ifndef ONNXGRAD_OPDEF_TRIP_COUNT_H_
#define ONNXGRAD_OPDEF_TRIP_COUNT_H_

#include <cstdint>
#include <optional>

#include "ir/graph.h"

namespace onnxgrad::opdef {

/// Number of times that a node in the form of ONNX's Loop (inputs: trip count, condition, states; a
/// "body") runs its body, if nothing that a run computes can change that: the trip count is a
/// constant, and the condition is true from beginning to end.
std::optional<std::int64_t> fixed_trip_count(const ir::Node& node);

}  // namespace onnxgrad::opdef

#endif  // ONNXGRAD_OPDEF_TRIP_COUNT_H_
