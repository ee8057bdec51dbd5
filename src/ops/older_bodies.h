#ifndef ONNXGRAD_OPS_OLDER_BODIES_H_
#define ONNXGRAD_OPS_OLDER_BODIES_H_

#include <cstdint>
#include <optional>

#include "ir/graph.h"

namespace onnxgrad::ops {

/// The body of an `onnxgrad` function for files of an opset that lacks operators of its usual body;
/// nullopt: that has none, or `call` is no such call. See onnx_io::OlderBodyFn.
std::optional<ir::Function> older_body(const ir::Node& call, std::int64_t opset);

}  // namespace onnxgrad::ops

#endif  // ONNXGRAD_OPS_OLDER_BODIES_H_
