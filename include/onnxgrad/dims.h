#ifndef ONNXGRAD_DIMS_H_
#define ONNXGRAD_DIMS_H_

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include "onnxgrad/dtype.h"

namespace [[gnu::visibility("default")]] onnxgrad {

/// The shape of a tensor: up to 64 non-negative dimensions. Every product of dimensions in onnxgrad
/// goes through this class, which refuses overflow.
class Dims {
 public:
  static constexpr std::size_t kMaxRank = 64;

  Dims() = default;  ///< rank 0: a scalar
  Dims(std::initializer_list<std::int64_t> dims) : Dims(std::vector<std::int64_t>(dims)) {}
  /// Throws: ShapeError (negative dimension, rank above 64, more than 2^62 elements).
  explicit Dims(std::vector<std::int64_t> dims);

  std::size_t rank() const { return dims_.size(); }
  std::int64_t operator[](std::size_t axis) const { return dims_[axis]; }
  std::span<const std::int64_t> values() const { return dims_; }
  auto begin() const { return dims_.begin(); }
  auto end() const { return dims_.end(); }
  bool operator==(const Dims&) const = default;

  /// Product of all dimensions; 1 for rank 0. Cannot overflow.
  std::int64_t num_elements() const { return num_elements_; }
  /// Product of the dimensions in [first, last).
  std::int64_t product(std::size_t first, std::size_t last) const;
  /// Bytes of a dense tensor, sub-byte types packed. Throws: ShapeError (above 2^62).
  std::int64_t size_bytes(DataType dtype) const;
  /// Row-major strides in elements.
  std::vector<std::int64_t> strides() const;
  /// Text such as "[2, 3]".
  std::string to_string() const;

 private:
  std::vector<std::int64_t> dims_;
  std::int64_t num_elements_ = 1;
};

/// The shape of a and b broadcast together as in NumPy. Throws: ShapeError.
Dims broadcast_dims(const Dims& a, const Dims& b);

/// Maps an axis in [-rank, rank) to [0, rank). Throws: ShapeError naming both.
std::int64_t normalize_axis(std::int64_t axis, std::size_t rank);

}  // namespace onnxgrad

#endif  // ONNXGRAD_DIMS_H_
