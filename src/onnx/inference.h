#ifndef ONNXGRAD_ONNX_INFERENCE_H_
#define ONNXGRAD_ONNX_INFERENCE_H_

#include <memory>

#include "ir/builder.h"

namespace onnxgrad::onnx_io {

/// Type inference with ONNX's schemas at the internal opset, node by node and without converting
/// whole models to protobuf messages. Provides values of initializers (and of Shape of static
/// shapes) where a schema needs them. Calls of model-local functions are inferred through their
/// bodies, with bounded depth. `model` must outlive it. Thread-safe. Throws (infer): ShapeError,
/// ModelError; every exception of ONNX's library is mapped to one of ours.
std::unique_ptr<ir::TypeInferer> make_type_inferer(const ir::Model& model);

/// Type inference for a model of another opset, such as that of a file.
std::unique_ptr<ir::TypeInferer> make_file_inferer(const ir::Model& model);

/// Infers all values of `graph` and its subgraphs, in order.
void infer_types(ir::Graph& graph, const ir::TypeInferer& inferer);

}  // namespace onnxgrad::onnx_io

#endif  // ONNXGRAD_ONNX_INFERENCE_H_
