#ifndef ONNXGRAD_IR_TYPE_H_
#define ONNXGRAD_IR_TYPE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "onnxgrad/dims.h"
#include "onnxgrad/dtype.h"

namespace onnxgrad::ir {

/// One dimension of a value's shape: a number, a symbol such as "N", or unknown.
class Dim {
 public:
  Dim() = default;                            ///< unknown
  Dim(std::int64_t value) : value_(value) {}  // NOLINT(google-explicit-constructor)
  static Dim named(std::string symbol) {
    Dim dim;
    dim.symbol_ = std::move(symbol);
    return dim;
  }
  /// A symbol of our own for a dimension that the file leaves unknown, so that it equals itself.
  /// Written to files as an unknown dimension.
  static Dim open(std::string_view unique_name) { return named("?" + std::string(unique_name)); }
  bool is_open() const { return symbol_.starts_with('?'); }
  bool is_static() const { return value_ >= 0; }
  bool is_symbolic() const { return !symbol_.empty(); }
  std::int64_t value() const { return value_; }
  const std::string& symbol() const { return symbol_; }
  /// True if both dimensions are certain to be equal at run time.
  bool surely_equals(const Dim& other) const {
    return is_static() ? value_ == other.value_ : is_symbolic() && symbol_ == other.symbol_;
  }
  bool operator==(const Dim&) const = default;
  std::string to_string() const;  ///< "3", "N" or "?"

 private:
  std::int64_t value_ = -1;
  std::string symbol_;
};

using SymbolicShape = std::vector<Dim>;

/// The type of a value, as far as it is known before it is computed.
struct Type {
  enum class Kind : std::uint8_t { kUnknown, kTensor, kSparseTensor, kSequence, kOptional, kMap };

  Kind kind = Kind::kUnknown;
  DataType dtype = DataType::kUndefined;    ///< element type of a tensor; type of a map's keys
  std::optional<SymbolicShape> shape = {};  ///< shape of a tensor; nullopt: unknown rank
  /// Type of the elements of a sequence or optional, or of the values of a map.
  std::shared_ptr<const Type> element = {};

  static Type tensor(DataType dtype) { return {.kind = Kind::kTensor, .dtype = dtype}; }
  static Type tensor(DataType dtype, SymbolicShape shape) {
    return {.kind = Kind::kTensor, .dtype = dtype, .shape = std::move(shape)};
  }
  static Type tensor(DataType dtype, const Dims& dims);

  bool is_tensor() const { return kind == Kind::kTensor; }
  bool has_rank() const { return shape.has_value(); }
  std::size_t rank() const { return shape ? shape->size() : 0; }
  /// The shape as numbers, if every dimension is a number. Never dereferenced unchecked: see
  /// fixed_dims() and scripts/check_optionals.py.
  std::optional<Dims> static_dims() const;
  /// The shape as numbers, for a value that must have one. Throws: ShapeError (an unknown rank, a
  /// dimension that is no number).
  Dims fixed_dims() const;
  std::string to_string() const;  ///< "float32[N, 10]"
};

}  // namespace onnxgrad::ir

#endif  // ONNXGRAD_IR_TYPE_H_
