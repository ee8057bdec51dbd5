#ifndef ONNXGRAD_ONNX_UPGRADE_RULES_H_
#define ONNXGRAD_ONNX_UPGRADE_RULES_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "ir/builder.h"

namespace onnxgrad::onnx_io {

/// The oldest ai.onnx opset that can be upgraded: for earlier ones there is no runtime to compare
/// with.
inline constexpr std::int64_t kOldestOpset = 7;

/// Converts `node`, an ai.onnx node of `opset`, to the internal opset's form: either in place
/// (nullopt), or as other nodes, appended through `g`, with one value per output. All versions of
/// all operators since opset 7 were compared: those without a rule kept their form and meaning. `g`
/// writes to the node's graph; the node is not in its list. Throws: ModelError (what cannot be
/// converted faithfully).
std::optional<std::vector<ir::Value*>> upgrade_node(ir::Node& node, std::int64_t opset,
                                                    ir::GraphBuilder& g);

/// The ai.onnx node computed in float32, between Casts, if operands of it are float16 or bfloat16,
/// with `if_refused` only if the internal opset's schema does not allow that; else nullopt. Results
/// as of upgrade_node.
std::optional<std::vector<ir::Value*>> in_float32(const ir::Node& node, ir::GraphBuilder& g,
                                                  bool if_refused);

}  // namespace onnxgrad::onnx_io

#endif  // ONNXGRAD_ONNX_UPGRADE_RULES_H_
