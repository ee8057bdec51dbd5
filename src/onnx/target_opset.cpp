#include "onnx/model_io.h"
#include "onnxgrad/error.h"

namespace onnxgrad::onnx_io {
ir::Model to_target_opset(const ir::Model& /*model*/, std::int64_t /*opset*/, bool /*inline*/) {
  throw ModelError({.what = "not there yet"});
}
}  // namespace onnxgrad::onnx_io
