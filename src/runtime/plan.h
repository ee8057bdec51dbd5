#ifndef ONNXGRAD_RUNTIME_PLAN_H_
#define ONNXGRAD_RUNTIME_PLAN_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "device/work.h"
#include "ir/graph.h"
#include "opdef/kernel.h"
#include "runtime/engine.h"
#include "runtime/layouts.h"
#include "runtime/schedule.h"

// A Plan is the result of make_plan for a graph of static shapes: kernels in order, with the
// location of each of their operands. It owns no memory except constants and can serve any number
// of executions.

namespace onnxgrad::runtime {

/// The place of a value's bytes when the plan runs.
struct Location {
  enum class Kind : std::uint8_t { kNone, kArena, kState, kFeed, kConstant, kBlock };
  Kind kind = Kind::kNone;
  std::int64_t at = 0;  ///< offset in the arena or block; number of the state, feed or constant
  std::size_t block = 0;
};

/// A floating-point result of a step, for inspection.
struct PlanResult {
  std::size_t arg = 0;  ///< index in the step's args
  std::string name;
  opdef::TensorDesc desc;
};

struct PlanStep {
  opdef::PreparedKernel kernel;
  std::vector<Location> args;  ///< inputs, outputs, scratch
  std::string op_type;
  std::string node;
  std::vector<PlanResult> results;
  std::string operands;       ///< "x float32[15, 100] @feed 0, ...", for printing
  std::size_t followers = 0;  ///< steps after it that run with it, see joint_steps.h
  /// One per argument; empty in plans of the host.
  std::vector<device::Operand> uses = {};
  device::CallPlace place = {};  ///< see assign_streams (streams.h)
  bool is_exchange = false;      ///< with other workers, which do it in the same order
  bool is_on_host = false;       ///< a kernel of the CPU: the device has none
  bool is_body = false;          ///< a function of the host, which submits work (opdef/body.h)
};

/// Bytes that are copied between the device and the host.
struct Transfer {
  Location at;
  std::int64_t bytes = 0;
};

/// Consecutive steps that are run in the same way.
struct Segment {
  enum class Kind : std::uint8_t {
    kRecordable,  ///< submitted at once; the device may record it and repeat the recording
    kSubmitted,   ///< submitted step by step
    kHost,        ///< run by the CPU, on copies of what it reads
  };
  Kind kind = Kind::kRecordable;
  std::size_t begin = 0;
  std::size_t end = 0;
  std::string reason = {};  ///< why it is not recordable
  /// Copied before it: to the host what its kernels read there, or else to the device.
  std::vector<Transfer> transfers = {};
};

/// Copies at the end of a step: results that go to the state, old values that are outputs.
struct Copy {
  Location from;
  Location to;
  std::int64_t bytes = 0;
};

struct PlanOutput {
  Location location;
  opdef::TensorDesc desc;
};

/// Values that a plan computes a second time instead of keeping them.
struct Recomputed {
  std::int64_t kernels = 0;  ///< kernels that run again
  std::int64_t values = 0;   ///< values that need not be kept
  std::int64_t bytes = 0;    ///< size of these values
  double flops = 0;          ///< operations of products and convolutions that run again

  Recomputed& operator+=(const Recomputed& other) {
    kernels += other.kernels;
    values += other.values;
    bytes += other.bytes;
    flops += other.flops;
    return *this;
  }
};

struct Plan {
  std::vector<PlanStep> steps;
  std::vector<Segment> segments = {};         ///< all steps, in order; empty in plans of the host
  std::vector<Transfer> last_transfers = {};  ///< to the device, after all steps
  std::vector<Tensor> constants;
  std::vector<std::int64_t> feed_bytes;  ///< by number; -1: not read
  std::vector<PlanOutput> outputs;       ///< one per output of the graph
  std::vector<Copy> copies;  ///< in order; those that read state come before those that write it
  std::int64_t arena_bytes = 0;
  std::int64_t kept_bytes = 0;  ///< constants that kernels keep in a form of their own
  Recomputed recomputed;
  std::vector<std::int64_t> block_bytes;  ///< sizes of the blocks that outputs are written to
  int threads = 1;                        ///< maximum for its kernels
  bool updates_state = false;             ///< a run that ends early would leave half an update

  std::string to_text() const;
  /// Whether a kernel may throw when it runs.
  bool may_throw() const {
    return std::ranges::any_of(steps,
                               [](const PlanStep& step) { return !step.kernel.checks.empty(); });
  }
};

/// The sources of a graph's inputs: numbers of states and of feeds.
struct GraphBinding {
  std::unordered_map<const ir::Value*, std::size_t> states;
  std::unordered_map<const ir::Value*, std::size_t> feeds;
  std::vector<StateUpdate> updates;
  /// States that are overwritten after the plan while its outputs are still read.
  std::unordered_set<std::size_t> updated_later = {};
  /// Block that each output of the graph is written to; other values are in the arena.
  std::vector<std::size_t> output_blocks = {};
  /// A run that throws leaves all states as they were.
  bool keeps_state_if_thrown = false;
  Layouts layouts = {};  ///< of the graph's values; see place_layouts()
};

/// Priority of the memory layout; the results have the same bits.
enum class PlanMemory : std::uint8_t {
  kFree,    ///< time: kernels may keep packed constants, buffers are reused soon
  kLimited  ///< memory: as little as possible
};

/// Chooses kernels, order and memory. Every value of `graph` has a static shape. `bodies`: for
/// nodes with subgraphs, in their closed form. `threads`: the maximum; plans and kernels for which
/// it does not pay take fewer. The cost is estimated, not timed: the same graph always has the same
/// number. `packed`: see KernelRequest::packed. Throws: UnsupportedOperatorError (no kernel),
/// InternalError.
Plan make_plan(const ir::Graph& graph, const GraphBinding& binding, const Engine& engine,
               int threads, PlanMemory memory, const opdef::BodyCompiler* bodies = nullptr,
               opdef::PackedConstants* packed = nullptr);

}  // namespace onnxgrad::runtime

#endif  // ONNXGRAD_RUNTIME_PLAN_H_
