#include "onnx/contrib_schemas.h"

#include <onnx/defs/shape_inference.h>

#include <string>

namespace onnxgrad::onnx_io {
namespace {

// X: [C] or [N, C]. Y: the same with one axis more, as long as the longest row of tokens.
void infer_tokenizer(onnx::InferenceContext& context) {
  onnx::updateOutputElemType(context, 0, onnx::TensorProto::STRING);
  if (!onnx::hasInputShape(context, 0)) return;
  const onnx::TensorShapeProto& shape = onnx::getInputShape(context, 0);
  if (shape.dim_size() < 1 || shape.dim_size() > 2) {
    fail_shape_inference("texts of rank ", shape.dim_size(), ", expected [C] or [N, C]");
  }
  onnx::TensorShapeProto tokens = shape;
  tokens.add_dim();
  onnx::updateOutputShape(context, 0, tokens);
}

onnx::OpSchema make_tokenizer() {
  using Attribute = onnx::AttributeProto;
  onnx::OpSchema schema;
  schema.SetName("Tokenizer")
      .SetDomain("com.microsoft")
      .SinceVersion(1)
      .Attr("mark", "", Attribute::INT)
      .Attr("mincharnum", "", Attribute::INT)
      .Attr("pad_value", "", Attribute::STRING)
      .Attr("separators", "", Attribute::STRINGS, onnx::OPTIONAL_VALUE)
      .Attr("tokenexp", "", Attribute::STRING, onnx::OPTIONAL_VALUE)
      .Input(0, "X", "", "T")
      .Output(0, "Y", "", "T")
      .TypeConstraint("T", {"tensor(string)"}, "")
      .TypeAndShapeInferenceFunction(infer_tokenizer);
  return schema;
}

constexpr SchemaRow kContribRows[] = {{"com.microsoft", "Tokenizer", 1, make_tokenizer}};

}  // namespace

std::span<const SchemaRow> contrib_schema_table() { return kContribRows; }

}  // namespace onnxgrad::onnx_io
