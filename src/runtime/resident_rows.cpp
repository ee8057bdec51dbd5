#include "runtime/resident_rows.h"

#include "base/memory_budget.h"
#include "device/device_tensor.h"
#include "onnxgrad/error.h"

namespace onnxgrad::runtime {
namespace {

constexpr auto kPlaceBytes = static_cast<std::int64_t>(sizeof(std::int64_t));

// The buffer of an array, which it keeps.
device::Buffer memory_of(const DeviceTensor& tensor) {
  return {.address = tensor.impl().address,
          .bytes = tensor.size_bytes(),
          .owner = std::make_shared<const DeviceTensor>(tensor)};
}

}  // namespace

std::unique_ptr<ResidentRows> ResidentRows::copy(device::Device& device, device::Stream& stream,
                                                 std::span<const Column> columns,
                                                 std::int64_t rows) {
  const std::shared_ptr<base::MemoryBudget> budget = base::current_budget();
  std::int64_t left = (budget->limit_bytes() - budget->used_bytes()) / 2 - rows * kPlaceBytes;
  for (const Column& column : columns) {
    if (!column.placed.is_defined()) left -= device.charged_bytes(rows * column.row_bytes);
  }
  if (left < 0) return nullptr;
  std::unique_ptr<ResidentRows> resident(new ResidentRows(device, stream));
  try {
    for (const Column& column : columns) {
      const std::int64_t bytes = rows * column.row_bytes;
      resident->columns_.push_back(
          {.input = column.input,
           .memory = column.placed.is_defined() ? memory_of(column.placed) : device.allocate(bytes),
           .row_bytes = column.row_bytes});
    }
  } catch (const DeviceError&) {
    return nullptr;
  }
  for (std::size_t i = 0; i < columns.size(); ++i) {
    const Resident& to = resident->columns_[i];
    if (columns[i].placed.is_defined()) {
      stream.wait_for(*columns[i].placed.impl().ready);
      continue;
    }
    stream.copy_in(to.memory.address, columns[i].data, rows * to.row_bytes);
  }
  return resident;
}

ResidentRows::~ResidentRows() {
  try {
    stream_.synchronize();
  } catch (...) {  // NOLINT(bugprone-empty-catch): these results are not needed
  }
}

void ResidentRows::set_order(std::span<const std::int64_t> order) {
  has_order_ = !order.empty();
  if (!has_order_) return;
  const std::int64_t bytes = std::ssize(order) * kPlaceBytes;
  if (order_.bytes < bytes) {
    stream_.synchronize();
    order_ = device_.allocate(bytes);
  }
  stream_.copy_in(order_.address, reinterpret_cast<const std::byte*>(order.data()), bytes);
}

}  // namespace onnxgrad::runtime
