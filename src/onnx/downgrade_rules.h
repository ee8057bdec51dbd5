#ifndef ONNXGRAD_ONNX_DOWNGRADE_RULES_H_
#define ONNXGRAD_ONNX_DOWNGRADE_RULES_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "ir/builder.h"

namespace onnxgrad::onnx_io {

/// The oldest opset that can be written.
inline constexpr std::int64_t kOldestTarget = 9;

/// Converts `node`, of ai.onnx and in the internal opset's form, to the form of `opset`: either in
/// place (nullopt), or as other nodes of the internal opset, appended through `g`, with one value
/// per output. The node is not in the graph's list; types of its inputs are known as far as
/// possible. Throws: ModelError (what that opset cannot express).
std::optional<std::vector<ir::Value*>> downgrade_node(ir::Node& node, std::int64_t opset,
                                                      ir::GraphBuilder& g);

}  // namespace onnxgrad::onnx_io

#endif  // ONNXGRAD_ONNX_DOWNGRADE_RULES_H_
