#ifndef ONNXGRAD_DEVICE_DEVICE_H_
#define ONNXGRAD_DEVICE_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/memory_budget.h"
#include "device/step_kernels.h"
#include "device/work.h"
#include "onnxgrad/devices.h"
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

/// The identity of a buffer's memory, which another one at its address later does not have. Does
/// not keep the memory.
class Memory {
 public:
  Memory() = default;
  explicit Memory(const Buffer& buffer) : owner_(buffer.owner) {}
  bool operator==(const Memory& other) const {
    return !owner_.owner_before(other.owner_) && !other.owner_.owner_before(owner_);
  }

 private:
  std::weak_ptr<const void> owner_;
};

/// Work in order of submission. Functions may return before the work is done; an error
/// in the work is thrown by a later call, by synchronize() at the latest, and work submitted after
/// the work that failed is not done. Used by one thread at a time.
class Stream {
 public:
  virtual ~Stream() = default;
  /// Runs kernels. The arrays and what `data` points to live until the work is done; `args` is read
  /// before the call returns. `cells`: a StepCells in the memory of the device, which kernels read
  /// when they run.
  virtual void run(const Work& work, Address cells) = 0;
  /// Keeps work with its present arguments in a form that repeat() takes; runs nothing. What run()
  /// reads lives as long as the recording. All kernels are recordable and have run before. nullptr:
  /// this device has no such form.
  virtual std::unique_ptr<Recording> record(const Work& /*work*/, Address /*cells*/) {
    return nullptr;
  }
  /// Submits recorded work so many times, one after the other. The recording lives until all of it
  /// is done.
  virtual void repeat(const Recording& recording, std::int64_t times);
  /// A point after all that was submitted so far; with `is_timed`, one with a time.
  virtual std::shared_ptr<Event> mark(bool is_timed) = 0;
  /// Work that is submitted from now on begins after a point of this stream or another of its
  /// device.
  virtual void wait_for(const Event& event) = 0;
  /// Copies from host memory, which may change as soon as the call returns.
  virtual void copy_in(Address to, const std::byte* from, std::int64_t bytes) = 0;
  /// Copies from memory of Device::allocate_staging(), which may change when the copy is done.
  virtual void copy_in_staged(Address to, const std::byte* from, std::int64_t bytes) {
    copy_in(to, from, bytes);
  }
  /// Copies to host memory, which has the bytes after synchronize().
  virtual void copy_out(std::byte* to, Address from, std::int64_t bytes) = 0;
  /// Copies within the device; no overlap.
  virtual void copy(Address to, Address from, std::int64_t bytes) = 0;
  /// Waits until all work is done. Throws: what the work threw.
  virtual void synchronize() = 0;
  /// The pointer by which other libraries know the stream, as in DLPack. nullopt: they do not, and
  /// wait on the host.
  virtual std::optional<std::intptr_t> foreign_handle() const { return std::nullopt; }

  /// Returns a copy of a dense tensor in host memory; waits for it.
  Tensor read(Address from, DataType dtype, const Dims& dims);
  /// Returns a floating-point scalar; waits for it.
  double read_scalar(Address from, DataType dtype);
};

class Device {
 public:
  virtual ~Device() = default;
  /// As users write it: "cpu", "simulated:0".
  virtual std::string name() const = 0;
  /// Its memory for other libraries; a device that is not the host has its own.
  virtual DlpackDevice dlpack_device() const { return {}; }
  /// Makes the work that another library submits to its stream from now on, given as in DLPack,
  /// begin after a point of a stream of this device. Any thread.
  virtual void order_after(const Event& event, std::intptr_t /*foreign_stream*/) { event.wait(); }
  /// True: addresses are host pointers, kernels may be called directly, and each is done when it
  /// returns.
  virtual bool is_host() const = 0;
  /// Alignment of buffers and of what is laid out in them: a power of two, in bytes.
  virtual std::int64_t alignment() const = 0;
  /// Returns uninitialised memory, charged to budget(). Throws: DeviceError.
  Buffer allocate(std::int64_t bytes);
  /// Bytes that a buffer of so many is charged for: whole units of the alignment.
  std::int64_t charged_bytes(std::int64_t bytes) const;
  /// Bytes that a buffer is charged for; 0: it is none.
  std::int64_t charged_bytes(const Buffer& buffer) const {
    return buffer.owner == nullptr ? 0 : charged_bytes(buffer.bytes);
  }
  /// Bytes of its memory; 0: not known.
  virtual std::int64_t memory_bytes() const { return 0; }
  /// The part of a budget that its memory is charged to: on the host the budget itself.
  std::shared_ptr<base::MemoryBudget> budget(
      const std::shared_ptr<base::MemoryBudget>& whole = base::current_budget()) const;
  virtual std::unique_ptr<Stream> make_stream() = 0;
  /// How many streams the calls of one submission can be spread over.
  virtual int num_compute_streams() const { return 1; }
  /// Host memory from which copies to the device need no further copy. Throws: DeviceError.
  virtual std::shared_ptr<std::byte> allocate_staging(std::int64_t bytes);
  /// Kernels that the runtime puts around the kernels of a plan; not asked of a host.
  virtual const StepKernels& step_kernels() const { return host_step_kernels(); }
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
