#include "onnx/protos.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "onnxgrad/error.h"

namespace onnxgrad::onnx_io {
namespace {

template <class TensorType>
void shape_to_proto(const ir::Type& type, TensorType& proto) {
  proto.set_elem_type(static_cast<std::int32_t>(type.dtype));
  if (!type.shape) return;
  onnx::TensorShapeProto& shape = *proto.mutable_shape();
  for (const ir::Dim& dim : *type.shape) {
    onnx::TensorShapeProto::Dimension& out = *shape.add_dim();
    if (dim.is_static()) {
      out.set_dim_value(dim.value());
    } else if (dim.is_symbolic()) {
      out.set_dim_param(dim.symbol());
    }
  }
}

DataType dtype_from_proto(std::int32_t number) {
  const bool is_known = number >= 0 && number <= static_cast<std::int32_t>(DataType::kInt2);
  return is_known ? static_cast<DataType>(number) : DataType::kUndefined;
}

template <class TensorType>
ir::Type tensor_from_proto(ir::Type::Kind kind, const TensorType& proto) {
  ir::Type type{.kind = kind, .dtype = dtype_from_proto(proto.elem_type())};
  if (!proto.has_shape()) return type;
  const auto rank = static_cast<std::size_t>(proto.shape().dim_size());
  if (rank > Dims::kMaxRank) {
    throw ShapeError({.what = "rank " + std::to_string(rank) + ", expected at most 64",
                      .hint = "Merge dimensions with a reshape."});
  }
  ir::SymbolicShape shape;
  shape.reserve(rank);
  for (const onnx::TensorShapeProto::Dimension& dim : proto.shape().dim()) {
    if (dim.has_dim_value()) {
      if (dim.dim_value() < 0) {
        throw ShapeError(
            {.what = "a dimension of the result would be " + std::to_string(dim.dim_value()),
             .hint = "Use larger inputs, or smaller pads, kernels and slices."});
      }
      shape.emplace_back(dim.dim_value());
    } else if (dim.has_dim_param() && !dim.dim_param().empty()) {
      shape.push_back(ir::Dim::named(dim.dim_param()));
    } else {
      shape.emplace_back();
    }
  }
  type.shape = std::move(shape);
  return type;
}

}  // namespace

void to_proto(const ir::Type& type, onnx::TypeProto& proto) {
  using Kind = ir::Type::Kind;
  switch (type.kind) {
    case Kind::kUnknown:
      break;
    case Kind::kTensor:
      shape_to_proto(type, *proto.mutable_tensor_type());
      break;
    case Kind::kSparseTensor:
      shape_to_proto(type, *proto.mutable_sparse_tensor_type());
      break;
    case Kind::kSequence:
      proto.mutable_sequence_type()->mutable_elem_type();
      if (type.element)
        to_proto(*type.element, *proto.mutable_sequence_type()->mutable_elem_type());
      break;
    case Kind::kOptional:
      proto.mutable_optional_type()->mutable_elem_type();
      if (type.element)
        to_proto(*type.element, *proto.mutable_optional_type()->mutable_elem_type());
      break;
    case Kind::kMap:
      proto.mutable_map_type()->set_key_type(static_cast<std::int32_t>(type.dtype));
      if (type.element) to_proto(*type.element, *proto.mutable_map_type()->mutable_value_type());
      break;
  }
}

ir::Type from_proto(const onnx::TypeProto& proto) {
  using Kind = ir::Type::Kind;
  const auto element = [](const onnx::TypeProto& inner) {
    return std::make_shared<const ir::Type>(from_proto(inner));
  };
  switch (proto.value_case()) {
    case onnx::TypeProto::kTensorType:
      return tensor_from_proto(Kind::kTensor, proto.tensor_type());
    case onnx::TypeProto::kSparseTensorType:
      return tensor_from_proto(Kind::kSparseTensor, proto.sparse_tensor_type());
    case onnx::TypeProto::kSequenceType:
      return {.kind = Kind::kSequence, .element = element(proto.sequence_type().elem_type())};
    case onnx::TypeProto::kOptionalType:
      return {.kind = Kind::kOptional, .element = element(proto.optional_type().elem_type())};
    case onnx::TypeProto::kMapType:
      return {.kind = Kind::kMap,
              .dtype = dtype_from_proto(proto.map_type().key_type()),
              .element = element(proto.map_type().value_type())};
    default:
      return {};
  }
}

void to_proto(const Tensor& tensor, onnx::TensorProto& proto) {
  proto.set_data_type(static_cast<std::int32_t>(tensor.dtype()));
  for (const std::int64_t dim : tensor.dims()) proto.add_dims(dim);
  if (tensor.dtype() == DataType::kString) {
    for (const std::string& text : tensor.strings()) proto.add_string_data(text);
  } else {
    proto.set_raw_data(tensor.raw(), static_cast<std::size_t>(tensor.size_bytes()));
  }
}

void to_proto(const ir::Attribute& attribute, onnx::AttributeProto& proto) {
  using onnx::AttributeProto;
  proto.set_name(attribute.name);
  struct Writer {
    AttributeProto& proto;
    void operator()(std::int64_t value) const {
      proto.set_type(AttributeProto::INT);
      proto.set_i(value);
    }
    void operator()(float value) const {
      proto.set_type(AttributeProto::FLOAT);
      proto.set_f(value);
    }
    void operator()(const std::string& value) const {
      proto.set_type(AttributeProto::STRING);
      proto.set_s(value);
    }
    void operator()(const Tensor& value) const {
      proto.set_type(AttributeProto::TENSOR);
      to_proto(value, *proto.mutable_t());
    }
    void operator()(const ir::GraphPtr& /*value*/) const { proto.set_type(AttributeProto::GRAPH); }
    void operator()(const std::vector<std::int64_t>& values) const {
      proto.set_type(AttributeProto::INTS);
      for (const std::int64_t value : values) proto.add_ints(value);
    }
    void operator()(const std::vector<float>& values) const {
      proto.set_type(AttributeProto::FLOATS);
      for (const float value : values) proto.add_floats(value);
    }
    void operator()(const std::vector<std::string>& values) const {
      proto.set_type(AttributeProto::STRINGS);
      for (const std::string& value : values) proto.add_strings(value);
    }
    void operator()(const std::vector<Tensor>& values) const {
      proto.set_type(AttributeProto::TENSORS);
      for (const Tensor& value : values) to_proto(value, *proto.add_tensors());
    }
    void operator()(const std::vector<ir::GraphPtr>& /*values*/) const {
      proto.set_type(AttributeProto::GRAPHS);
    }
    void operator()(const ir::AttributeRef& value) const {
      proto.set_type(static_cast<AttributeProto::AttributeType>(value.type));
      proto.set_ref_attr_name(value.name);
    }
    void operator()(const ir::OpaqueAttribute& value) const {
      if (!proto.ParseFromString(value.bytes)) {
        throw ModelError({.what = "attribute '" + proto.name() + "' cannot be read",
                          .hint = "Export the model again: its bytes are damaged."});
      }
    }
  };
  std::visit(Writer{proto}, attribute.value);
}

}  // namespace onnxgrad::onnx_io
