#ifndef ONNXGRAD_ONNX_PORTABLE_RULES_H_
#define ONNXGRAD_ONNX_PORTABLE_RULES_H_

#include <optional>
#include <vector>

#include "ir/builder.h"

namespace onnxgrad::onnx_io {

/// Operators that ONNX defines for an element type, but that stock onnxruntime's CPU provider does
/// not run in it, in terms of others that it does: for graphs that are written for other runtimes.
/// `node` is of ai.onnx in the internal opset's form, the types of its inputs are known as far as
/// they can be. Returns one value per output, appended through `g`; nullopt leaves the node alone.
std::optional<std::vector<ir::Value*>> portable_form(const ir::Node& node, ir::GraphBuilder& g);

}  // namespace onnxgrad::onnx_io

#endif  // ONNXGRAD_ONNX_PORTABLE_RULES_H_
