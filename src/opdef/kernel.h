#ifndef ONNXGRAD_OPDEF_KERNEL_H_
#define ONNXGRAD_OPDEF_KERNEL_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ir/graph.h"
#include "onnxgrad/tensor.h"
#include "opdef/follower.h"
#include "opdef/kernel_args.h"
#include "opdef/layout.h"
#include "opdef/op_table.h"

// The interface through which a plan gets its kernels. The planner asks the offers for a node, best
// first; an offer declines with a reason or returns a PreparedKernel: a plain function and a block
// of plain data, with everything precomputed that is known at plan time. Running a step is then a
// loop over {function, data, pointers}.

namespace onnxgrad::device {
class Device;       // device/device.h
struct CpuOptions;  // device/cpu_options.h
}  // namespace onnxgrad::device

namespace onnxgrad::opdef {

class BodyCompiler;     // opdef/body.h
class Collectives;      // opdef/collectives.h
class PackedConstants;  // opdef/packed_constants.h

/// An operand or result; dense and row-major but for kernels that ask for another layout. dtype
/// kUndefined: absent.
struct TensorDesc {
  DataType dtype = DataType::kUndefined;
  Dims dims = {};
  Layout layout = {};
  bool is_present() const { return dtype != DataType::kUndefined; }
};

/// The accuracy that a session asks its kernels for.
struct Numerics {
  bool is_deterministic = true;  ///< the same bits in every run; false: faster kernels may differ
  bool allows_tf32 = false;      ///< factors of products in float32 may be rounded to 10 bits
};

struct KernelRequest {
  const ir::Node& node;  ///< with complete attributes
  /// True if a pass asks before it makes the node: an offer declines, with the reason, if the nodes
  /// that it would replace are faster, and the kernel of one that accepts is not run. False for a
  /// node that is there and has to run.
  bool is_candidate = false;
  std::vector<TensorDesc> inputs;
  std::vector<TensorDesc> outputs;  ///< absent: not read
  /// Value of each input if known at plan time, else nullptr.
  std::vector<const Tensor*> constants;
  int threads = 1;
  /// Compiler of the node's subgraphs; nullptr where no body can be compiled.
  const BodyCompiler* bodies = nullptr;
  /// Whether the kernel may keep constants in a form of its own (PreparedKernel::kept_bytes).
  bool keeps_constants = false;
  /// Holds the packed constants of products, for all plans that read them; nullptr: none are kept.
  PackedConstants* packed = nullptr;
  /// For kernels on the CPU: what they may use of it; nullptr: everything.
  const device::CpuOptions* cpu = nullptr;
  Numerics numerics = {};
  device::Device* device = nullptr;  ///< that the kernel is for; nullptr: the host

  bool has_input(std::size_t i) const { return i < inputs.size() && inputs[i].is_present(); }
  bool has_output(std::size_t i) const { return i < outputs.size() && outputs[i].is_present(); }
};

/// Values that change from step to step, besides pointers; written by the loop before the step.
struct StepCells {
  std::uint64_t seed = 0;
  std::uint64_t step = 0;  ///< counts steps: the position in the random streams
  /// Rows of this worker, if several share a batch. Random numbers are those of the whole batch.
  std::int64_t first_row = 0;
  std::int64_t rows = 0;
  std::int64_t batch_rows = 0;         ///< rows of all workers; 0: there is one worker
  Collectives* collectives = nullptr;  ///< with which it exchanges data; nullptr: one worker
  bool operator==(const StepCells&) const = default;
};

/// Cells for an iteration of a body: the first one draws as the step does, all others differently.
inline StepCells cells_of_iteration(StepCells cells, std::int64_t iteration) {
  cells.seed += static_cast<std::uint64_t>(iteration) * 0x9E3779B97F4A7C15U;
  return cells;
}

/// Arguments that every kernel receives besides its pointers. Of a device whose kernels are
/// submitted by the host, `stream` is what the device calls a stream, and `cells` an address in its
/// memory, which recorded work reads each time that it runs.
struct Launch {
  void* stream = nullptr;
  const StepCells* cells = nullptr;
  /// Runs with this kernel, on the CPU; nullptr: none.
  const Follower* follower = nullptr;

  /// Says that a block of output 0 is complete: followers run.
  void complete(const Block& block) const {
    for (const Follower* each = follower; each != nullptr; each = each->next) {
      each->fn(each->data, each->args, *this, block);
    }
  }
};

/// Never fails on the request that it was prepared for, except for PreparedKernel::checks; never
/// allocates.
using KernelFn = void (*)(const void* data, KernelArgs args, const Launch& launch);

/// A reason for which a kernel may throw when it runs: values of an input that it checks.
struct ValueCheck {
  int input = -1;  ///< -1: other reasons, such as memory for texts or an interrupt
  /// Checks of the same value with the same bounds pass or fail together.
  std::vector<std::int64_t> bounds = {};
};

struct PreparedKernel {
  KernelFn fn = nullptr;
  std::shared_ptr<const void> data;  ///< owns what `fn` reads
  /// At the device's alignment; contents do not outlive the call.
  std::int64_t scratch_bytes = 0;
  std::int64_t kept_bytes = 0;  ///< constants stored in `data`, packed for instance
  /// (input, output) pairs that may share an address (only if their sizes in bytes are equal).
  std::vector<std::pair<int, int>> in_place = {};
  std::string label;  ///< implementation, for plans and profiles: "blocked 15x50x100"
  double flops = 0;
  /// All reasons for which the kernel may throw. A plan lets such a kernel run before states are
  /// overwritten, so that a step that throws has changed nothing. A kernel of a gradient leaves out
  /// what the forward pass, in the same step, has checked before.
  std::vector<ValueCheck> checks = {};
  /// Layouts of its inputs and outputs, by number; a list may be shorter: the others are plain.
  std::vector<Layout> input_layouts = {};
  std::vector<Layout> output_layouts = {};
  /// Why the kernel cannot be part of recorded work: it waits for the device, say, or reads a
  /// result on the host. Empty: it can.
  std::string not_recordable = {};
  bool is_deterministic = true;  ///< it returns the same bits in every run
  BlockResult completes = {};
  BlockWork by_blocks = {};

  Layout input_layout(std::size_t i) const {
    return i < input_layouts.size() ? input_layouts[i] : Layout{};
  }
  Layout output_layout(std::size_t i) const {
    return i < output_layouts.size() ? output_layouts[i] : Layout{};
  }
};

struct KernelOffer {
  PreparedKernel kernel;
  std::string declined;  ///< the reason, when kernel.fn == nullptr
  static KernelOffer decline(std::string reason) {
    return {.kernel = {}, .declined = std::move(reason)};
  }
};

using KernelOfferFn = KernelOffer (*)(const KernelRequest& request);

/// Operators whose output shapes depend on values (NonZero) or that run subgraphs (If).
struct DynamicCall {
  const ir::Node& node;
  std::vector<Tensor> inputs;  ///< undefined if absent
  /// Runs one of the node's subgraphs on these formal inputs; captured values are bound already.
  std::function<std::vector<Tensor>(const ir::Graph& body, std::vector<Tensor> inputs)>
      run_subgraph;
  /// The node in its closed form (see BodyCompiler), and the values of the inputs that it has
  /// besides those of `node`; nullptr unless it has subgraphs that can be compiled.
  const ir::Node* closed = nullptr;
  std::vector<Tensor> captured = {};
  const BodyCompiler* bodies = nullptr;
  const StepCells* cells = nullptr;
};
using DynamicFn = std::vector<Tensor> (*)(const DynamicCall& call);

class KernelRegistry {
 public:
  /// Offers with a higher rank are asked first; rank 0 is the plain reference kernel.
  void add(std::string_view domain, std::string_view op_type, int rank, KernelOfferFn offer);
  void add_dynamic(std::string_view domain, std::string_view op_type, DynamicFn fn);

  struct Entry {
    int rank = 0;
    KernelOfferFn offer = nullptr;
  };
  /// Offers for an operator, best first; empty if there is none. Specialised function names resolve
  /// to their base.
  std::span<const Entry> offers(std::string_view domain, std::string_view op_type) const;
  DynamicFn dynamic(std::string_view domain, std::string_view op_type) const;

  /// Operators of a domain that have offers, sorted.
  std::vector<std::string> op_types(std::string_view domain) const;
  /// Removes the offers for an operator, as for a device that runs some kernels of another.
  void remove(std::string_view domain, std::string_view op_type);

 private:
  OpTable<std::vector<Entry>> offers_;
  OpTable<DynamicFn> dynamic_;
};

/// Computes one node on tensors in memory; gives constant folding access to the kernels.
class Evaluator {
 public:
  virtual ~Evaluator() = default;
  /// Computes a node; nullopt if no kernel takes it. Absent inputs are undefined tensors.
  virtual std::optional<std::vector<Tensor>> evaluate(const ir::Node& node,
                                                      std::span<const Tensor> inputs) const = 0;
};

}  // namespace onnxgrad::opdef

#endif  // ONNXGRAD_OPDEF_KERNEL_H_
