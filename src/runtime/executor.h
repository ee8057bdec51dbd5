#ifndef ONNXGRAD_RUNTIME_EXECUTOR_H_
#define ONNXGRAD_RUNTIME_EXECUTOR_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/memory_budget.h"
#include "device/device.h"
#include "ir/builder.h"
#include "ir/graph.h"
#include "opdef/kernel.h"
#include "opdef/packed_constants.h"
#include "opdef/registry.h"

// An Executor holds a model of the internal opset, its state (weights, statistics, optimizer slots)
// and the plans compiled for the input shapes seen so far. An Execution is a plan bound to that
// state and to an arena: bind inputs, run, read outputs. It knows nothing of losses or epochs.

namespace onnxgrad::runtime {

class Executor;
class TailCache;

/// The parts of the engine; outlives every Executor.
struct Engine {
  const opdef::OpRegistry& ops;
  const opdef::KernelRegistry& kernels;
  /// See onnx_io::make_type_inferer.
  std::unique_ptr<ir::TypeInferer> (*make_inferer)(const ir::Model& model);
  device::Device& device = device::default_device();
  /// Kernels of the CPU, for values computed when a plan is made; nullptr: equal to `kernels`.
  const opdef::KernelRegistry* host_kernels = nullptr;

  const opdef::KernelRegistry& on_host() const { return host_kernels ? *host_kernels : kernels; }
};

struct ExecutorOptions {
  int threads = 1;
  std::uint64_t seed = 0;
  std::shared_ptr<base::MemoryBudget> budget = nullptr;  ///< nullptr: the current one
  /// True: plans are made to fit into the rest of the budget, by computing values again.
  bool fits_budget = false;
  /// Memory that its owner counts: constants in it do not count in memory().
  std::string_view counted_elsewhere = {};
  /// Number of plans kept, the most recently used, for input shapes and for tails (data-dependent
  /// shapes) each.
  std::size_t max_cached_plans = 64;
  bool fuse = true;  ///< false: one kernel per node, for debugging
  /// Block of memory, numbered from 0, that each of outputs() is computed into; for an executor
  /// that is only run by run_keeping() or run_owning().
  std::vector<std::size_t> output_blocks = {};
  /// Inputs by number whose values plans may be compiled for: small integers that determine shapes.
  std::vector<std::size_t> shape_inputs = {};
  /// The cache of the executor that this one runs a body for: their tails are counted together.
  std::shared_ptr<TailCache> tails = nullptr;
  /// Packed constant operands of products, which take as much memory again: for models that only
  /// run. nullptr: products read constants where they are.
  std::shared_ptr<opdef::PackedConstants> packed = nullptr;
  /// Stream that runs the work; nullptr: a new one. Executors that read each other's state
  /// share one.
  std::shared_ptr<device::Stream> stream = nullptr;
  /// An executor whose state, memory and values, passes to this one if names and types are equal;
  /// it is not run anymore. Used while the executor is made.
  const Executor* state_of = nullptr;
  /// Exchange with the other workers of a training, for collective operators; outlives the
  /// executor. nullptr: one worker, for which these operators are their bodies.
  opdef::Collectives* collectives = nullptr;
};

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
  int threads = 1;   ///< maximum number that it took
};

/// Bytes that an executor holds, by purpose.
struct MemoryUse {
  std::int64_t state = 0;      ///< weights, statistics, optimizer slots
  std::int64_t arena = 0;      ///< activations, gradients and scratch of the largest plan
  std::int64_t scratch = 0;    ///< largest scratch block of one kernel, part of arena
  std::int64_t constants = 0;  ///< folded constants of all plans, and those that kernels keep
  std::int64_t dynamic = 0;    ///< plans of tails and bodies, with their arenas and constants
  std::int64_t blocks = 0;     ///< results of run_keeping() that are in use or kept for reuse
  /// Recomputation in the largest plan to fit the budget.
  std::int64_t recomputed_values = 0;
  std::int64_t recomputed_bytes = 0;
  double recomputed_flops = 0;
};

/// The first value that is NaN or infinite, in plan order.
struct NonFinite {
  std::string node;
  std::string op_type;
  std::string value;
  std::size_t position = 0;  ///< position of the kernel in the plan
};

/// Consecutive steps that differ only in the rows that inputs are bound to.
struct StepSeries {
  struct Input {
    std::size_t number = 0;  ///< index in Executor::inputs
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
  /// Reads input `i` from the device's own memory, for instance Executor::state_address().
  virtual void bind(std::size_t i, device::Address data) = 0;
  /// Runs one step: computes all outputs, then updates the state. Allocates nothing if
  /// every shape is static. Throws: DataError (an index value out of range), on an
  /// asynchronous device possibly when a result is read; the state is then unchanged or that of a
  /// complete step. DeviceError (memory), if shapes are not static: the state is unchanged.
  virtual void run() = 0;
  /// Calls run() and returns copies of these outputs, whose memory is allocated before a state
  /// changes.
  virtual std::vector<Tensor> run_copying(std::span<const std::size_t> outputs) = 0;
  /// Calls run() for each step, with its rows bound and StepCells::step counted up after it; writes
  /// the result of each. Stops after the first one that is not finite; returns the number of steps.
  /// If one throws, StepCells::step has counted those before it.
  virtual std::size_t run_series(const StepSeries& series, std::span<double> results) = 0;
  /// Value of output `i` of the last run, a floating-point number.
  virtual double read_scalar(std::size_t i) const = 0;
  /// Type and shape of output `i`; if shapes depend on values, as in the last run.
  virtual opdef::TensorDesc output_desc(std::size_t i) const = 0;
  /// Type and shape of output `i` before any run; nullopt: only a run computes them.
  virtual std::optional<opdef::TensorDesc> planned_desc(std::size_t i) const = 0;
  virtual std::size_t num_kernels() const = 0;
  virtual std::int64_t arena_bytes() const = 0;
  /// The plan, one line per kernel: label, operands with offsets, shapes.
  virtual std::string to_text() const = 0;
  /// A copy of output `i` of the last run. The next run of any plan overwrites the
  /// original.
  virtual Tensor output_tensor(std::size_t i) const = 0;
  /// Runs one step like run(), but checks each floating-point result and stops at the first that is
  /// not finite (the state may then be half updated). With ExecutorOptions::fuse off, results are
  /// those of the graph's nodes.
  virtual std::optional<NonFinite> run_until_non_finite() = 0;
  /// Counts the holders that keep the execution in the cache: see Pin.
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

class Executor {
 public:
  /// Initializers, including those of inputs, become constants of the plans; inputs with a
  /// StateBinding become state with the value of their initializer (which is required). Function
  /// calls are expanded if no kernel supports them. Throws: UnsupportedOperatorError naming every
  /// node without a kernel, ModelError.
  Executor(std::shared_ptr<const ir::Model> model, const Engine& engine,
           ExecutorOptions options = {});
  ~Executor();
  Executor(Executor&&) noexcept;

  const std::vector<Port>& inputs() const;   ///< graph inputs that are not state
  const std::vector<Port>& outputs() const;  ///< graph outputs that are not only new state
  const std::vector<Port>& state() const;

  /// The plan for these input shapes (order of inputs()), compiled on first use, then cached.
  /// Throws: ShapeError (shapes that do not match), UnsupportedOperatorError, DeviceError (memory).
  Execution& prepare(const std::vector<Dims>& input_dims);

  /// State `i` on the device, valid as long as the executor.
  device::Address state_address(std::size_t i) const;
  /// The current value of state `i`: on the CPU a view of its memory, which the next run changes,
  /// elsewhere a copy.
  Tensor read_state(std::size_t i) const;
  /// Copies all states, in order, to tensors of their types and shapes.
  void copy_state(std::span<Tensor> to) const;
  void set_state(std::size_t i, const Tensor& value);
  /// A counter that grows whenever a run or set_state() may have changed a state.
  std::uint64_t state_changes() const;
  /// See ExecutorOptions::state_of.
  bool shares_state_with(const Executor& other) const;
  /// True if no floating-point state has an infinite or NaN element.
  bool is_state_finite() const;
  /// Stream that runs its work.
  const std::shared_ptr<device::Stream>& stream() const;
  /// Position of the random streams.
  opdef::StepCells& cells();

  /// Runs once on these inputs (order of inputs()) and returns copies of all outputs.
  /// Throws: DataError (dtype), and what prepare and run throw.
  std::vector<Tensor> run(std::span<const Tensor> inputs);

  /// Like run(), but nothing is copied: the kernels write outputs into blocks of memory that belong
  /// to the results (see ExecutorOptions::output_blocks), and an output that is an input or a
  /// constant shares its memory. A block is reused when no tensor of it is left. (Outputs that
  /// depend on a data-dependent shape are copied.)
  std::vector<Tensor> run_keeping(std::span<const Tensor> inputs);
  /// Like run_keeping(), but copies results that would share memory with another one, an input or a
  /// constant.
  std::vector<Tensor> run_owning(std::span<const Tensor> inputs);
  /// Makes the plan of run_keeping() and run_owning() for these inputs, and its memory.
  void prepare_for(std::span<const Tensor> inputs);
  /// Plans compiled so far, including those of tails and bodies and those no longer cached.
  std::int64_t num_compiled() const;
  /// Plans currently kept.
  std::int64_t num_cached() const;

  /// Turns timing on or off: run() times each kernel and keeps at most `max_events` events. Turning
  /// it on clears the profile.
  void set_profiling(bool on, std::size_t max_events = 1 << 20);
  /// Times of kernels, slowest first.
  std::vector<KernelProfile> profile() const;
  /// The events as JSON in the Trace Event format that chrome://tracing and Perfetto read.
  std::string trace_json() const;
  MemoryUse memory() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace onnxgrad::runtime

#endif  // ONNXGRAD_RUNTIME_EXECUTOR_H_
