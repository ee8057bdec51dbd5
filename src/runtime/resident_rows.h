#ifndef ONNXGRAD_RUNTIME_RESIDENT_ROWS_H_
#define ONNXGRAD_RUNTIME_RESIDENT_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "device/device.h"
#include "onnxgrad/device_tensor.h"

namespace onnxgrad::runtime {

/// Rows in the memory of a device, from which it gathers batches itself (StepSeries::resident):
/// once they are there, an epoch moves nothing but its order.
class ResidentRows {
 public:
  struct Column {
    std::size_t input = 0;            ///< of Executor::inputs
    const std::byte* data = nullptr;  ///< [rows, ...], dense
    std::int64_t row_bytes = 0;
    DeviceTensor placed = {};  ///< the rows, if they are in the memory of the device already
  };
  /// Copies the columns to the device, unless they are there. nullptr: they are more than half of
  /// what is left of the memory budget of this thread, or the device has no memory for them.
  /// `stream` is that of the steps; both outlive the result.
  static std::unique_ptr<ResidentRows> copy(device::Device& device, device::Stream& stream,
                                            std::span<const Column> columns, std::int64_t rows);
  /// Waits for the work that reads them.
  ~ResidentRows();
  ResidentRows(const ResidentRows&) = delete;
  ResidentRows& operator=(const ResidentRows&) = delete;

  /// Sets the row at each place, for work that is submitted from now on; empty: place is row.
  void set_order(std::span<const std::int64_t> order);

  /// A column on the device.
  struct Resident {
    std::size_t input = 0;
    device::Buffer memory;
    std::int64_t row_bytes = 0;
  };
  std::span<const Resident> columns() const { return columns_; }
  /// Row numbers, int64; kNull: there is no order.
  device::Address order() const { return has_order_ ? order_.address : device::Address::kNull; }
  std::int64_t order_bytes() const { return order_.bytes; }  ///< of its memory
  device::Memory order_memory() const { return device::Memory(order_); }

 private:
  explicit ResidentRows(device::Device& device, device::Stream& stream)
      : device_(device), stream_(stream) {}

  device::Device& device_;
  device::Stream& stream_;
  std::vector<Resident> columns_;
  device::Buffer order_;
  bool has_order_ = false;
};

}  // namespace onnxgrad::runtime

#endif  // ONNXGRAD_RUNTIME_RESIDENT_ROWS_H_
