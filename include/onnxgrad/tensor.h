#ifndef ONNXGRAD_TENSOR_H_
#define ONNXGRAD_TENSOR_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "onnxgrad/dims.h"
#include "onnxgrad/dtype.h"
#include "onnxgrad/error.h"

namespace [[gnu::visibility("default")]] onnxgrad {

/// A dense row-major array in host memory. Copying a Tensor shares its data; data that may be
/// shared is written only through mutable_data(), which the owner calls before handing out copies.
/// bool is one byte (0 or 1); 4-bit and 2-bit types are packed as in ONNX's raw_data.
class Tensor {
 public:
  Tensor() = default;  ///< no data: dtype() is kUndefined

  /// Uninitialised memory, aligned to 64 bytes; strings are empty.
  /// Throws: ShapeError (too large), DeviceError (the memory budget of this thread is exhausted).
  static Tensor empty(DataType dtype, Dims dims);
  /// A tensor of zeros (or empty strings).
  static Tensor zeros(DataType dtype, Dims dims);
  /// A copy of `values`. Throws: ShapeError if their number does not match `dims`.
  template <class T>
  static Tensor from(std::span<const T> values, Dims dims);
  template <class T>
  static Tensor from(const std::vector<T>& values, Dims dims) {
    return from(std::span<const T>(values), std::move(dims));
  }
  static Tensor from_strings(std::vector<std::string> values, Dims dims);
  /// A rank-0 tensor that holds `value`.
  template <class T>
  static Tensor scalar(T value) {
    return from(std::span<const T>(&value, 1), Dims{});
  }
  /// A rank-0 tensor of floating or integer type `dtype` holding `value` (converted).
  static Tensor scalar_of(DataType dtype, double value);
  /// A view: `data` is not copied and `owner` keeps it alive.
  static Tensor view(DataType dtype, Dims dims, void* data, std::shared_ptr<const void> owner);

  DataType dtype() const { return dtype_; }
  const Dims& dims() const { return dims_; }
  std::int64_t num_elements() const { return dims_.num_elements(); }
  std::int64_t size_bytes() const { return dims_.size_bytes(dtype_); }
  bool is_defined() const { return dtype_ != DataType::kUndefined; }

  const std::byte* raw() const { return data_; }
  std::byte* mutable_raw() { return data_; }
  /// The elements. Throws: DataError if T is not the element type.
  template <class T>
  std::span<const T> data() const;
  template <class T>
  std::span<T> mutable_data();
  std::span<const std::string> strings() const;
  std::span<std::string> mutable_strings();

  /// A view of the same data with a different shape. Throws: ShapeError if the numbers of elements
  /// differ.
  Tensor reshaped(Dims dims) const;
  /// A deep copy.
  Tensor clone() const;
  /// True if dtype, shape and bytes (or strings) are equal.
  bool equals(const Tensor& other) const;
  /// All elements as double (floating, integer, bool). Throws: DataError otherwise.
  std::vector<double> to_doubles() const;
  /// All elements of an integer or bool tensor. Throws: DataError otherwise.
  std::vector<std::int64_t> to_int64s() const;
  /// Elements converted by static_cast semantics to a floating, integer or bool type.
  /// Throws: DataError (strings and other types).
  Tensor cast(DataType dtype) const;

 private:
  /// Calls empty() for `count` values. Throws: ShapeError if `dims` has another number of elements.
  static Tensor empty_for(std::size_t count, DataType dtype, Dims dims);
  void expect_dtype(DataType wanted) const;
  DataType dtype_ = DataType::kUndefined;
  Dims dims_;
  std::byte* data_ = nullptr;          // the first element (or the first std::string)
  std::shared_ptr<const void> owner_;  // keeps data_ alive
};

template <class T>
Tensor Tensor::from(std::span<const T> values, Dims dims) {
  Tensor tensor = empty_for(values.size(), dtype_of<T>(), std::move(dims));
  auto out = tensor.mutable_data<T>();
  for (std::size_t i = 0; i < values.size(); ++i) out[i] = values[i];
  return tensor;
}

template <class T>
std::span<const T> Tensor::data() const {
  expect_dtype(dtype_of<T>());
  return {reinterpret_cast<const T*>(data_), static_cast<std::size_t>(num_elements())};
}

template <class T>
std::span<T> Tensor::mutable_data() {
  expect_dtype(dtype_of<T>());
  return {reinterpret_cast<T*>(data_), static_cast<std::size_t>(num_elements())};
}

}  // namespace onnxgrad

#endif  // ONNXGRAD_TENSOR_H_
