#include "device/device.h"

#include <array>
#include <cstring>

#include "base/check.h"

namespace onnxgrad::device {

int Device::threads_of_kernel(double /*cost_ns*/, int /*most*/) const { return 1; }
int Device::threads_of_plan(double /*cost_ns*/, int /*most*/) const { return 1; }

Tensor Stream::read(Address from, DataType dtype, const Dims& dims) {
  Tensor tensor = Tensor::empty(dtype, dims);
  copy_out(tensor.mutable_raw(), from, tensor.size_bytes());
  synchronize();
  return tensor;
}

double Stream::read_scalar(Address from, DataType dtype) {
  std::array<std::byte, sizeof(double)> bytes{};
  copy_out(bytes.data(), from, Dims{}.size_bytes(dtype));
  synchronize();
  return host_scalar(bytes.data(), dtype);
}

double host_scalar(const std::byte* data, DataType dtype) {
  if (dtype == DataType::kFloat64) {
    double value = 0;
    std::memcpy(&value, data, sizeof value);
    return value;
  }
  ONNXGRAD_ASSERT(dtype == DataType::kFloat32);
  float value = 0;
  std::memcpy(&value, data, sizeof value);
  return value;
}

}  // namespace onnxgrad::device
