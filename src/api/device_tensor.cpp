#include "onnxgrad/device_tensor.h"

#include <fmt/format.h>

#include <utility>

#include "device/device_tensor.h"
#include "train/tools/devices.h"

// The functions of DeviceTensor that know the devices of the process.

namespace onnxgrad {

DeviceTensor DeviceTensor::copy_of(const Tensor& tensor, const std::string& device) {
  const auto engine = train::engine_on(device);
  if (engine->device.is_host()) return DeviceTensor(tensor.clone());
  if (tensor.dtype() == DataType::kString) {
    throw DataError({.what = "an array of strings for device '" + engine->device.name() + "'",
                     .hint = "Leave it in host memory: only the host has strings."});
  }
  return device::copy_to(engine->device, tensor);
}

bool DeviceTensor::has_device(DlpackDevice device) {
  return train::device_in_use(device) != nullptr;
}

std::optional<std::intptr_t> DeviceTensor::foreign_stream(DlpackDevice device) {
  device::Device* const used = train::device_in_use(device);
  if (used == nullptr) return std::nullopt;
  return device::TransferStream::of(*used).use(
      [](const std::shared_ptr<device::Stream>& stream) { return stream->foreign_handle(); });
}

DeviceTensor DeviceTensor::borrow(DlpackDevice device, void* data, DataType dtype, Dims dims,
                                  bool is_read_only, std::shared_ptr<const void> owner) {
  device::Device* const used = train::device_in_use(device);
  if (used == nullptr) {
    throw DeviceError(
        {.what =
             fmt::format("an array in memory of DLPack type {}, number {}, which no session uses",
                         device.type, device.id),
         .hint = "Make a session on its device first, or copy the array to the host."});
  }
  auto ready = device::TransferStream::of(*used).use(device::mark_on);
  return DeviceTensor(std::make_shared<const Impl>(
      Impl{.is_read_only = is_read_only,
           .dtype = dtype,
           .dims = std::move(dims),
           .device = used,
           .address = device::address_of(static_cast<const std::byte*>(data)),
           .owner = std::move(owner),
           .ready = std::move(ready)}));
}

}  // namespace onnxgrad
