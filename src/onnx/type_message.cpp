#include "onnx/type_message.h"

#include <onnx/onnx_pb.h>

#include <memory>
#include <string>
#include <utility>

#include "onnxgrad/error.h"

namespace onnxgrad::onnx_io {
namespace {

using Kind = ir::Type::Kind;
constexpr int kMaxTypeNesting = 32;

ir::Type read_nested(std::string_view bytes, int depth);

// The field of a sequence, an optional or a map that holds the type of its elements.
int element_field_of(Kind kind) {
  if (kind == Kind::kMap) return onnx::TypeProto_Map::kValueTypeFieldNumber;
  return onnx::TypeProto_Sequence::kElemTypeFieldNumber;
}

DataType read_dtype(const WireReader& in) {
  const std::int32_t number = in.int32();
  const bool is_known = number >= 0 && number <= static_cast<std::int32_t>(DataType::kInt2);
  return is_known ? static_cast<DataType>(number) : DataType::kUndefined;
}

ir::Dim read_dim(std::string_view bytes) {
  using Field = onnx::TensorShapeProto_Dimension;
  ir::Dim dim;
  for (WireReader in(bytes); in.next();) {
    if (in.field() == Field::kDimValueFieldNumber) {
      dim = in.int64() < 0 ? ir::Dim() : ir::Dim(in.int64());
    } else if (in.field() == Field::kDimParamFieldNumber) {
      dim = in.text().empty() ? ir::Dim() : ir::Dim::named(std::string(in.text()));
    }
  }
  return dim;
}

ir::SymbolicShape read_shape(std::string_view bytes) {
  ir::SymbolicShape shape;
  for (WireReader in(bytes); in.next();) {
    if (in.field() != onnx::TensorShapeProto::kDimFieldNumber) continue;
    if (shape.size() == Dims::kMaxRank) {
      throw ShapeError({.what = "a type with more than 64 dimensions",
                        .hint = "Merge dimensions with a reshape."});
    }
    shape.push_back(read_dim(in.bytes()));
  }
  return shape;
}

ir::Type read_tensor(Kind kind, std::string_view bytes) {
  using Field = onnx::TypeProto_Tensor;  // TypeProto_SparseTensor has the same numbers
  ir::Type type{.kind = kind};
  for (WireReader in(bytes); in.next();) {
    if (in.field() == Field::kElemTypeFieldNumber) type.dtype = read_dtype(in);
    if (in.field() == Field::kShapeFieldNumber) type.shape = read_shape(in.bytes());
  }
  return type;
}

// Sequences, optionals and maps: field 1 is the element type or the key, the last one a type.
ir::Type read_container(Kind kind, std::string_view bytes, int depth) {
  ir::Type type{.kind = kind};
  const int element_field = element_field_of(kind);
  for (WireReader in(bytes); in.next();) {
    if (in.field() == element_field) {
      type.element = std::make_shared<const ir::Type>(read_nested(in.bytes(), depth + 1));
    } else if (kind == Kind::kMap && in.field() == onnx::TypeProto_Map::kKeyTypeFieldNumber) {
      type.dtype = read_dtype(in);
    }
  }
  return type;
}

ir::Type read_nested(std::string_view bytes, int depth) {
  using Field = onnx::TypeProto;
  if (depth > kMaxTypeNesting)
    throw ModelError({.what = "a type nests deeper than 32 levels",
                      .hint = "Use tensors instead of sequences of sequences."});
  ir::Type type;
  for (WireReader in(bytes); in.next();) {
    switch (in.field()) {
      case Field::kTensorTypeFieldNumber:
        type = read_tensor(Kind::kTensor, in.bytes());
        break;
      case Field::kSparseTensorTypeFieldNumber:
        type = read_tensor(Kind::kSparseTensor, in.bytes());
        break;
      case Field::kSequenceTypeFieldNumber:
        type = read_container(Kind::kSequence, in.bytes(), depth);
        break;
      case Field::kOptionalTypeFieldNumber:
        type = read_container(Kind::kOptional, in.bytes(), depth);
        break;
      case Field::kMapTypeFieldNumber:
        type = read_container(Kind::kMap, in.bytes(), depth);
        break;
      default:
        break;
    }
  }
  return type;
}

void write_dim(WireWriter& out, const ir::Dim& dim) {
  using Field = onnx::TensorShapeProto_Dimension;
  if (dim.is_static()) {
    out.int64(Field::kDimValueFieldNumber, dim.value());
  } else if (!dim.is_open()) {
    out.text(Field::kDimParamFieldNumber, dim.symbol());
  }
}

void write_fields(WireWriter& out, const ir::Type& type) {
  using Field = onnx::TypeProto;
  const auto write_element = [&](int field) {
    out.message(field, [&](WireWriter& container) {
      if (type.kind == Kind::kMap) {
        container.int64(onnx::TypeProto_Map::kKeyTypeFieldNumber,
                        static_cast<std::int64_t>(type.dtype));
      }
      if (type.element) write_type(container, element_field_of(type.kind), *type.element);
    });
  };
  switch (type.kind) {
    case Kind::kUnknown:
      return;
    case Kind::kTensor:
    case Kind::kSparseTensor:
      out.message(type.kind == Kind::kTensor ? Field::kTensorTypeFieldNumber
                                             : Field::kSparseTensorTypeFieldNumber,
                  [&](WireWriter& tensor) {
                    tensor.int64(onnx::TypeProto_Tensor::kElemTypeFieldNumber,
                                 static_cast<std::int64_t>(type.dtype));
                    if (!type.shape) return;
                    tensor.message(onnx::TypeProto_Tensor::kShapeFieldNumber, [&](WireWriter& s) {
                      for (const ir::Dim& dim : *type.shape) {
                        s.message(onnx::TensorShapeProto::kDimFieldNumber,
                                  [&](WireWriter& d) { write_dim(d, dim); });
                      }
                    });
                  });
      return;
    case Kind::kSequence:
      return write_element(Field::kSequenceTypeFieldNumber);
    case Kind::kOptional:
      return write_element(Field::kOptionalTypeFieldNumber);
    case Kind::kMap:
      return write_element(Field::kMapTypeFieldNumber);
  }
}

}  // namespace

ir::Type read_type(std::string_view bytes) { return read_nested(bytes, 0); }

void write_type(WireWriter& out, int field, const ir::Type& type) {
  out.message(field, [&](WireWriter& message) { write_fields(message, type); });
}

}  // namespace onnxgrad::onnx_io
