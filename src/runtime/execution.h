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

class ResidentRows;  // runtime/resident_rows.h

/// Batches that are made on the host, one for each step of a series, each in one of two slots: it
/// is copied to the device while an earlier step runs.
class StagedBatches {
 public:
  virtual ~StagedBatches() = default;
  /// Writes the batch of a step to slot 0 or 1, which nothing reads meanwhile.
  virtual void fill(std::size_t step, std::size_t slot) = 0;
  /// The rows of StepSeries::inputs[i] in a slot: memory of Device::allocate_staging().
  virtual const std::byte* rows(std::size_t i, std::size_t slot) const = 0;
};

/// Consecutive steps that differ only in their rows and in one number.
struct StepSeries {
  struct Input {
    std::size_t number = 0;  ///< of Executor::inputs
    const std::byte* data = nullptr;
    std::int64_t row_bytes = 0;
  };
  /// A floating-point number that is an input.
  struct Scalar {
    std::size_t number = 0;
    DataType dtype = DataType::kFloat32;
    std::byte* bound = nullptr;           ///< the host memory that it is bound to
    std::span<const double> values = {};  ///< per step; empty: it is as it is bound
  };
  std::size_t steps = 0;
  std::int64_t batch_rows = 0;  ///< rows of each step
  std::span<const Input> inputs = {};
  /// Where the rows are, one of three. In host memory, read in place; per step: the row that each
  /// input begins at.
  std::span<const std::int64_t> first_rows = {};
  /// In the memory of the device, those of batch after batch from this place in their order on;
  /// or on the host, where they are put together. Not for the host itself.
  const ResidentRows* resident = nullptr;
  std::int64_t first_place = 0;
  StagedBatches* staged = nullptr;

  Scalar scalar = {};
  std::span<const std::size_t> results = {};  ///< outputs to keep, floating-point numbers
  bool ends_at_fault = false;  ///< ends with the first step whose first result is not finite
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
  /// results of a step beside each other, step after step. Returns the number of steps: all, or
  /// those up to the fault that ends the series. A device other than the host runs them without
  /// looking at a result in between, so its state is then that of all steps. If one throws,
  /// StepCells::step has counted those before it.
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
