#ifndef ONNXGRAD_RUNTIME_EXECUTOR_H_
#define ONNXGRAD_RUNTIME_EXECUTOR_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/engine.h"
#include "runtime/execution.h"

// An Executor holds a model of the internal opset, its state (weights, statistics, optimizer slots)
// and the plans compiled for the input shapes seen so far, each an Execution. Nothing here knows
// about losses or epochs.

namespace onnxgrad::runtime {

/// Bytes that an executor holds, by purpose.
struct MemoryUse {
  std::int64_t state = 0;      ///< weights, statistics, optimizer slots
  std::int64_t arena = 0;      ///< activations, gradients and scratch of the largest plan
  std::int64_t scratch = 0;    ///< largest scratch block of one kernel, part of arena
  std::int64_t constants = 0;  ///< folded constants of all plans, and those that kernels keep
  std::int64_t dynamic = 0;    ///< plans of tails and bodies, with their arenas and constants
  std::int64_t blocks = 0;     ///< results of run_keeping() that are in use or kept for reuse
  // On a device that is not the host:
  std::int64_t slots = 0;    ///< copies of inputs, rings of a series
  std::int64_t cells = 0;    ///< of steps; padding of the state
  std::int64_t on_host = 0;  ///< constants and mirrors in the memory of the host
  /// Recomputation in the largest plan to fit the budget.
  std::int64_t recomputed_values = 0;
  std::int64_t recomputed_bytes = 0;
  double recomputed_flops = 0;
};

class Executor {
 public:
  /// The model is shared and must not change. Initializers, including those of inputs, become
  /// constants of the plans; inputs with a StateBinding become state with the value of their
  /// initializer (which is required). Function calls are expanded if no kernel supports them.
  /// Throws: UnsupportedOperatorError naming every node without a kernel, ModelError.
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
  /// The device that its state and values are on, and the budget that they are charged to.
  device::Device& device() const;
  const std::shared_ptr<base::MemoryBudget>& budget() const;
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
  /// Like run_owning() with feeds in any memory, but results stay in the memory of the device, and
  /// may not be computed yet. Feeds in other memory are copied.
  std::vector<DeviceTensor> run_on_device(std::span<const DeviceTensor> inputs);
  /// Binds input `i` of a plan to a tensor in the memory of this executor's device, aligned (see
  /// device::aligned()), which the caller keeps until the run is done.
  void bind(Execution& plan, std::size_t i, const DeviceTensor& feed) const;
  /// Keeps tensors that work submitted so far may read until it is done.
  void keep_in_use(std::vector<DeviceTensor> tensors);
  /// Whether a tensor is in the memory of its device, which is not the host.
  bool has_in_memory(const DeviceTensor& tensor) const;
  /// Makes the plan of run_keeping() and run_owning() for these inputs, and its memory.
  void prepare_for(std::span<const Tensor> inputs);
  void prepare_for(std::span<const DeviceTensor> inputs);
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
  std::vector<Tensor> described(std::span<const DeviceTensor> inputs) const;

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace onnxgrad::runtime

#endif  // ONNXGRAD_RUNTIME_EXECUTOR_H_
