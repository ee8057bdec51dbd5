#ifndef ONNXGRAD_IR_KEPT_NODES_H_
#define ONNXGRAD_IR_KEPT_NODES_H_

#include <string_view>

#include "ir/builder.h"

namespace onnxgrad::ir {

/// An attribute: 1 if other processes need the node to run. eliminate_dead_nodes() keeps it.
inline constexpr std::string_view kForOthers = "for_others";

inline bool runs_for_others(const Node& node) {
  const bool is_ours = node.domain == kFunctionDomain || node.domain == kFusedDomain;
  return is_ours && node.int_attribute(kForOthers, 0) != 0;
}

}  // namespace onnxgrad::ir

#endif  // ONNXGRAD_IR_KEPT_NODES_H_
