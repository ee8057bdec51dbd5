#ifndef ONNXGRAD_DEVICE_WORK_H_
#define ONNXGRAD_DEVICE_WORK_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "opdef/kernel.h"

// Work as a Stream (device/device.h) takes it: kernels with their operands, in an order in which
// one stream could run them, and the places that let several streams share it.

namespace onnxgrad::device {

/// A kernel and its operands: addresses of the device.
struct KernelCall {
  opdef::KernelFn fn = nullptr;
  const void* data = nullptr;
  opdef::KernelArgs args = nullptr;
  std::size_t num_args = 0;
};

/// How a kernel uses an argument.
struct Operand {
  std::int64_t bytes = 0;  ///< that it may access from the address on
  bool is_read = false;
  bool is_written = false;
};

/// The place of a call among those that are submitted with it.
struct CallPlace {
  int stream = 0;  ///< of the device's compute streams, by number
  /// Earlier calls, on other streams, after which it begins.
  std::vector<std::uint32_t> waits = {};
  bool is_awaited = false;  ///< a later call, on another stream, waits for it
  /// Does nothing after a kernel has refused a value: see DeviceStepCells (step_kernels.h).
  bool is_guarded = false;
};

/// Kernels that are submitted together. They begin after what was submitted before has been done,
/// and are done before what is submitted next begins; among themselves, calls of one stream run in
/// order, others as their waits say.
struct Work {
  std::span<const KernelCall> calls = {};
  std::span<const CallPlace> places = {};  ///< one per call; empty: all on stream 0
  /// The uses of each call's arguments; empty: not known.
  std::span<const std::span<const Operand>> operands = {};
  std::span<const std::string> names = {};  ///< of the calls, for messages; empty: not known
};

/// Work that a device keeps in a form that it can repeat.
class Recording {
 public:
  virtual ~Recording() = default;
};

/// A point in the work of a stream, which outlives it. Any thread may ask and wait.
class Event {
 public:
  virtual ~Event() = default;
  virtual bool is_done() const = 0;
  /// Waits on the host until the point is reached. Throws: the error of work before it, on devices
  /// that know whose it is; others throw in Stream::synchronize.
  virtual void wait() const = 0;
  /// Seconds of the device from another point, of the same device, to this one; waits for both, and
  /// throws as wait() does. Both from Stream::mark(true).
  virtual double seconds_after(const Event& earlier) const = 0;
};

}  // namespace onnxgrad::device

#endif  // ONNXGRAD_DEVICE_WORK_H_
