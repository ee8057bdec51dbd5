#include "onnxgrad/dims.h"

#include <algorithm>
#include <utility>

#include "base/rounding.h"
#include "onnxgrad/error.h"

namespace onnxgrad {
namespace {

constexpr std::int64_t kMaxElements = std::int64_t{1} << 62;

std::string list(std::span<const std::int64_t> dims) {
  std::string text = "[";
  for (std::size_t i = 0; i < dims.size(); ++i) {
    if (i > 0) text += ", ";
    if (i == Dims::kMaxRank) return text + "...]";
    text += std::to_string(dims[i]);
  }
  return text + "]";
}

}  // namespace

Dims::Dims(std::vector<std::int64_t> dims) : dims_(std::move(dims)) {
  if (dims_.size() > kMaxRank) {
    throw ShapeError({.what = "rank " + std::to_string(dims_.size()) + " is above the limit of " +
                              std::to_string(kMaxRank),
                      .hint = "Merge dimensions with a reshape."});
  }
  bool is_empty = false;
  bool overflows = false;
  std::int64_t count = 1;
  for (const std::int64_t dim : dims_) {
    if (dim < 0)
      throw ShapeError({.what = "negative dimension in shape " + list(dims_),
                        .hint = "Give each dimension a size of 0 or more."});
    is_empty = is_empty || dim == 0;
    overflows = overflows ||
                __builtin_mul_overflow(count, std::max<std::int64_t>(dim, 1), &count) ||
                count > kMaxElements;
  }
  if (overflows)
    throw ShapeError({.what = "shape " + list(dims_) + " has too many elements",
                      .hint = "Make it smaller: their number must be below 2^63."});
  num_elements_ = is_empty ? 0 : count;
}

std::int64_t Dims::product(std::size_t first, std::size_t last) const {
  std::int64_t count = 1;
  for (std::size_t i = first; i < last; ++i) count *= dims_[i];  // a divisor of a checked product
  return count;
}

std::int64_t Dims::size_bytes(DataType dtype) const {
  const int bits =
      dtype == DataType::kString ? 8 * static_cast<int>(sizeof(std::string)) : size_bits(dtype);
  std::int64_t total_bits = 0;
  if (bits < 8) {
    if (__builtin_mul_overflow(num_elements_, std::int64_t{bits}, &total_bits)) {
      throw ShapeError({.what = "shape " + to_string() + " has too many bytes",
                        .hint = "Make it smaller: their number must be below 2^63."});
    }
    return base::ceil_div(total_bits, 8);
  }
  std::int64_t bytes = 0;
  if (__builtin_mul_overflow(num_elements_, std::int64_t{bits / 8}, &bytes) ||
      bytes > kMaxElements) {
    throw ShapeError({.what = "shape " + to_string() + " has too many bytes",
                      .hint = "Make it smaller: their number must be below 2^63."});
  }
  return bytes;
}

std::vector<std::int64_t> Dims::strides() const {
  std::vector<std::int64_t> result(dims_.size());
  std::int64_t stride = 1;
  for (std::size_t i = dims_.size(); i-- > 0;) {
    result[i] = stride;
    stride *= std::max<std::int64_t>(dims_[i], 1);  // bounded by the check in the constructor
  }
  return result;
}

std::string Dims::to_string() const { return list(dims_); }

Dims broadcast_dims(const Dims& a, const Dims& b) {
  const std::size_t rank = std::max(a.rank(), b.rank());
  std::vector<std::int64_t> result(rank);
  for (std::size_t i = 0; i < rank; ++i) {
    const std::int64_t da = i + a.rank() < rank ? 1 : a[i + a.rank() - rank];
    const std::int64_t db = i + b.rank() < rank ? 1 : b[i + b.rank() - rank];
    if (da != db && da != 1 && db != 1) {
      throw ShapeError(
          {.what = "shapes " + a.to_string() + " and " + b.to_string() + " do not broadcast",
           .hint = "Make their dimensions equal, counted from the last, or 1."});
    }
    result[i] = da == 1 ? db : da;
  }
  return Dims(std::move(result));
}

std::int64_t normalize_axis(std::int64_t axis, std::size_t rank) {
  const auto signed_rank = static_cast<std::int64_t>(rank);
  if (axis < -signed_rank || axis >= signed_rank) {
    throw ShapeError(
        {.what = "axis " + std::to_string(axis) + " of a tensor of rank " + std::to_string(rank),
         .hint = rank == 0
                     ? "Omit the axis: a scalar has none."
                     : "Give an axis from " + std::to_string(-static_cast<std::int64_t>(rank)) +
                           " to " + std::to_string(rank - 1) + "."});
  }
  return axis < 0 ? axis + signed_rank : axis;
}

}  // namespace onnxgrad
