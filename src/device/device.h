#ifndef ONNXGRAD_DEVICE_DEVICE_H_
#define ONNXGRAD_DEVICE_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "onnxgrad/tensor.h"
#include "opdef/kernel.h"

// The interface of a device for the runtime: memory, copies, and streams of work. The CPU's memory
// is host memory and its work is done when a call returns; for any other device neither is true,
// and only its kernels and these functions may access the memory at an Address.

namespace onnxgrad::device {

/// A location in the memory of a device. Opaque: only on the CPU is it a pointer.
enum class Address : std::uintptr_t { kNull = 0 };

inline Address operator+(Address address, std::int64_t bytes) {
  return Address{static_cast<std::uintptr_t>(address) + static_cast<std::uintptr_t>(bytes)};
}

/// Converts an address to a kernel's argument.
inline std::byte* kernel_argument(Address address) {
  return reinterpret_cast<std::byte*>(address);  // NOLINT(performance-no-int-to-ptr)
}
inline Address address_of(const std::byte* argument) {
  return Address{reinterpret_cast<std::uintptr_t>(argument)};
}

/// Memory of a device; freed with the last copy, which must outlive the work that uses it.
struct Buffer {
  Address address = Address::kNull;
  std::int64_t bytes = 0;
  std::shared_ptr<const void> owner = nullptr;
};

/// A kernel and its operands: addresses of the device.
struct KernelCall {
  opdef::KernelFn fn = nullptr;
  const void* data = nullptr;
  opdef::KernelArgs args = nullptr;
  std::size_t num_args = 0;
};

/// Work in order of submission. Functions may return before the work is done; an error
/// in the work is thrown by a later call, by synchronize() at the latest, and work submitted after
/// the work that failed is not done. Used by one thread at a time.
class Stream {
 public:
  virtual ~Stream() = default;
  /// Runs kernels. The array and what its `data` points to live until the work is done; `args` and
  /// `cells` are read before the call returns.
  virtual void run(std::span<const KernelCall> calls, const opdef::StepCells& cells) = 0;
  /// Copies from host memory, which may change as soon as the call returns.
  virtual void copy_in(Address to, const std::byte* from, std::int64_t bytes) = 0;
  /// Copies to host memory, which has the bytes after synchronize().
  virtual void copy_out(std::byte* to, Address from, std::int64_t bytes) = 0;
  /// Copies within the device; no overlap.
  virtual void copy(Address to, Address from, std::int64_t bytes) = 0;
  /// Waits until all work is done. Throws: what the work threw.
  virtual void synchronize() = 0;

  /// Returns a copy of a dense tensor in host memory; waits for it.
  Tensor read(Address from, DataType dtype, const Dims& dims);
  /// Returns a floating-point scalar; waits for it.
  double read_scalar(Address from, DataType dtype);
};

class Device {
 public:
  virtual ~Device() = default;
  virtual std::string name() const = 0;
  /// True: addresses are host pointers, kernels may be called directly, and each is done when it
  /// returns.
  virtual bool is_host() const = 0;
  /// Alignment of buffers and of what is laid out in them: a power of two, in bytes.
  virtual std::int64_t alignment() const = 0;
  /// Returns uninitialised memory, charged to the memory budget of this thread. Throws:
  /// DeviceError.
  Buffer allocate(std::int64_t bytes);
  virtual std::unique_ptr<Stream> make_stream() = 0;
  /// Whether its kernels are functions of this process that share their work among its threads
  /// (device/cpu/threads.h).
  virtual bool uses_host_threads() const { return is_host(); }

 private:
  /// Returns uninitialised memory. Throws: DeviceError (there is none left).
  virtual Buffer make_buffer(std::int64_t bytes) = 0;
};

/// This process's processors and memory. Thread-safe.
Device& cpu();

/// Returns the floating-point scalar at a location in host memory.
double host_scalar(const std::byte* data, DataType dtype);

}  // namespace onnxgrad::device

#endif  // ONNXGRAD_DEVICE_DEVICE_H_
