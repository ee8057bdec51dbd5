#include "onnxgrad/tensor.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "base/f16.h"
#include "base/memory_budget.h"
#include "base/visit_types.h"

namespace onnxgrad {
namespace {

template <class Visitor>
void visit_arithmetic(DataType dtype, Visitor&& visit) {
  if (!base::visit_numbers(dtype, visit)) {
    throw DataError({.what = "elements of type " + std::string(dtype_name(dtype)) +
                             " cannot be converted to numbers",
                     .hint = "Pass an array of numbers; strings must be encoded first."});
  }
}

// static_cast where defined; values out of range and NaN become the nearest bound and 0.
template <class To, class From>
To convert(From value) {
  if constexpr (std::is_same_v<To, bool>) {
    return value != From{};
  } else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    if (std::isnan(value)) return To{};
    constexpr auto kLow = static_cast<double>(std::numeric_limits<To>::min());
    constexpr auto kHigh = static_cast<double>(std::numeric_limits<To>::max());
    const auto wide = static_cast<double>(value);
    if (wide <= kLow) return std::numeric_limits<To>::min();
    if (wide >= kHigh) return std::numeric_limits<To>::max();
    return static_cast<To>(value);
  } else {
    return static_cast<To>(value);
  }
}

template <class Half>
Tensor widened_from(const Tensor& tensor) {
  Tensor result = Tensor::empty(DataType::kFloat32, tensor.dims());
  const auto* bits = reinterpret_cast<const Half*>(tensor.raw());
  for (float& element : result.mutable_data<float>()) element = base::to_float(*bits++);
  return result;
}

// float16 or bfloat16 as float32.
Tensor widened(const Tensor& tensor) {
  return tensor.dtype() == DataType::kFloat16 ? widened_from<base::Float16>(tensor)
                                              : widened_from<base::Bfloat16>(tensor);
}

// float64 as float16 or bfloat16.
Tensor narrowed(const Tensor& tensor, DataType dtype) {
  Tensor result = Tensor::empty(dtype, tensor.dims());
  auto* bits = reinterpret_cast<std::uint16_t*>(result.mutable_raw());
  for (const double element : tensor.data<double>()) {
    const float single = base::to_odd_float(element);
    *bits++ = dtype == DataType::kFloat16 ? base::to_float16(single).bits
                                          : base::to_bfloat16(single).bits;
  }
  return result;
}

template <class To>
std::vector<To> converted(const Tensor& tensor) {
  if (is_f16(tensor.dtype())) return converted<To>(widened(tensor));
  std::vector<To> result(static_cast<std::size_t>(tensor.num_elements()));
  visit_arithmetic(tensor.dtype(), [&](auto example) {
    using T = decltype(example);
    std::ranges::transform(tensor.data<T>(), result.begin(),
                           [](T value) { return convert<To>(value); });
  });
  return result;
}

}  // namespace

Tensor Tensor::empty_for(std::size_t count, DataType dtype, Dims dims) {
  if (static_cast<std::int64_t>(count) != dims.num_elements()) {
    throw ShapeError({.what = std::to_string(count) + " values for shape " + dims.to_string(),
                      .hint = "Give one value for each element."});
  }
  return empty(dtype, std::move(dims));
}

Tensor Tensor::empty(DataType dtype, Dims dims) {
  Tensor tensor;
  tensor.dtype_ = dtype;
  tensor.dims_ = std::move(dims);
  const std::int64_t bytes = tensor.dims_.size_bytes(dtype);
  if (dtype == DataType::kString) {
    auto strings =
        std::make_shared<std::vector<std::string>>(static_cast<std::size_t>(tensor.num_elements()));
    tensor.data_ = reinterpret_cast<std::byte*>(strings->data());
    tensor.owner_ = std::move(strings);
    return tensor;
  }
  std::shared_ptr<std::byte> memory = base::allocate_aligned(bytes);
  tensor.data_ = memory.get();
  tensor.owner_ = std::move(memory);
  return tensor;
}

Tensor Tensor::zeros(DataType dtype, Dims dims) {
  if (dtype == DataType::kString) return empty(dtype, std::move(dims));
  Tensor tensor;
  tensor.dtype_ = dtype;
  tensor.dims_ = std::move(dims);
  std::shared_ptr<std::byte> memory = base::allocate_zeros(tensor.dims_.size_bytes(dtype));
  tensor.data_ = memory.get();
  tensor.owner_ = std::move(memory);
  return tensor;
}

Tensor Tensor::from_strings(std::vector<std::string> values, Dims dims) {
  if (static_cast<std::int64_t>(values.size()) != dims.num_elements()) {
    throw ShapeError(
        {.what = std::to_string(values.size()) + " strings for shape " + dims.to_string(),
         .hint = "Give one string for each element."});
  }
  Tensor tensor;
  tensor.dtype_ = DataType::kString;
  tensor.dims_ = std::move(dims);
  auto strings = std::make_shared<std::vector<std::string>>(std::move(values));
  tensor.data_ = reinterpret_cast<std::byte*>(strings->data());
  tensor.owner_ = std::move(strings);
  return tensor;
}

Tensor Tensor::scalar_of(DataType dtype, double value) { return scalar(value).cast(dtype); }

Tensor Tensor::view(DataType dtype, Dims dims, void* data, std::shared_ptr<const void> owner) {
  Tensor tensor;
  tensor.dtype_ = dtype;
  tensor.dims_ = std::move(dims);
  tensor.data_ = static_cast<std::byte*>(data);
  tensor.owner_ = std::move(owner);
  return tensor;
}

std::span<const std::string> Tensor::strings() const {
  expect_dtype(DataType::kString);
  return {reinterpret_cast<const std::string*>(data_), static_cast<std::size_t>(num_elements())};
}

std::span<std::string> Tensor::mutable_strings() {
  expect_dtype(DataType::kString);
  return {reinterpret_cast<std::string*>(data_), static_cast<std::size_t>(num_elements())};
}

Tensor Tensor::reshaped(Dims dims) const {
  if (dims.num_elements() != num_elements()) {
    throw ShapeError(
        {.what = "shape " + dims_.to_string() + " cannot be reshaped to " + dims.to_string(),
         .hint = "Choose a shape with the same number of elements."});
  }
  Tensor result = *this;
  result.dims_ = std::move(dims);
  return result;
}

Tensor Tensor::clone() const {
  if (!is_defined()) return {};
  if (dtype_ == DataType::kString) {
    const auto values = strings();
    return from_strings({values.begin(), values.end()}, dims_);
  }
  Tensor result = empty(dtype_, dims_);
  if (size_bytes() > 0) std::memcpy(result.data_, data_, static_cast<std::size_t>(size_bytes()));
  return result;
}

bool Tensor::equals(const Tensor& other) const {
  if (dtype_ != other.dtype_ || dims_ != other.dims_) return false;
  if (dtype_ == DataType::kUndefined || num_elements() == 0) return true;
  if (dtype_ == DataType::kString) return std::ranges::equal(strings(), other.strings());
  return std::memcmp(data_, other.data_, static_cast<std::size_t>(size_bytes())) == 0;
}

std::vector<double> Tensor::to_doubles() const { return converted<double>(*this); }

std::vector<std::int64_t> Tensor::to_int64s() const {
  if (!is_integer(dtype_) && dtype_ != DataType::kBool) {
    throw DataError({.what = "expected an integer tensor, given " + std::string(dtype_name(dtype_)),
                     .hint = "Convert it to int64."});
  }
  return converted<std::int64_t>(*this);
}

Tensor Tensor::cast(DataType dtype) const {
  if (dtype == dtype_) return *this;
  if (is_f16(dtype_)) return widened(*this).cast(dtype);
  if (is_f16(dtype)) return narrowed(cast(DataType::kFloat64), dtype);
  Tensor result = empty(dtype, dims_);
  visit_arithmetic(dtype_, [&](auto from) {
    using From = decltype(from);
    visit_arithmetic(dtype, [&](auto to) {
      using To = decltype(to);
      std::ranges::transform(data<From>(), result.mutable_data<To>().begin(),
                             [](From value) { return convert<To>(value); });
    });
  });
  return result;
}

void Tensor::expect_dtype(DataType wanted) const {
  if (dtype_ == wanted) return;
  throw DataError({.what = "elements of type " + std::string(dtype_name(dtype_)) +
                           " cannot be read as " + std::string(dtype_name(wanted)),
                   .hint = "Read them as " + std::string(dtype_name(dtype_)) +
                           ", or convert the tensor with cast()."});
}

}  // namespace onnxgrad
