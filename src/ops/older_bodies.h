#ifndef ONNXGRAD_OPS_OLDER_BODIES_H_
#define ONNXGRAD_OPS_OLDER_BODIES_H_

#include <cstdint>
#include <optional>

#include "ir/graph.h"

namespace onnxgrad::ops {

/// Returns a body of an `onnxgrad` function for files whose opset lacks operators of the usual
/// body; nullopt if there is no such body or `call` does not call the function. See
/// onnx_io::OlderBodyFn.
std::optional<ir::Function> older_body(const ir::Node& call, std::int64_t opset);

}  // namespace onnxgrad::ops

#endif  // ONNXGRAD_OPS_OLDER_BODIES_H_
