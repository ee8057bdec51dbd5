#include "device/device.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/memory_budget.h"
#include "base/rounding.h"

namespace onnxgrad::device {

std::int64_t Device::charged_bytes(std::int64_t bytes) const {
  return base::round_up(std::max<std::int64_t>(bytes, 1), alignment());
}

Buffer Device::allocate(std::int64_t bytes) {
  const std::int64_t charged = charged_bytes(bytes);
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
