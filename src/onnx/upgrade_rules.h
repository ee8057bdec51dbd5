#ifndef ONNXGRAD_ONNX_UPGRADE_RULES_H_
#define ONNXGRAD_ONNX_UPGRADE_RULES_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "ir/builder.h"

namespace onnxgrad::onnx_io {

/// The oldest ai.onnx opset that can be upgraded: what came before it has no runtime to compare
/// with.
inline constexpr std::int64_t kOldestOpset = 7;

/// Turns `node`, an ai.onnx node of `opset`, into the internal opset's form: either in place
/// (nullopt), or as other nodes, appended through `g`, with one value per output. All versions of
/// all operators since opset 7 were compared: those without a rule kept their form and meaning. `g`
/// writes to the node's graph; the node is not in its list. Throws: ModelError (what cannot be
/// expressed with its meaning kept).
std::optional<std::vector<ir::Value*>> upgrade_node(ir::Node& node, std::int64_t opset,
                                                    ir::GraphBuilder& g);

}  // namespace onnxgrad::onnx_io

#endif  // ONNXGRAD_ONNX_UPGRADE_RULES_H_
