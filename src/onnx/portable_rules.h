#ifndef ONNXGRAD_ONNX_PORTABLE_RULES_H_
#define ONNXGRAD_ONNX_PORTABLE_RULES_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "ir/builder.h"

namespace onnxgrad::onnx_io {

/// Rewrites a node that stock onnxruntime's CPU provider does not run, or its optimizer breaks, as
/// nodes that it does run, for graphs written for other runtimes in `opset`: operators in an
/// element type or version without a kernel, pads of some axes, negative axes of reductions,
/// Dropout without a mask. `node` is of ai.onnx in the internal opset's form; the types of its
/// inputs are known as far as possible. Returns one value per output, appended through `g`;
/// nullopt: the node is kept, possibly changed.
std::optional<std::vector<ir::Value*>> portable_form(ir::Node& node, std::int64_t opset,
                                                     ir::GraphBuilder& g);

/// Removes the masks of Dropout nodes that nothing reads: those nodes need another form.
void drop_unread_masks(ir::Graph& graph);

}  // namespace onnxgrad::onnx_io

#endif  // ONNXGRAD_ONNX_PORTABLE_RULES_H_
