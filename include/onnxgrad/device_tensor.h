#ifndef ONNXGRAD_DEVICE_TENSOR_H_
#define ONNXGRAD_DEVICE_TENSOR_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "onnxgrad/devices.h"
#include "onnxgrad/tensor.h"

namespace [[gnu::visibility("default")]] onnxgrad {

/// A dense row-major array in the memory of a device, or of the host. Copying shares its elements;
/// with the last copy they are freed, in any thread and also after the session
/// that computed them. The work that computes them may not be done yet: whatever reads them waits
/// for it, and throws what it threw. Thread-safe.
class DeviceTensor {
 public:
  DeviceTensor() = default;  ///< no data: dtype() is kUndefined
  /// A tensor in host memory, whose elements are shared.
  explicit DeviceTensor(Tensor tensor);
  /// A copy in the memory of a device (see EngineOptions::device). Throws: DeviceError; DataError
  /// (strings, which only the host has).
  static DeviceTensor copy_of(const Tensor& tensor, const std::string& device);
  /// An array of another library, in the memory of a device that has_device() knows; `owner` keeps
  /// it alive, and is released in any thread. `data` is computed when work that is submitted to
  /// foreign_stream() from now on begins. Throws: DeviceError (no such device).
  static DeviceTensor borrow(DlpackDevice device, void* data, DataType dtype, Dims dims,
                             bool is_read_only, std::shared_ptr<const void> owner);
  /// Whether a session has used the device with this memory.
  static bool has_device(DlpackDevice device);
  /// The stream that reads arrays of other libraries, a pointer as in DLPack; nullopt: the device
  /// has none that they know.
  static std::optional<std::intptr_t> foreign_stream(DlpackDevice device);
  /// Rows of several arrays in the memory of one device, one after the other. Waits until they are
  /// copied. Throws: ShapeError (shapes that differ in more than the rows).
  static DeviceTensor joined(std::span<const DeviceTensor> parts);

  bool is_defined() const { return impl_ != nullptr; }
  DataType dtype() const;
  const Dims& dims() const;
  std::int64_t size_bytes() const { return dims().size_bytes(dtype()); }
  /// "cpu", "simulated:0".
  std::string device() const;
  DlpackDevice dlpack_device() const;
  /// Whether others that share the elements must not write to them; here nothing does.
  bool is_read_only() const;

  /// Rows [begin, end), which share the elements.
  DeviceTensor rows(std::int64_t begin, std::int64_t end) const;
  /// A copy in the same memory.
  DeviceTensor copy() const;
  /// A copy in host memory; the elements themselves if they are there.
  Tensor to_host() const;
  /// The address of the first element in the memory of the device. It has the elements after one of
  /// the next two.
  void* address() const;
  /// Waits on the host until the elements are computed.
  void wait() const;
  /// Makes work that another library submits to its stream, a pointer as in DLPack, wait for them.
  void wait_in(std::intptr_t foreign_stream) const;

  struct Impl;
  explicit DeviceTensor(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
  const Impl& impl() const { return *impl_; }

 private:
  std::shared_ptr<const Impl> impl_;
};

/// Feeds by name, each in any memory.
struct NamedDeviceTensor {
  std::string name;
  DeviceTensor tensor;
};
using NamedDeviceTensors = std::vector<NamedDeviceTensor>;

}  // namespace onnxgrad

#endif  // ONNXGRAD_DEVICE_TENSOR_H_
