#ifndef ONNXGRAD_OPS_RECURRENT_CELL_CPU_H_
#define ONNXGRAD_OPS_RECURRENT_CELL_CPU_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "device/cpu/gemm.h"
#include "device/cpu/packed_gemm.h"
#include "device/cpu/scratch_layout.h"
#include "device/cpu/threads.h"
#include "ops/kernel_support.h"
#include "ops/recurrent/cell.h"
#include "ops/recurrent/cell_steps_simd.h"

// Parts shared by the kernels of RNN, GRU and LSTM. A task runs all steps for some rows (sequences)
// of one direction. Tasks are independent of each other, so threads synchronize only before and
// after the loop over the steps. Matrix products over all steps are outside this loop: X W^T before
// it in the forward pass; dX, dW and dR after it in the backward pass. Each step does one matrix
// product with R, packed once per call, and the element-wise part (cell_steps_simd.h). Symbols as
// in cell.h.

namespace onnxgrad::ops::recurrent {

struct CellShape {
  std::int64_t steps = 0;
  std::int64_t batch = 0;
  std::int64_t inputs = 0;
  std::int64_t hidden = 0;
  std::int64_t directions = 1;
  std::int64_t gates = 1;

  std::int64_t rows() const { return steps * batch; }
  std::int64_t width() const { return gates * hidden; }
};

/// Operands by name; CellPlan::place maps them to arguments of the kernel, -1 if absent.
enum class Operand : std::uint8_t {
  kX,
  kW,
  kR,
  kB,
  kLengths,
  kInitialH,
  kInitialC,
  kP,
  kY,
  kGates,
  kKept,  ///< cells of LSTM, m of GRU
  kDY,
  kDYh,
  kDYc,
  // Results.
  kOutY,
  kOutYh,
  kOutYc,
  kOutGates,
  kOutKept,
  kDX,
  kDW,
  kDR,
  kDB,
  kDInitialH,
  kDInitialC,
  kDP,
  kCount
};

using device::ScratchArray;
using device::ScratchLayout;

/// State of the forward and backward kernels at plan time.
struct CellPlan {
  CellAttributes attributes = {};
  CellShape shape = {};
  std::array<int, static_cast<std::size_t>(Operand::kCount)> place = {};
  int scratch = 0;  ///< argument index
  int threads = 1;
  device::CpuOptions cpu = {};
  std::int64_t blocks = 1;  ///< blocks of rows per direction
  std::vector<CellFunctions> functions = {};
  bool has_gate_values = false;  ///< fused.LSTM: the operand gates is i, o, u, n, not s
  std::string node = {};         ///< name for error messages

  std::int64_t tasks() const { return shape.directions * blocks; }
  bool has(Operand operand) const { return place[static_cast<std::size_t>(operand)] >= 0; }
};

/// Rows of a task.
struct TaskRows {
  std::int64_t direction = 0;
  std::int64_t block = 0;
  std::int64_t first = 0;
  std::int64_t count = 0;
};
TaskRows task_rows(const CellPlan& plan, std::int64_t task);

/// Arguments of one call.
struct CellArgs {
  const CellPlan& plan;
  KernelArgs args;

  template <class T>
  T* at(Operand operand) const {
    return args.find<T>(plan.place[static_cast<std::size_t>(operand)]);
  }
  /// Returns an array in scratch; nullptr if none is reserved.
  template <class T>
  T* scratch(ScratchArray<T> array) const {
    return array ? array.in(args[plan.scratch]) : nullptr;
  }
  const std::int32_t* lengths() const { return at<const std::int32_t>(Operand::kLengths); }
  /// Returns true if the step is within the sequence of this row.
  bool is_valid(std::int64_t step, std::int64_t row) const {
    const std::int32_t* all = lengths();
    return all == nullptr || step < all[row];
  }
};

/// Throws: DataError for a length of sequence `row` outside [0, steps].
[[noreturn]] void throw_length_error(const CellPlan& plan, std::int64_t row, std::int64_t length);
/// Throws: DataError naming the first of sequence_lens outside [0, steps].
void check_lengths(const CellArgs& args);
/// Declares the check of sequence_lens, for a forward kernel; a gradient needs none.
std::vector<opdef::ValueCheck> length_checks(const CellPlan& plan);

/// Calls valid(first, count) for runs of rows whose sequence includes the step, and none(row) for
/// the others; rows are counted from the first row of the task.
template <class V, class N>
void visit_rows(const CellArgs& args, const TaskRows& rows, std::int64_t step, V&& valid,
                N&& none) {
  std::int64_t first = 0;
  if (args.lengths() != nullptr) {
    for (std::int64_t row = 0; row < rows.count; ++row) {
      if (args.is_valid(step, rows.first + row)) continue;
      if (row > first) valid(first, row - first);
      none(row);
      first = row + 1;
    }
  }
  if (rows.count > first) valid(first, rows.count - first);
}

/// Names of the operands in the order of a node's inputs and outputs.
struct CellSignature {
  Cell cell = Cell::kRnn;
  std::span<const Operand> inputs;
  std::span<const Operand> outputs;
};

/// Fills `plan` with shapes, activation functions and argument indices. Returns the reason why no
/// kernel supports the node, or "". Throws: ShapeError, ModelError.
std::string plan_cell(const KernelRequest& request, const CellSignature& signature, CellPlan& plan);

/// Returns offer(T(), plan) for the type of X, float or double, or the reason why there is no
/// kernel.
template <class F>
KernelOffer offer_cell(const KernelRequest& request, const CellSignature& signature,
                       const F& offer) {
  CellPlan plan;
  if (auto reason = plan_cell(request, signature, plan); !reason.empty()) {
    return KernelOffer::decline(std::move(reason));
  }
  return offer_for_types<float, double>(request, request.inputs[0].dtype, [&](auto element) {
    return offer(element, std::move(plan));
  });
}

/// Returns the operations of a forward pass.
double flops_of(const CellShape& shape);

/// Sums of both biases, [D, G H] in scratch.
template <class T>
struct BiasSums {
  ScratchArray<T> sums = {};  ///< none without biases

  void prepare(const CellPlan& plan, ScratchLayout& layout);
  /// Computes and returns the sums of one direction; nullptr without biases.
  const T* run(const CellArgs& args, std::int64_t direction) const;
  /// Returns the result of run().
  const T* at(const CellArgs& args, std::int64_t direction) const {
    return sums ? args.scratch(sums) + direction * args.plan.shape.width() : nullptr;
  }
};

/// Input GEMM of the forward pass over all steps: gates of all directions = X W^T + biases.
template <class T>
struct InputGemm {
  device::PreparedGemm gemm = {};
  ScratchArray<std::byte> scratch = {};
  BiasSums<T> biases = {};

  void prepare(const CellPlan& plan, ScratchLayout& layout);
  void run(const CellArgs& args, T* gates) const;
};

/// Input GEMM for a few steps at a time, whose gates are still cached when the steps run.
template <class T>
struct InputSteps {
  device::PackedGemm<T> gemm = {};
  std::int64_t steps = 1;  ///< steps per GEMM
  ScratchArray<T> packed = {};
  BiasSums<T> biases = {};

  /// Returns true if this is faster than one GEMM over all steps.
  static bool fits(const CellPlan& plan);
  void prepare(const CellPlan& plan, ScratchLayout& layout);
  void pack(const CellArgs& args) const;
  /// Computes the gates if step i of the recurrence is the first of its group of steps.
  void run(const CellArgs& args, const TaskRows& task, std::int64_t i, T* gates) const;

 private:
  std::int64_t stride() const { return device::aligned_count<T>(gemm.packed_size()); }
};

/// Range of rows of R, [D, gates * hidden, hidden].
struct RowsOfR {
  std::int64_t first = 0;
  std::int64_t count = 0;
  bool transpose = false;  ///< x R^T, else x R
};

/// GEMM of one step with a range of rows of R, packed once per call.
template <class T>
struct HiddenGemm {
  RowsOfR part = {};
  device::PackedGemm<T> gemm = {};
  std::vector<typename device::PackedGemm<T>::Rows> rows = {};  ///< row range of each block
  ScratchArray<T> packed = {};

  void prepare(const CellPlan& plan, RowsOfR wanted, ScratchLayout& layout);
  void pack(const CellArgs& args) const;
  /// Multiplies; `operands` omits the packed matrix.
  void run(const CellArgs& args, const TaskRows& task,
           typename device::PackedGemm<T>::Operands operands) const;

 private:
  // Elements from one direction to the next; each starts on a cache line.
  std::int64_t stride() const { return device::aligned_count<T>(gemm.packed_size()); }
};

/// Slice of the gates' gradients, and the matching rows of W and R.
template <class T>
struct GateGradients {
  ScratchArray<T> values = {};  ///< [D, T N, width]
  std::int64_t width = 0;
  std::int64_t row = 0;
  bool for_inputs = true;     ///< used for the rows of W
  bool for_hidden = true;     ///< used for the rows of R
  bool for_weights = true;    ///< dW and dR, else only dX
  ScratchArray<T> side = {};  ///< [D, T N, H]: operand of the product with R
};

/// GEMMs of the backward pass over all steps.
template <class T>
struct WeightGemms {
  struct Part {
    GateGradients<T> part = {};
    device::PreparedGemm dx_first = {};  ///< dX = ...
    device::PreparedGemm dx_more = {};   ///< dX += ...
    device::PreparedGemm dw = {};
    device::PreparedGemm dr = {};
  };
  std::vector<Part> parts = {};
  ScratchArray<std::byte> scratch = {};
  ScratchArray<T> inputs = {};  ///< X with zeros as padding, if needed

  void prepare(const CellPlan& plan, std::span<const GateGradients<T>> wanted,
               ScratchLayout& layout);
  void run(const CellArgs& args) const;
};

/// dW and dR, summed over blocks of steps. If a task has all rows, they are summed while the
/// gradients of the gates are cached; else after all tasks, where each thread computes some rows of
/// dW and dR. Both ways give identical sums.
template <class T>
struct WeightSums {
  /// Rows of dW and dR, and their packed operands.
  struct Slice {
    std::int64_t first = 0;
    device::RowSumGemm<T> dw = {};
    device::RowSumGemm<T> dr = {};
    ScratchArray<T> dgates = {}, x = {}, before = {};
    ScratchArray<T> rows = {};  ///< [N, max(I, H)]: rows of X or y before packing
  };
  std::vector<Slice> slices = {};  ///< per direction if tasks have all rows, else per thread
  std::int64_t steps = 1;          ///< steps per sum
  bool has_dw = false;
  bool has_dr = false;

  /// Step of the backward pass.
  struct Step {
    std::int64_t number = 0;       ///< index in the backward pass
    std::int64_t step = 0;         ///< index in the sequence
    const T* gradients = nullptr;  ///< [N, G H]; nullptr: they are in panels()
  };

  void prepare(const CellPlan& plan, ScratchLayout& layout);
  /// Returns where to write the packed gradients of a step's gates, in vectors of columns with
  /// stride panel_size(); nullptr if the columns are not whole vectors or if add() is not called.
  T* panels(const CellArgs& args, std::int64_t direction, std::int64_t number) const;
  std::int64_t panel_size() const { return slices[0].dr.block * slices[0].dr.lanes; }
  /// Adds a step, if tasks have all rows.
  void add(const CellArgs& args, std::int64_t direction, const Step& at) const;
  /// Finishes the sums after all tasks. `dgates`: [D, T N, G H] if tasks have some rows only.
  void finish(const CellArgs& args, const T* dgates) const;

 private:
  void add_slice(const CellArgs& args, std::int64_t direction, const Slice& slice,
                 const Step& at) const;
};

/// Returns the address of row `first` of the task in a state [D, N, H]; nullptr for nullptr.
template <class T>
T* state_at(const CellPlan& plan, const TaskRows& rows, T* state) {
  const CellShape& s = plan.shape;
  if (state == nullptr) return nullptr;
  return state + (rows.direction * s.batch + rows.first) * s.hidden;
}

/// Returns the address of row `first` of the task in Y [T, D, N, H]; nullptr for nullptr.
template <class T>
T* output_at(const CellPlan& plan, const TaskRows& rows, std::int64_t step, T* y) {
  const CellShape& s = plan.shape;
  if (y == nullptr) return nullptr;
  return y + ((step * s.directions + rows.direction) * s.batch + rows.first) * s.hidden;
}

/// Returns the address of row `first` of the task in a kept array [D, T, N, width]; nullptr for
/// nullptr.
template <class T>
T* kept_at(const CellPlan& plan, const TaskRows& rows, std::int64_t step, std::int64_t width,
           T* kept) {
  const CellShape& s = plan.shape;
  if (kept == nullptr) return nullptr;
  return kept + ((rows.direction * s.steps + step) * s.batch + rows.first) * width;
}

/// Copies `count` elements, or writes zeros if `from` is nullptr.
template <class T>
void copy_or_zero(const T* from, T* to, std::int64_t count);

/// Copies rows of a last state or its cotangent; rows of sequences without steps become zero.
template <class T>
void copy_last(const CellArgs& args, const TaskRows& rows, const T* from, T* to);

/// Returns y of the step before `step`, if all sequences have all steps: an address in the operand
/// Y or initial_h, or nullptr for zeros.
template <class T>
const T* rows_before(const CellArgs& args, const TaskRows& rows, std::int64_t step);

/// Copies y of the step before `step` of each row, from the operand Y or initial_h; zeros where
/// there is no such step.
template <class T>
void copy_before(const CellArgs& args, const TaskRows& rows, std::int64_t step, T* to);

/// Calls f(task) for all tasks, on the plan's threads.
template <class F>
void visit_tasks(const CellPlan& plan, F&& f) {
  const std::int64_t tasks = plan.tasks();
  const auto threads = static_cast<int>(std::min<std::int64_t>(plan.threads, tasks));
  device::parallel_for(plan.shape.steps == 0 ? 1 : threads, tasks, f);
}

/// sums[0, size) = the sum over the blocks of direction d of parts [tasks, size].
template <class T>
void add_blocks(const CellPlan& plan, std::int64_t d, const T* parts, std::int64_t size, T* sums);

}  // namespace onnxgrad::ops::recurrent

#endif  // ONNXGRAD_OPS_RECURRENT_CELL_CPU_H_
