#ifndef ONNXGRAD_DEVICE_DEVICE_TENSOR_H_
#define ONNXGRAD_DEVICE_DEVICE_TENSOR_H_

#include <memory>
#include <mutex>

#include "device/device.h"
#include "onnxgrad/device_tensor.h"

// The contents of a DeviceTensor, and the streams for those that belong to no session.

namespace onnxgrad {

struct DeviceTensor::Impl {
  /// The elements; undefined: they are not in host memory. Strings are always there.
  Tensor host = {};
  bool is_read_only = false;
  // If the elements are not in host memory:
  DataType dtype = DataType::kUndefined;
  Dims dims = {};
  device::Device* device = nullptr;
  device::Address address = device::Address::kNull;
  std::shared_ptr<const void> owner = nullptr;           ///< of the memory
  std::shared_ptr<const device::Event> ready = nullptr;  ///< keeps its stream alive
};

namespace device {

/// True: its elements are in the memory of a device that is not the host.
inline bool is_on_device(const DeviceTensor& tensor) { return tensor.impl().device != nullptr; }

/// A point of a stream that keeps the stream alive.
std::shared_ptr<const Event> mark_on(const std::shared_ptr<Stream>& stream);

/// An owner of memory that waits for the last work on it before it frees it.
std::shared_ptr<const void> kept_until(Buffer buffer, std::shared_ptr<const Event> last);

/// The stream of a device for arrays that belong to no session; one for each device, until the end
/// of the process, as the devices.
class TransferStream {
 public:
  static TransferStream& of(Device& device);

  /// Calls f(stream) while no other thread uses it.
  template <class F>
  decltype(auto) use(F&& f) {
    const std::scoped_lock lock(mutex_);
    return f(stream_);
  }

 private:
  explicit TransferStream(Device& device) : stream_(device.make_stream()) {}

  std::mutex mutex_;
  std::shared_ptr<Stream> stream_;
};

/// A copy of a host tensor in the memory of `device`, which is not the host.
DeviceTensor copy_to(Device& device, const Tensor& tensor);

/// A tensor on a device at an address of the device's alignment, which kernels rely on: itself, or
/// a copy.
DeviceTensor aligned(const DeviceTensor& tensor);

}  // namespace device
}  // namespace onnxgrad

#endif  // ONNXGRAD_DEVICE_DEVICE_TENSOR_H_
