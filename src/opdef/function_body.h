#ifndef ONNXGRAD_OPDEF_FUNCTION_BODY_H_
#define ONNXGRAD_OPDEF_FUNCTION_BODY_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"

namespace onnxgrad::opdef {

/// Writes the body of an `onnxgrad` function (OpDef::function_body): ai.onnx operators of the
/// internal opset only, no types, constants as Constant nodes, so that any runtime can run it on
/// float32 and float64 alike.
///
///   FunctionBody f(base_name, "axis_m1", attributes);   // "SoftmaxGrad__axis_m1"
///   Value* dy = f.input("dy");
///   ...
///   return std::move(f).finish({dx});
class FunctionBody {
 public:
  /// `key` says everything that the body depends on, in letters, digits and underscores; equal keys
  /// of one base must mean equal bodies. `call_attributes` are those of the calling node: the
  /// function declares them, so that the call keeps them for native kernels.
  FunctionBody(std::string_view base_name, std::string_view key,
               const std::vector<ir::Attribute>& call_attributes);

  /// The next formal input.
  ir::Value* input(std::string_view name);

  ir::Value* op(std::string_view op_type, std::vector<ir::Value*> inputs,
                std::vector<ir::Attribute> attributes = {});
  std::vector<ir::Value*> ops(std::string_view op_type, std::vector<ir::Value*> inputs,
                              std::size_t num_outputs, std::vector<ir::Attribute> attributes = {});

  ir::Value* constant(Tensor tensor);
  ir::Value* ints(const std::vector<std::int64_t>& values);  ///< int64 [n]
  ir::Value* int_scalar(std::int64_t value);                 ///< int64 []
  /// Rank 0, of `like`'s dtype: a double through CastLike.
  ir::Value* scalar_like(ir::Value* like, double value);

  ir::Value* add(ir::Value* a, ir::Value* b) { return op("Add", {a, b}); }
  ir::Value* sub(ir::Value* a, ir::Value* b) { return op("Sub", {a, b}); }
  ir::Value* mul(ir::Value* a, ir::Value* b) { return op("Mul", {a, b}); }
  ir::Value* div(ir::Value* a, ir::Value* b) { return op("Div", {a, b}); }
  ir::Value* reshape(ir::Value* x, ir::Value* shape);  ///< allowzero = 1: shape is exact
  ir::Value* shape_of(ir::Value* x) { return op("Shape", {x}); }
  /// Dimensions [first, last) of x as int64 [last - first]; negative ones count from the end.
  ir::Value* dims_of(ir::Value* x, std::int64_t first, std::int64_t last);
  ir::Value* concat(std::vector<ir::Value*> parts, std::int64_t axis);
  ir::Value* transpose(ir::Value* x, const std::vector<std::int64_t>& perm);
  ir::Value* unsqueeze(ir::Value* x, const std::vector<std::int64_t>& axes);
  ir::Value* reduce_sum(ir::Value* x, const std::vector<std::int64_t>& axes, bool keepdims);

  ir::Function finish(std::vector<ir::Value*> outputs) &&;

 private:
  ir::Function function_;
};

/// "3x3" for {3, 3}, "m1" for {-1}, "" for {}: lists in the key of a function.
std::string key_of(std::span<const std::int64_t> values);

}  // namespace onnxgrad::opdef

#endif  // ONNXGRAD_OPDEF_FUNCTION_BODY_H_
