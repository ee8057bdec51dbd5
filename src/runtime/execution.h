#ifndef ONNXGRAD_RUNTIME_EXECUTION_H_
#define ONNXGRAD_RUNTIME_EXECUTION_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "device/device.h"
#include "ir/graph.h"
#include "onnxgrad/device_tensor.h"
#include "opdef/kernel.h"

// An Execution is a plan bound to the state of an Executor and to an arena: bind inputs, run, read
// outputs.

namespace onnxgrad::runtime {

/// One input or output value.
struct Port {
  std::string name;
  ir::Type type;
};

/// Times of one kernel over the steps since profiling began.
struct KernelProfile {
  std::string op_type;
  std::string node;
  std::string label;
  std::int64_t calls = 0;
  double total_s = 0;
  double flops = 0;  ///< per call
  int threads = 1;   ///< that it took, at most
};

/// The first value that is NaN or infinite, in plan order.
struct NonFinite {
  std::string node;
  std::string op_type;
  std::string value;
  std::size_t position = 0;  ///< of the kernel in the plan
};

/// Consecutive steps that differ only in the rows that inputs are bound to.
struct StepSeries {
  struct Input {
    std::size_t number = 0;  ///< of Executor::inputs
    const std::byte* data = nullptr;
    std::int64_t row_bytes = 0;
  };
  std::span<const Input> inputs;
  std::span<const std::int64_t> first_rows;  ///< per step: the row that each input begins at
  std::size_t result = 0;                    ///< the output to keep, a floating-point number
};

class Execution {
 public:
  virtual ~Execution() = default;
  /// Reads input `i` (numbering of Executor::inputs) from host memory at each run, until bound
  /// again: in place on the CPU, where this costs a few pointer writes; other devices copy it in
  /// each run(). Dense, row-major, of the planned shape; aligned to its element size.
  virtual void bind(std::size_t i, const std::byte* data) = 0;
  /// Reads it from the device's own memory, for instance Executor::state_address().
  virtual void bind(std::size_t i, device::Address data) = 0;
  /// One step: computes all outputs, then updates the state. Allocates nothing if
  /// every shape is static. Throws: DataError (an index value out of range), on an
  /// asynchronous device possibly when a result is read; the state is then unchanged or that of a
  /// complete step. DeviceError (memory), if shapes are not static: the state is unchanged.
  virtual void run() = 0;
  /// run(), and copies of these outputs, whose memory is allocated before a state changes.
  virtual std::vector<Tensor> run_copying(std::span<const std::size_t> outputs) = 0;
  /// run() for each step, with its rows bound and StepCells::step counted up after it; writes the
  /// result of each. Stops after the first one that is not finite; returns the number of steps. If
  /// one throws, StepCells::step has counted those before it.
  virtual std::size_t run_series(const StepSeries& series, std::span<double> results) = 0;
  /// Output `i` of the last run, a floating-point number.
  virtual double read_scalar(std::size_t i) const = 0;
  /// Its type and shape; if shapes depend on values, those of the last run, known after one.
  virtual opdef::TensorDesc output_desc(std::size_t i) const = 0;
  /// That of output `i` before any run; nullopt: it depends on values that only a run computes.
  virtual std::optional<opdef::TensorDesc> planned_desc(std::size_t i) const = 0;
  virtual std::size_t num_kernels() const = 0;
  virtual std::int64_t arena_bytes() const = 0;
  /// The plan, one line per kernel: label, operands with offsets, shapes.
  virtual std::string to_text() const = 0;
  /// A copy of output `i` of the last run. The next run of any plan overwrites the
  /// original.
  virtual Tensor output_tensor(std::size_t i) const = 0;
  /// Such a copy in the memory of the device, which may be made after the call.
  virtual DeviceTensor output_on_device(std::size_t i) const = 0;
  /// One step like run(), but checks each floating-point result and stops at the first that is
  /// not finite (the state may then be half updated). With ExecutorOptions::fuse off, results are
  /// those of the graph's nodes.
  virtual std::optional<NonFinite> run_until_non_finite() = 0;
  /// Counts the holders that need it to be kept: see Pin.
  void add_pin(int count) { pins_ += count; }
  bool is_pinned() const { return pins_ > 0; }

 private:
  int pins_ = 0;
};

/// Keeps an execution in its Executor's cache, so that references to it stay valid however many
/// other shapes are run. Must not outlive the Executor.
class Pin {
 public:
  explicit Pin(Execution& execution) : execution_(&execution) { execution_->add_pin(1); }
  ~Pin() {
    if (execution_ != nullptr) execution_->add_pin(-1);
  }
  Pin(Pin&& other) noexcept : execution_(std::exchange(other.execution_, nullptr)) {}
  Pin& operator=(Pin&&) = delete;

 private:
  Execution* execution_;
};

}  // namespace onnxgrad::runtime

#endif  // ONNXGRAD_RUNTIME_EXECUTION_H_
