#ifndef ONNXGRAD_ONNX_PORTABLE_RULES_H_
#define ONNXGRAD_ONNX_PORTABLE_RULES_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "ir/builder.h"

namespace onnxgrad::onnx_io {

/// What stock onnxruntime's CPU provider does not run, or breaks in its optimizer, in terms of what
/// it does run: for graphs that are written for other runtimes, in `opset`. That are operators in
/// an element type or in a version that it has no kernel for, pads of some axes, negative axes of
/// reductions, Dropout without a mask.
/// `node` is of ai.onnx in the internal opset's form, the types of its inputs are known as far as
/// they can be. Returns one value per output, appended through `g`; nullopt leaves the node alone.
/// The node itself may be changed as well.
std::optional<std::vector<ir::Value*>> portable_form(ir::Node& node, std::int64_t opset,
                                                     ir::GraphBuilder& g);

/// Removes the masks of Dropout nodes that nothing reads: those nodes need another form.
void drop_unread_masks(ir::Graph& graph);

}  // namespace onnxgrad::onnx_io

#endif  // ONNXGRAD_ONNX_PORTABLE_RULES_H_
