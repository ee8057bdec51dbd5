#include "ir/type.h"

#include <utility>

#include "onnxgrad/error.h"

namespace onnxgrad::ir {

std::string Dim::to_string() const {
  if (is_static()) return std::to_string(value_);
  return symbol_.empty() || is_open() ? "?" : symbol_;
}

Type Type::tensor(DataType dtype, const Dims& dims) {
  return tensor(dtype, SymbolicShape(dims.begin(), dims.end()));
}

std::optional<Dims> Type::static_dims() const {
  if (!shape) return std::nullopt;
  std::vector<std::int64_t> dims;
  dims.reserve(shape->size());
  for (const Dim& dim : *shape) {
    if (!dim.is_static()) return std::nullopt;
    dims.push_back(dim.value());
  }
  return Dims(std::move(dims));
}

Dims Type::fixed_dims() const {
  if (std::optional<Dims> dims = static_dims()) return *std::move(dims);
  throw ShapeError({.what = "the shape of " + to_string() + " is not known as numbers",
                    .hint = "Give each of its dimensions a number in the model."});
}

std::string Type::to_string() const {
  switch (kind) {
    case Kind::kUnknown:
      return "?";
    case Kind::kSequence:
      return "sequence(" + (element ? element->to_string() : "?") + ")";
    case Kind::kOptional:
      return "optional(" + (element ? element->to_string() : "?") + ")";
    case Kind::kMap:
      return "map(" + std::string(dtype_name(dtype)) + ", " +
             (element ? element->to_string() : "?") + ")";
    case Kind::kTensor:
    case Kind::kSparseTensor:
      break;
  }
  std::string text(dtype_name(dtype));
  if (kind == Kind::kSparseTensor) text = "sparse " + text;
  if (!shape) return text + "[...]";
  text += '[';
  for (std::size_t i = 0; i < shape->size(); ++i) {
    if (i > 0) text += ", ";
    text += (*shape)[i].to_string();
  }
  return text + "]";
}

}  // namespace onnxgrad::ir
