#ifndef ONNXGRAD_OPDEF_FUNCTION_BODY_H_
#define ONNXGRAD_OPDEF_FUNCTION_BODY_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ir/builder.h"

namespace onnxgrad::opdef {

/// Writes the body of an `onnxgrad` function (OpDef::function_body): ai.onnx operators of the
/// internal opset only, no types, constants as Constant nodes, so that any runtime can run it on
/// float32 and float64 alike.
///
///   FunctionBody f(base_name, "axis_m1", attributes);   // "SoftmaxGrad__axis_m1"
///   Value* dy = f.input("dy");
///   ...
///   return std::move(f).finish({dx});
class FunctionBody : public ir::GraphBuilder {
 public:
  /// `key` encodes everything that the body depends on, in letters, digits and underscores; equal
  /// keys of one base must mean equal bodies. `call_attributes` are those of the calling node: the
  /// function declares them, so that the call keeps them for native kernels.
  FunctionBody(std::string_view base_name, std::string_view key,
               const std::vector<ir::Attribute>& call_attributes);

  /// Adds the next formal input.
  ir::Value* input(std::string_view name) { return graph().add_input(name, ir::Type{}); }

  ir::Function finish(std::vector<ir::Value*> outputs) &&;

 private:
  explicit FunctionBody(std::shared_ptr<ir::Graph> body);
  ir::Function function_;
};

/// Text of a list in the key of a function: "3x3" for {3, 3}, "m1" for {-1}, "" for {}.
std::string key_of(std::span<const std::int64_t> values);

}  // namespace onnxgrad::opdef

#endif  // ONNXGRAD_OPDEF_FUNCTION_BODY_H_
