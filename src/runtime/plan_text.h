#ifndef ONNXGRAD_RUNTIME_PLAN_TEXT_H_
#define ONNXGRAD_RUNTIME_PLAN_TEXT_H_

#include <span>
#include <string>

#include "runtime/plan.h"

namespace onnxgrad::runtime {

/// Returns PlanStep::operands for a node and the locations of its inputs and outputs.
std::string describe_operands(const ir::Node& node, std::span<const Location> args,
                              const Layouts& layouts);

}  // namespace onnxgrad::runtime

#endif  // ONNXGRAD_RUNTIME_PLAN_TEXT_H_
