#ifndef ONNXGRAD_RUNTIME_REGION_H_
#define ONNXGRAD_RUNTIME_REGION_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/arena.h"
#include "runtime/device_run.h"
#include "runtime/engine.h"
#include "runtime/execution.h"
#include "runtime/joint_calls.h"
#include "runtime/profiler.h"
#include "runtime/program.h"

namespace onnxgrad::runtime {

class BodyRunner;
class DeviceSeries;

/// The weights and other state: one block of memory, each value on its own cache lines.
struct StateSlab {
  device::Buffer memory;
  std::vector<device::Address> addresses;
  std::vector<opdef::TensorDesc> descs;
  std::uint64_t changes = 0;  ///< upper bound of the number of writes to it
};

/// Objects that the regions of an executor share.
struct RegionContext {
  const Engine& engine;
  const ExecutorOptions& options;
  StateSlab& state;
  opdef::StepCells& cells;
  DeviceCells* device_cells;  ///< nullptr: the device is the host
  Profiler& profiler;
  TailCache& tails;
};

/// A compiled region bound to memory: a flat list of {function, data, pointers}, and its tail.
class Region final : public Execution {
 public:
  Region(CompiledRegion compiled, RegionContext context);
  ~Region() override;

  void bind(std::size_t i, const std::byte* data) override;
  void bind(std::size_t i, device::Address data) override;
  void run() override;
  std::vector<Tensor> run_copying(std::span<const std::size_t> outputs) override;
  std::size_t run_series(const StepSeries& series, std::span<double> results) override;
  double read_scalar(std::size_t i) const override;
  Tensor output_tensor(std::size_t i) const override;
  DeviceTensor output_on_device(std::size_t i) const override;
  opdef::TensorDesc output_desc(std::size_t i) const override;
  std::optional<opdef::TensorDesc> planned_desc(std::size_t i) const override;
  std::size_t num_kernels() const override { return compiled_.plan.steps.size(); }
  std::int64_t arena_bytes() const override { return compiled_.plan.arena_bytes; }
  std::string to_text() const override;

  /// bind() to memory that is the same until forget_recordings() is called.
  void bind_kept(std::size_t i, device::Address data);
  void forget_recordings() { on_device_->forget_recordings(); }
  /// Sets the arena, with at least arena_bytes() bytes, and keeps it.
  void set_arena(device::Buffer arena);
  std::optional<NonFinite> run_until_non_finite() override;
  /// See Executor::run_keeping.
  std::vector<Tensor> run_keeping(std::span<const Tensor> feeds);
  std::vector<Tensor> run_owning(std::span<const Tensor> feeds);
  /// See Executor::run_on_device; on a device, with feeds in its memory or the host's.
  std::vector<DeviceTensor> run_on_device(std::span<const DeviceTensor> feeds);
  /// Memory of DeviceRun and DeviceSeries for inputs; none on the host.
  std::int64_t slot_bytes() const;
  std::int64_t block_bytes() const { return blocks_.bytes(); }
  const Recomputed& recomputed() const { return compiled_.plan.recomputed; }
  std::int64_t scratch_bytes() const;   ///< size of the largest scratch block
  std::int64_t constant_bytes() const;  ///< size of folded constants and of those of kernels
  /// Bytes that the host keeps for a plan on another device, constants and mirrors; 0 on the host.
  std::int64_t host_bytes() const;
  /// Memory of the executors of its subgraphs and of their plans, without tails.
  std::int64_t body_bytes() const;
  std::int64_t num_body_plans() const;
  const CompiledRegion& compiled() const { return compiled_; }
  /// True: addresses are pointers, kernels are called here.
  bool is_on_host() const { return on_device_ == nullptr; }
  /// True while its tail is looked up and run: it must be kept then.
  bool is_running() const { return is_running_; }
  /// Whether its kernels may throw, or in the last run those of its tail.
  bool may_throw() const;
  /// Called when the tail is dropped.
  void forget(const Region& tail);

 private:
  /// An input of the plan.
  struct Feed {
    device::Address address = device::Address::kNull;
    std::vector<std::size_t> args = {};  ///< positions in args_
  };

  device::Stream& stream() const { return *context_.options.stream; }
  device::Address resolve(const Location& location) const;
  device::Address output_address(std::size_t i) const;
  Tensor result_of(std::size_t call, const PlanResult& result) const;
  void set_feed(std::size_t i, device::Address address) {
    feeds_[i].address = address;
    for (const std::size_t arg : feeds_[i].args) args_[arg] = device::kernel_argument(address);
  }
  void bind_to_output(Region& tail, std::size_t feed, std::size_t output);
  void run_call(std::size_t i);
  void run_calls(const opdef::Launch& launch);
  void run_with_workers(const opdef::Launch& launch);
  std::optional<NonFinite> find_non_finite(std::size_t call) const;
  std::size_t num_outputs() const;
  std::int64_t own_constant_bytes() const;
  template <class F>
  std::vector<Tensor> run_in_blocks(std::span<const Tensor> feeds, F&& result_of);
  Tensor kept_output(std::size_t i, std::span<const Tensor> feeds) const;
  void throw_faults() const;
  void run_plan();
  void run_profiled();
  std::size_t run_series_on_device(const StepSeries& series, std::span<double> results);
  device::Address use_slot(std::size_t feed);
  void set_series_form(const StepSeries& series);
  void run_steps_on_device(const StepSeries& series);
  void run_in_pieces(const StepSeries& series);
  void count_complete_steps();
  void run_tail();
  void check_arena() const;
  /// Whether the plan reads an input.
  bool reads(std::size_t feed) const {
    return feed < feeds_.size() && compiled_.plan.feed_bytes[feed] >= 0;
  }
  void copy_results();
  void run_dynamic();
  Region& prepare_tail();
  Tensor plan_tensor(std::size_t output) const;
  std::vector<Tensor> run_body(const ir::Graph& body, std::vector<Tensor> inputs,
                               const DynamicNode& dynamic, std::int64_t iteration);

  CompiledRegion compiled_;
  RegionContext context_;
  std::unique_ptr<DeviceRun> on_device_;  // nullptr: the plan is run on the host
  std::unique_ptr<DeviceSeries> series_;  // made for its first series on a device
  bool is_plain_ = false;                 // a run is the calls of its kernels
  bool is_interruptible_ = false;         // long enough for it, and nothing is left half done
  bool has_arena_ = false;
  device::Buffer arena_;
  std::vector<std::pair<std::size_t, Location>> block_slots_;  // positions in args_
  BlockPool blocks_;
  std::vector<std::byte*> args_;
  std::vector<device::KernelCall> calls_;  // of the steps; on a device, then of the copies
  JointCalls joint_calls_;                 // the same on the host, grouped
  std::vector<Feed> feeds_;
  std::vector<KernelProfile*> profiles_;  // one per call, of the profiler's generation
  std::uint64_t profiled_generation_ = 0;

  std::vector<std::vector<Tensor>> dynamic_results_;
  std::unordered_map<const ir::Graph*, std::unique_ptr<BodyRunner>> bodies_;
  Region* current_tail_ = nullptr;  // tail of the last run, owned by context_.tails
  bool is_running_ = false;
};

}  // namespace onnxgrad::runtime

#endif  // ONNXGRAD_RUNTIME_REGION_H_
