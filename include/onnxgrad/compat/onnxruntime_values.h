#ifndef ONNXGRAD_COMPAT_ONNXRUNTIME_VALUES_H_
#define ONNXGRAD_COMPAT_ONNXRUNTIME_VALUES_H_

// The parts of onnxruntime's C++ interface that programs for training use: tensors, and options
// without effect.

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "onnxgrad/error.h"
#include "onnxgrad/tensor.h"

#ifndef ORT_TSTR
#define ORT_TSTR(text) text
#define ORTCHAR_T char
#endif

namespace Ort {
inline namespace of_onnxgrad {

enum OrtLoggingLevel {
  ORT_LOGGING_LEVEL_VERBOSE,
  ORT_LOGGING_LEVEL_INFO,
  ORT_LOGGING_LEVEL_WARNING,
  ORT_LOGGING_LEVEL_ERROR,
  ORT_LOGGING_LEVEL_FATAL
};
enum OrtAllocatorType { OrtInvalidAllocator = -1, OrtDeviceAllocator = 0, OrtArenaAllocator = 1 };
enum OrtMemType { OrtMemTypeCPUInput = -2, OrtMemTypeCPUOutput = -1, OrtMemTypeDefault = 0 };
enum OrtErrorCode { ORT_OK, ORT_FAIL, ORT_INVALID_ARGUMENT, ORT_NO_SUCHFILE };
enum ONNXTensorElementDataType {
  ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED = 0,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT = 1,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8 = 2,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8 = 3,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT16 = 4,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_INT16 = 5,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32 = 6,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64 = 7,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING = 8,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL = 9,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16 = 10,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE = 11,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT32 = 12,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT64 = 13
};

/// Everything that this interface throws.
class Exception : public std::exception {
 public:
  explicit Exception(std::string message, OrtErrorCode code = ORT_FAIL)
      : message_(std::move(message)), code_(code) {}
  OrtErrorCode GetOrtErrorCode() const { return code_; }
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  std::string message_;
  OrtErrorCode code_;
};

namespace detail {

// Calls a function; errors of onnxgrad become Ort::Exception.
template <class Function>
auto translated(const Function& function) {
  try {
    return function();
  } catch (const onnxgrad::Error& error) {
    throw Exception(error.what());
  }
}

template <class T>
void add_elements(onnxgrad::Tensor& sum, const onnxgrad::Tensor& more) {
  const auto to = sum.mutable_data<T>();
  const auto from = more.data<T>();
  for (std::size_t i = 0; i < to.size(); ++i) to[i] += from[i];
}

// sum += more, in memory of its own.
inline void add(onnxgrad::Tensor& sum, const onnxgrad::Tensor& more) {
  sum = sum.clone();
  if (sum.dtype() == onnxgrad::DataType::kFloat64) {
    add_elements<double>(sum, more);
  } else {
    add_elements<float>(sum, more);
  }
}

}  // namespace detail

/// No effect.
class Env {
 public:
  explicit Env(OrtLoggingLevel = ORT_LOGGING_LEVEL_WARNING, const char* = "") {}
};

/// No effect.
class SessionOptions {
 public:
  SessionOptions& SetIntraOpNumThreads(int) { return *this; }
  SessionOptions& SetInterOpNumThreads(int) { return *this; }
  SessionOptions& SetLogId(const char*) { return *this; }
  SessionOptions& SetLogSeverityLevel(int) { return *this; }
};

/// The host's memory.
class MemoryInfo {
 public:
  MemoryInfo(const char* = "Cpu", OrtAllocatorType = OrtArenaAllocator, int = 0,
             OrtMemType = OrtMemTypeDefault) {}
  static MemoryInfo CreateCpu(OrtAllocatorType, OrtMemType = OrtMemTypeDefault) { return {}; }
};

/// The host's memory.
class AllocatorWithDefaultOptions {};

class TensorTypeAndShapeInfo {
 public:
  explicit TensorTypeAndShapeInfo(const onnxgrad::Tensor& tensor)
      : dtype_(tensor.dtype()), dims_(tensor.dims()) {}
  ONNXTensorElementDataType GetElementType() const {
    return static_cast<ONNXTensorElementDataType>(dtype_);
  }
  std::size_t GetElementCount() const { return static_cast<std::size_t>(dims_.num_elements()); }
  std::size_t GetDimensionsCount() const { return dims_.rank(); }
  std::vector<std::int64_t> GetShape() const { return {dims_.begin(), dims_.end()}; }

 private:
  onnxgrad::DataType dtype_;
  onnxgrad::Dims dims_;
};

/// A tensor; moved, not copied.
class Value {
 public:
  Value(std::nullptr_t) {}  // NOLINT: as the original
  explicit Value(onnxgrad::Tensor tensor) : tensor_(std::move(tensor)) {}
  Value(Value&&) noexcept = default;
  Value& operator=(Value&&) noexcept = default;
  Value(const Value&) = delete;
  Value& operator=(const Value&) = delete;
  ~Value() = default;

  /// A view of the user's memory, which must outlive the value.
  template <class T>
  static Value CreateTensor(const MemoryInfo&, T* data, std::size_t count,
                            const std::int64_t* shape, std::size_t shape_len) {
    onnxgrad::Dims dims(std::vector<std::int64_t>(shape, shape + shape_len));
    if (dims.num_elements() != static_cast<std::int64_t>(count)) {
      throw Exception("a tensor of the shape " + dims.to_string() + " has not " +
                          std::to_string(count) + " elements",
                      ORT_INVALID_ARGUMENT);
    }
    return Value(onnxgrad::Tensor::view(onnxgrad::dtype_of<T>(), std::move(dims), data, nullptr));
  }
  /// A view of memory with elements of a type that is known at run time.
  static Value CreateTensor(const MemoryInfo&, void* data, std::size_t bytes,
                            const std::int64_t* shape, std::size_t shape_len,
                            ONNXTensorElementDataType type) {
    onnxgrad::Dims dims(std::vector<std::int64_t>(shape, shape + shape_len));
    const auto dtype = static_cast<onnxgrad::DataType>(type);
    if (dims.size_bytes(dtype) != static_cast<std::int64_t>(bytes)) {
      throw Exception("a tensor of the shape " + dims.to_string() + " has not " +
                          std::to_string(bytes) + " bytes",
                      ORT_INVALID_ARGUMENT);
    }
    return Value(onnxgrad::Tensor::view(dtype, std::move(dims), data, nullptr));
  }
  /// New memory.
  template <class T>
  static Value CreateTensor(const AllocatorWithDefaultOptions&, const std::int64_t* shape,
                            std::size_t shape_len) {
    onnxgrad::Dims dims(std::vector<std::int64_t>(shape, shape + shape_len));
    return Value(onnxgrad::Tensor::zeros(onnxgrad::dtype_of<T>(), std::move(dims)));
  }

  explicit operator bool() const { return tensor_.is_defined(); }
  bool IsTensor() const { return tensor_.is_defined(); }
  bool HasValue() const { return tensor_.is_defined(); }
  TensorTypeAndShapeInfo GetTensorTypeAndShapeInfo() const {
    return TensorTypeAndShapeInfo(tensor_);
  }
  template <class T>
  const T* GetTensorData() const {
    return detail::translated([&] { return tensor_.data<T>().data(); });
  }
  template <class T>
  T* GetTensorMutableData() {
    return detail::translated([&] { return tensor_.mutable_data<T>().data(); });
  }
  const void* GetTensorRawData() const { return tensor_.raw(); }
  void* GetTensorMutableRawData() { return tensor_.mutable_raw(); }
  const onnxgrad::Tensor& tensor() const { return tensor_; }

 private:
  onnxgrad::Tensor tensor_;
};

}  // namespace of_onnxgrad
}  // namespace Ort

// Names that the original has outside its namespace.
using Ort::ONNXTensorElementDataType;       // NOLINT
using Ort::OrtAllocatorType;                // NOLINT
using Ort::OrtErrorCode;                    // NOLINT
using Ort::OrtLoggingLevel;                 // NOLINT
using Ort::OrtMemType;                      // NOLINT
using enum Ort::ONNXTensorElementDataType;  // NOLINT
using enum Ort::OrtAllocatorType;           // NOLINT
using enum Ort::OrtErrorCode;               // NOLINT
using enum Ort::OrtLoggingLevel;            // NOLINT
using enum Ort::OrtMemType;                 // NOLINT

#endif  // ONNXGRAD_COMPAT_ONNXRUNTIME_VALUES_H_
