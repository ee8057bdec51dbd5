#include "onnx/removed_operators.h"

#include <limits>
#include <string>
#include <vector>

#include "onnxgrad/error.h"

namespace onnxgrad::onnx_io {
namespace {

using ir::GraphBuilder;
using ir::Node;
using ir::Value;
using Attribute = onnx::AttributeProto;

constexpr int kRemoved = 10;  // the first opset without them

// ------------------------------------------------------------------------------------- schemas

onnx::OpSchema make_schema(const char* op_type, int version) {
  onnx::OpSchema schema;
  schema.SetName(op_type).SetDomain("").SinceVersion(version);
  return schema;
}

onnx::OpSchema make_unary(const char* op_type) {
  onnx::OpSchema schema = make_schema(op_type, 1);
  schema.Input(0, "input", "", "T")
      .Output(0, "output", "", "T")
      .TypeConstraint("T", onnx::OpSchema::all_float_types_ir4(), "");
  return schema;
}

onnx::OpSchema make_affine() {
  return make_unary("Affine")
      .Attr("alpha", "", Attribute::FLOAT, 1.0F)
      .Attr("beta", "", Attribute::FLOAT, 0.0F);
}

onnx::OpSchema make_crop() {
  return make_unary("Crop")
      .Attr("border", "", Attribute::INTS)
      .Attr("scale", "", Attribute::INTS, onnx::OPTIONAL_VALUE);
}

onnx::OpSchema make_dynamic_slice() {
  return make_schema("DynamicSlice", 1)
      .Input(0, "data", "", "T")
      .Input(1, "starts", "", "Tind")
      .Input(2, "ends", "", "Tind")
      .Input(3, "axes", "", "Tind", onnx::OpSchema::Optional)
      .Output(0, "output", "", "T")
      .TypeConstraint("T", onnx::OpSchema::all_tensor_types_ir4(), "")
      .TypeConstraint("Tind", {"tensor(int32)", "tensor(int64)"}, "");
}

onnx::OpSchema make_image_scaler() {
  return make_unary("ImageScaler")
      .Attr("bias", "", Attribute::FLOATS)
      .Attr("scale", "", Attribute::FLOAT, 1.0F);
}

onnx::OpSchema make_parametric_softplus() {
  return make_unary("ParametricSoftplus")
      .Attr("alpha", "", Attribute::FLOAT)
      .Attr("beta", "", Attribute::FLOAT);
}

onnx::OpSchema make_scale() {
  return make_unary("Scale").Attr("scale", "", Attribute::FLOAT, 1.0F);
}

onnx::OpSchema make_scaled_tanh() {
  return make_unary("ScaledTanh")
      .Attr("alpha", "", Attribute::FLOAT)
      .Attr("beta", "", Attribute::FLOAT);
}

template <onnx::OpSchema (*kMake)()>
onnx::OpSchema make_end() {
  return kMake().SinceVersion(kRemoved).Deprecate();
}

template <onnx::OpSchema (*kMake)()>
constexpr SchemaRow first_row(const char* op_type) {
  return {"", op_type, 1, kMake};
}

template <onnx::OpSchema (*kMake)()>
constexpr SchemaRow last_row(const char* op_type) {
  return {"", op_type, kRemoved, make_end<kMake>};
}

constexpr SchemaRow kRemovedRows[] = {
    first_row<make_affine>("Affine"),
    last_row<make_affine>("Affine"),
    first_row<make_crop>("Crop"),
    last_row<make_crop>("Crop"),
    first_row<make_dynamic_slice>("DynamicSlice"),
    last_row<make_dynamic_slice>("DynamicSlice"),
    first_row<make_image_scaler>("ImageScaler"),
    last_row<make_image_scaler>("ImageScaler"),
    first_row<make_parametric_softplus>("ParametricSoftplus"),
    last_row<make_parametric_softplus>("ParametricSoftplus"),
    first_row<make_scale>("Scale"),
    last_row<make_scale>("Scale"),
    first_row<make_scaled_tanh>("ScaledTanh"),
    last_row<make_scaled_tanh>("ScaledTanh"),
};

// --------------------------------------------------------------------------------------- rules

[[noreturn]] void refuse(const Node& node, std::string what, const char* hint) {
  throw ModelError({.what = std::move(what),
                    .where = {.node = node.name, .op_type = node.op_type},
                    .hint = hint});
}

double number(const Node& node, std::string_view attribute, float fallback = 0) {
  return static_cast<double>(node.float_attribute(attribute, fallback));
}

// y = alpha x + beta
Replacement affine(Node& node, GraphBuilder& g) {
  Value* x = node.inputs[0];
  const double beta = number(node, "beta");
  return {{g.add(g.scale(x, number(node, "alpha", 1)), g.scalar_like(x, beta))}};
}

// x: [N, C, H, W] without border = (left, top, right, bottom) pixels; with scale = (height, width)
// the first so many pixels after the left and top border.
Replacement crop(Node& node, GraphBuilder& g) {
  const std::vector<std::int64_t> border = node.ints_attribute("border");
  const std::vector<std::int64_t> scale = node.ints_attribute("scale");
  if (border.size() != 4) {
    refuse(node, "attribute 'border' has " + std::to_string(border.size()) + " numbers, expected 4",
           "Give the pixels to leave out: left, top, right, bottom.");
  }
  if (!scale.empty() && scale.size() != 2) {
    refuse(node, "attribute 'scale' has " + std::to_string(scale.size()) + " numbers, expected 2",
           "Give the height and width of the result.");
  }
  constexpr std::int64_t kMaxPixels = std::int64_t{1} << 40;
  for (const std::vector<std::int64_t>* list : {&border, &scale}) {
    for (const std::int64_t pixels : *list) {
      if (pixels >= 0 && pixels <= kMaxPixels) continue;
      refuse(node, "a border or size is " + std::to_string(pixels) + " pixels",
             "Give numbers of at least 0.");
    }
  }
  const auto end_of = [&](std::size_t first, std::size_t last, std::size_t size) {
    if (!scale.empty()) return border[first] + scale[size];
    return border[last] == 0 ? std::numeric_limits<std::int64_t>::max() : -border[last];
  };
  return {{g.slice(node.inputs[0], {border[1], border[0]}, {end_of(1, 3, 0), end_of(0, 2, 1)},
                   {2, 3})}};
}

Replacement dynamic_slice(Node& node, GraphBuilder& /*g*/) {
  node.op_type = "Slice";
  return std::nullopt;
}

// y[:, c] = scale x[:, c] + bias[c]
Replacement image_scaler(Node& node, GraphBuilder& g) {
  Value* x = node.inputs[0];
  const std::vector<float> bias = node.floats_attribute("bias");
  const auto channels = static_cast<std::int64_t>(bias.size());
  const bool is_known =
      x->type.has_rank() && x->type.rank() == 4 && (*x->type.shape)[1].is_static();
  if (is_known && (*x->type.shape)[1].value() != channels) {
    refuse(node,
           "attribute 'bias' has " + std::to_string(channels) + " numbers, but the input is " +
               x->type.to_string(),
           "Give one number per channel.");
  }
  Value* shift = g.constant(Tensor::from(bias, Dims{1, channels, 1, 1}), "bias");
  return {{g.add(g.scale(x, number(node, "scale", 1)), g.cast_like(shift, x))}};
}

// y = alpha log(1 + exp(beta x))
Replacement parametric_softplus(Node& node, GraphBuilder& g) {
  Value* y = g.op("Softplus", {g.scale(node.inputs[0], number(node, "beta"))});
  return {{g.scale(y, number(node, "alpha"))}};
}

Replacement scale(Node& node, GraphBuilder& g) {
  return {{g.scale(node.inputs[0], number(node, "scale", 1))}};
}

// y = alpha tanh(beta x)
Replacement scaled_tanh(Node& node, GraphBuilder& g) {
  Value* y = g.op("Tanh", {g.scale(node.inputs[0], number(node, "beta"))});
  return {{g.scale(y, number(node, "alpha"))}};
}

constexpr RewriteRule kRemovedRules[] = {
    {"Affine", kRemoved, affine},
    {"Crop", kRemoved, crop},
    {"DynamicSlice", kRemoved, dynamic_slice},
    {"ImageScaler", kRemoved, image_scaler},
    {"ParametricSoftplus", kRemoved, parametric_softplus},
    {"Scale", kRemoved, scale},
    {"ScaledTanh", kRemoved, scaled_tanh},
};

}  // namespace

std::span<const SchemaRow> removed_schema_table() { return kRemovedRows; }
std::span<const RewriteRule> removed_operator_rules() { return kRemovedRules; }

}  // namespace onnxgrad::onnx_io
