#include "device/device.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/memory_budget.h"

namespace onnxgrad::device {

// The budget counts whole units of the device's alignment, which is what a buffer takes.
Buffer Device::allocate(std::int64_t bytes) {
  const std::int64_t unit = alignment();
  const std::int64_t charged = (std::max<std::int64_t>(bytes, 1) + unit - 1) / unit * unit;
  std::shared_ptr<base::MemoryBudget> budget = this->budget();
  budget->reserve(charged);
  Buffer buffer;
  try {
    buffer = make_buffer(bytes);
  } catch (...) {
    budget->release(charged);
    throw;
  }
  const void* const owned = buffer.owner.get();
  buffer.owner = {owned, [inner = std::move(buffer.owner), budget = std::move(budget),
                          charged](const void* /*memory*/) mutable {
                    inner.reset();
                    budget->release(charged);
                  }};
  return buffer;
}

std::shared_ptr<base::MemoryBudget> Device::budget(
    const std::shared_ptr<base::MemoryBudget>& whole) const {
  return is_host() ? whole : whole->on_device(name(), memory_bytes());
}

std::shared_ptr<std::byte> Device::allocate_staging(std::int64_t bytes) {
  return base::allocate_aligned(bytes);
}

void Stream::repeat(const Recording& /*recording*/, std::int64_t /*times*/) {
  ONNXGRAD_ASSERT(false);  // record() makes none
}

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
