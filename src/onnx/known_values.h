#ifndef ONNXGRAD_ONNX_KNOWN_VALUES_H_
#define ONNXGRAD_ONNX_KNOWN_VALUES_H_

#include <onnx/onnx_pb.h>

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "ir/graph.h"

namespace onnxgrad::onnx_io {

/// Elements of small integer tensors that are known before anything runs: initializers,
/// shapes and what ONNX's data propagation derives from them (Gather, Concat, Slice, Split,
/// Squeeze, Cast, Add, ...). Elements may be numbers, symbols or unknown. Traces producers on
/// demand, so nothing goes stale when a pass rewrites the graph; an object of this class serves one
/// inference.
class KnownValues {
 public:
  explicit KnownValues(std::int64_t opset) : opset_(opset) {}

  /// The elements of a rank-0 or rank-1 integer value; nullptr if nothing is known about them.
  const onnx::TensorShapeProto* elements(const ir::Value& value);

  /// All elements of a rank-0 or rank-1 integer value, if each is a number; else undefined.
  Tensor integers(const ir::Value& value);

  /// The value as a tensor, if it is completely known and small.
  const onnx::TensorProto* tensor(const ir::Value& value);

 private:
  std::optional<onnx::TensorShapeProto> compute(const ir::Value& value);
  std::optional<onnx::TensorShapeProto> propagate(const ir::Node& node);
  bool has_small_steps(const ir::Node& node);
  std::optional<onnx::TensorShapeProto> part(const ir::Node& node, int output);
  std::optional<onnx::TensorShapeProto> range(const ir::Node& node);
  std::optional<onnx::TensorShapeProto> quotient(const ir::Node& node);

  std::int64_t opset_;
  int depth_ = 0;
  int work_ = 0;
  std::unordered_map<const ir::Value*, std::optional<onnx::TensorShapeProto>> elements_;
  std::unordered_map<const ir::Value*, std::optional<onnx::TensorProto>> tensors_;
};

/// The value as a tensor if it is constant: an initializer or, in functions, a Constant node's;
/// else nullptr.
const Tensor* constant_of(const ir::Value* value);

/// All elements of an integer value of the internal opset, if known before anything runs.
std::optional<std::vector<std::int64_t>> known_ints(const ir::Value* value);

}  // namespace onnxgrad::onnx_io

#endif  // ONNXGRAD_ONNX_KNOWN_VALUES_H_
