#include "ops/recurrent/cell_cpu.h"

#include <fmt/format.h>

#include <string_view>
#include <utility>

#include "device/cpu/threads.h"
#include "device/cpu_options.h"
#include "onnxgrad/error.h"
#include "ops/kernel_support.h"
#include "ops/nn/window.h"

namespace onnxgrad::ops::recurrent {

namespace {

// Minimum number of operations for a second thread.
constexpr std::int64_t kParallelFlops = 1 << 20;
// Minimum rows per step for input GEMMs inside the loop over steps, and rows of such a GEMM over
// several steps: their gates and R fit into the L2 cache.
constexpr std::int64_t kFewRows = 12;
constexpr std::int64_t kStepRows = 96;
// Rows per partial sum of dW and dR: few enough for the L2 cache, many enough that dW and dR are
// seldom read and written.
constexpr std::int64_t kSumRows = 192;

struct OperandRow {
  std::string_view name;
  // Dimensions as letters: T, D, N, I, H, and 2H, GH, ... as "axis factor".
  std::string_view dims;
};

// Rows in the order of Operand. t: steps, d: directions, n: sequences, i: inputs, h: hidden, g:
// gates * hidden, b: 2 * gates * hidden, p: 3 * hidden.
constexpr OperandRow kOperands[] = {
    {"X", "tni"},           {"W", "dgi"},         {"R", "dgh"},         {"B", "db"},
    {"sequence_lens", "n"}, {"initial_h", "dnh"}, {"initial_c", "dnh"}, {"P", "dp"},
    {"Y", "tdnh"},          {"gates", "dtng"},    {"cells", "dtnh"},    {"dY", "tdnh"},
    {"dY_h", "dnh"},        {"dY_c", "dnh"},      {"Y", "tdnh"},        {"Y_h", "dnh"},
    {"Y_c", "dnh"},         {"gates", "dtng"},    {"cells", "dtnh"},    {"dX", "tni"},
    {"dW", "dgi"},          {"dR", "dgh"},        {"dB", "db"},         {"dinitial_h", "dnh"},
    {"dinitial_c", "dnh"},  {"dP", "dp"},
};

Dims expected_dims(const CellShape& s, std::string_view letters) {
  std::vector<std::int64_t> dims;
  for (const char letter : letters) {
    dims.push_back(letter == 't'   ? s.steps
                   : letter == 'd' ? s.directions
                   : letter == 'n' ? s.batch
                   : letter == 'i' ? s.inputs
                   : letter == 'h' ? s.hidden
                   : letter == 'g' ? s.width()
                   : letter == 'b' ? 2 * s.width()
                                   : 3 * s.hidden);
  }
  return Dims{dims};
}

CellShape read_shape(const KernelRequest& request, const CellAttributes& attributes) {
  const Dims& x = request.inputs[0].dims;
  const Dims& r = request.inputs[2].dims;
  if (x.rank() != 3 || r.rank() != 3) {
    throw ShapeError(problem_at(
        request.node,
        fmt::format("inputs X and R have shapes {} and {}, expected three dimensions each",
                    x.to_string(), r.to_string()),
        {}, "Give X as [steps, batch, inputs] and R as [directions, gates * hidden, hidden]."));
  }
  const std::int64_t hidden = request.node.int_attribute("hidden_size", r[2]);
  if (hidden != r[2] || hidden == 0) {
    throw ShapeError(problem_at(
        request.node,
        fmt::format("input R has shape {}, attribute hidden_size is {}", r.to_string(), hidden), {},
        "Give R and hidden_size the same number of hidden units, at least one."));
  }
  return {.steps = x[0],
          .batch = x[1],
          .inputs = x[2],
          .hidden = hidden,
          .directions = attributes.directions,
          .gates = attributes.gates()};
}

void check_operand(const KernelRequest& request, const CellShape& shape, Operand operand,
                   const TensorDesc& desc) {
  const OperandRow& row = kOperands[static_cast<std::size_t>(operand)];
  const Dims expected = expected_dims(shape, row.dims);
  if (desc.dims == expected) return;
  throw ShapeError(problem_at(
      request.node,
      fmt::format("'{}' has shape {}, expected {}", row.name, desc.dims.to_string(),
                  expected.to_string()),
      fmt::format("X has {} steps of {} sequences and {} inputs; there are {} direction{} and {} "
                  "hidden units.",
                  shape.steps, shape.batch, shape.inputs, shape.directions,
                  shape.directions == 1 ? "" : "s", shape.hidden),
      "Give all operands the shapes that fit these numbers."));
}

}  // namespace

std::string plan_cell(const KernelRequest& request, const CellSignature& signature,
                      CellPlan& plan) {
  plan.attributes = CellAttributes::read(request.node, signature.cell);
  plan.shape = read_shape(request, plan.attributes);
  plan.has_gate_values = request.node.int_attribute("gate_values", 0) != 0;
  plan.node = request.node.name;
  plan.place.fill(-1);
  const DataType dtype = request.inputs[0].dtype;
  const auto take = [&](std::span<const Operand> operands, const std::vector<TensorDesc>& descs,
                        std::size_t offset) -> std::string {
    for (std::size_t i = 0; i < descs.size(); ++i) {
      if (!descs[i].is_present()) continue;
      if (i >= operands.size()) return "more operands than the operator has";
      const DataType wanted = operands[i] == Operand::kLengths ? DataType::kInt32 : dtype;
      if (descs[i].dtype != wanted) return "operands of different types";
      check_operand(request, plan.shape, operands[i], descs[i]);
      plan.place[static_cast<std::size_t>(operands[i])] = static_cast<int>(offset + i);
    }
    return "";
  };
  if (auto reason = take(signature.inputs, request.inputs, 0); !reason.empty()) return reason;
  if (auto reason = take(signature.outputs, request.outputs, request.inputs.size());
      !reason.empty()) {
    return reason;
  }
  for (const Operand operand : signature.inputs) {
    const bool is_required = operand == Operand::kW || operand == Operand::kR;
    if (is_required && plan.place[static_cast<std::size_t>(operand)] < 0) {
      return "the type of W or R is not known";
    }
  }
  plan.scratch = static_cast<int>(request.inputs.size() + request.outputs.size());
  plan.threads = request.threads;
  plan.cpu = device::cpu_options(request);
  const CellShape& s = plan.shape;
  const bool is_large = 2 * s.rows() * s.width() * s.hidden >= kParallelFlops;
  const std::int64_t wanted = ceil_div(plan.threads, s.directions);
  plan.blocks =
      is_large ? std::clamp<std::int64_t>(wanted, 1, std::max<std::int64_t>(s.batch, 1)) : 1;
  if (!is_large) plan.threads = 1;
  for (int d = 0; d < plan.attributes.directions; ++d) {
    const std::size_t count = plan.attributes.functions();
    CellFunctions functions{.f = plan.attributes.activation(d, 0)};
    if (count > 1) functions.g = plan.attributes.activation(d, 1);
    if (count > 2) functions.h = plan.attributes.activation(d, 2);
    functions.clip = plan.attributes.clip;
    functions.input_forget = plan.attributes.input_forget;
    plan.functions.push_back(functions);
  }
  return "";
}

TaskRows task_rows(const CellPlan& plan, std::int64_t task) {
  const std::int64_t block = task % plan.blocks;
  const std::int64_t first = block * plan.shape.batch / plan.blocks;
  const std::int64_t end = (block + 1) * plan.shape.batch / plan.blocks;
  return {.direction = task / plan.blocks, .block = block, .first = first, .count = end - first};
}

double flops_of(const CellShape& s) {
  return 2.0 * static_cast<double>(s.directions) * static_cast<double>(s.rows()) *
         static_cast<double>(s.width()) * static_cast<double>(s.inputs + s.hidden);
}

void throw_length_error(const CellPlan& plan, std::int64_t row, std::int64_t length) {
  throw DataError({.what = fmt::format("sequence_lens[{}] is {}, expected 0 to {}", row, length,
                                       plan.shape.steps),
                   .where = {.node = plan.node},
                   .detail = "X has that many steps.",
                   .hint = "Give each sequence its number of steps."});
}

void check_lengths(const CellArgs& args) {
  const std::int32_t* lengths = args.lengths();
  if (lengths == nullptr) return;
  const CellShape& shape = args.plan.shape;
  for (std::int64_t row = 0; row < shape.batch; ++row) {
    if (lengths[row] >= 0 && lengths[row] <= shape.steps) continue;
    throw_length_error(args.plan, row, lengths[row]);
  }
}

std::vector<opdef::ValueCheck> length_checks(const CellPlan& plan) {
  if (!plan.has(Operand::kLengths)) return {};
  return {{.input = plan.place[static_cast<std::size_t>(Operand::kLengths)],
           .bounds = {plan.shape.steps}}};
}

template <class T>
void BiasSums<T>::prepare(const CellPlan& plan, ScratchLayout& layout) {
  if (plan.has(Operand::kB)) sums = layout.reserve<T>(plan.shape.directions * plan.shape.width());
}

template <class T>
const T* BiasSums<T>::run(const CellArgs& args, std::int64_t direction) const {
  if (!sums) return nullptr;
  const CellShape& s = args.plan.shape;
  const T* of_w = args.at<const T>(Operand::kB) + direction * 2 * s.width();
  const T* of_r = of_w + s.width();
  T* sum = args.scratch(sums) + direction * s.width();
  // With linear_before_reset the bias Rb of n is added before the reset gate.
  const std::int64_t shared = args.plan.attributes.linear_before_reset ? 2 * s.hidden : s.width();
  for (std::int64_t i = 0; i < s.width(); ++i) sum[i] = of_w[i] + (i < shared ? of_r[i] : T(0));
  return sum;
}

template <class T>
void InputGemm<T>::prepare(const CellPlan& plan, ScratchLayout& layout) {
  const CellShape& s = plan.shape;
  const bool has_bias = plan.has(Operand::kB);
  gemm =
      device::prepare_gemm({.dtype = dtype_of<T>(),
                            .m = s.rows(),
                            .n = s.width(),
                            .k = s.inputs,
                            .transpose_b = true,
                            .start = has_bias ? device::GemmStart::kRow : device::GemmStart::kZero,
                            .threads = plan.threads,
                            .cpu = plan.cpu});
  scratch = layout.reserve<std::byte>(gemm.scratch_bytes);
  biases.prepare(plan, layout);
}

template <class T>
void InputGemm<T>::run(const CellArgs& args, T* gates) const {
  const CellShape& s = args.plan.shape;
  for (std::int64_t d = 0; d < s.directions; ++d) {
    gemm({.a = args.at<const T>(Operand::kX),
          .b = args.at<const T>(Operand::kW) + d * s.width() * s.inputs,
          .start = biases.run(args, d),
          .c = gates + d * s.rows() * s.width(),
          .scratch = args.scratch(scratch)});
  }
}

template <class T>
bool InputSteps<T>::fits(const CellPlan& plan) {
  const CellShape& s = plan.shape;
  return s.inputs > 0 && s.steps > 0 && s.batch >= kFewRows;
}

template <class T>
void InputSteps<T>::prepare(const CellPlan& plan, ScratchLayout& layout) {
  const CellShape& s = plan.shape;
  gemm = device::PackedGemm<T>::prepare(plan.cpu.isa, s.inputs, s.width());
  // If a task has all rows, its rows are contiguous over steps.
  if (plan.blocks == 1) steps = std::clamp<std::int64_t>(kStepRows / s.batch, 1, s.steps);
  packed = layout.reserve<T>(s.directions * stride());
  biases.prepare(plan, layout);
}

template <class T>
void InputSteps<T>::pack(const CellArgs& args) const {
  const CellShape& s = args.plan.shape;
  for (std::int64_t d = 0; d < s.directions; ++d) {
    const T* w = args.at<const T>(Operand::kW) + d * s.width() * s.inputs;
    gemm.pack(w, s.inputs, true, args.scratch(packed) + d * stride());
    biases.run(args, d);
  }
}

template <class T>
void InputSteps<T>::run(const CellArgs& args, const TaskRows& task, std::int64_t i,
                        T* gates) const {
  if (i % steps != 0) return;
  const CellShape& s = args.plan.shape;
  const std::int64_t count = std::min(steps, s.steps - i);
  const bool goes_back = args.plan.attributes.goes_back(static_cast<int>(task.direction));
  const std::int64_t first = goes_back ? s.steps - i - count : i;
  gemm.run(gemm.rows(count * task.count),
           {.a = args.at<const T>(Operand::kX) + (first * s.batch + task.first) * s.inputs,
            .a_row = s.inputs,
            .packed = args.scratch(packed) + task.direction * stride(),
            .c = kept_at(args.plan, task, first, s.width(), gates),
            .c_row = s.width(),
            .start = biases.at(args, task.direction)});
}

template <class T>
void HiddenGemm<T>::prepare(const CellPlan& plan, RowsOfR wanted, ScratchLayout& layout) {
  part = wanted;
  const std::int64_t hidden = plan.shape.hidden;
  gemm = wanted.transpose ? device::PackedGemm<T>::prepare(plan.cpu.isa, hidden, wanted.count)
                          : device::PackedGemm<T>::prepare(plan.cpu.isa, wanted.count, hidden);
  for (std::int64_t block = 0; block < plan.blocks; ++block) {
    rows.push_back(gemm.rows(task_rows(plan, block).count));
  }
  packed = layout.reserve<T>(plan.shape.directions * stride());
}

template <class T>
void HiddenGemm<T>::pack(const CellArgs& args) const {
  const CellShape& s = args.plan.shape;
  for (std::int64_t d = 0; d < s.directions; ++d) {
    const T* r = args.at<const T>(Operand::kR) + (d * s.width() + part.first) * s.hidden;
    gemm.pack(r, s.hidden, part.transpose, args.scratch(packed) + d * stride());
  }
}

template <class T>
void HiddenGemm<T>::run(const CellArgs& args, const TaskRows& task,
                        typename device::PackedGemm<T>::Operands operands) const {
  operands.packed = args.scratch(packed) + task.direction * stride();
  gemm.run(rows[static_cast<std::size_t>(task.block)], operands);
}

template <class T>
void WeightGemms<T>::prepare(const CellPlan& plan, std::span<const GateGradients<T>> wanted,
                             ScratchLayout& layout) {
  using device::GemmStart;
  const CellShape& s = plan.shape;
  std::int64_t scratch_bytes = 0;
  const auto prepare_one = [&](device::GemmSpec spec) {
    spec.dtype = dtype_of<T>();
    spec.threads = plan.threads;
    spec.cpu = plan.cpu;
    device::PreparedGemm gemm = device::prepare_gemm(spec);
    scratch_bytes = std::max(scratch_bytes, gemm.scratch_bytes);
    return gemm;
  };
  for (const GateGradients<T>& part : wanted) {
    Part made{.part = part};
    const device::GemmSpec dx{.m = s.rows(), .n = s.inputs, .k = part.width};
    device::GemmSpec dx_more = dx;
    dx_more.start = GemmStart::kMatrix;
    made.dx_first = prepare_one(dx);
    made.dx_more = prepare_one(dx_more);
    parts.push_back(std::move(made));
    if (!part.for_weights) continue;
    Part& last = parts.back();
    last.dw = prepare_one({.m = part.width, .n = s.inputs, .k = s.rows(), .transpose_a = true});
    last.dr = prepare_one({.m = part.width, .n = s.hidden, .k = s.rows(), .transpose_a = true});
  }
  scratch = layout.reserve<std::byte>(scratch_bytes);
  if (plan.has(Operand::kLengths) && wanted.front().for_weights)
    inputs = layout.reserve<T>(s.rows() * s.inputs);
}

template <class T>
void WeightGemms<T>::run(const CellArgs& args) const {
  const CellShape& s = args.plan.shape;
  const T* x = args.at<const T>(Operand::kX);
  const T* w = args.at<const T>(Operand::kW);
  T* dx = args.at<T>(Operand::kDX);
  T* dw = args.at<T>(Operand::kDW);
  T* dr = args.at<T>(Operand::kDR);
  auto* own_scratch = args.scratch(scratch);
  if (inputs && dw != nullptr) {
    T* valid = args.scratch(inputs);
    for (std::int64_t row = 0; row < s.rows(); ++row) {
      const bool is_valid = args.is_valid(row / s.batch, row % s.batch);
      copy_or_zero<T>(is_valid ? x + row * s.inputs : nullptr, valid + row * s.inputs, s.inputs);
    }
    x = valid;
  }
  bool is_first = true;
  for (std::int64_t d = 0; d < s.directions; ++d) {
    for (const Part& made : parts) {
      const GateGradients<T>& part = made.part;
      const T* ds = args.scratch(part.values) + d * s.rows() * part.width;
      const std::int64_t weight_row = d * s.width() + part.row;
      if (part.for_inputs && dx != nullptr) {
        (is_first ? made.dx_first : made.dx_more)({.a = ds,
                                                   .b = w + weight_row * s.inputs,
                                                   .start = dx,
                                                   .c = dx,
                                                   .scratch = own_scratch});
        is_first = false;
      }
      if (part.for_inputs && part.for_weights && dw != nullptr) {
        made.dw({.a = ds, .b = x, .c = dw + weight_row * s.inputs, .scratch = own_scratch});
      }
      if (part.for_hidden && part.for_weights && dr != nullptr) {
        const T* side = args.scratch(part.side) + d * s.rows() * s.hidden;
        made.dr({.a = ds, .b = side, .c = dr + weight_row * s.hidden, .scratch = own_scratch});
      }
    }
  }
}

template <class T>
void WeightSums<T>::prepare(const CellPlan& plan, ScratchLayout& layout) {
  const CellShape& s = plan.shape;
  has_dw = plan.has(Operand::kDW) && s.inputs > 0;
  has_dr = plan.has(Operand::kDR);
  steps = std::clamp<std::int64_t>(kSumRows / std::max<std::int64_t>(s.batch, 1), 1,
                                   std::max<std::int64_t>(s.steps, 1));
  const std::int64_t block = steps * s.batch;
  const std::int64_t lanes = device::RowSumGemm<T>::prepare(plan.cpu.isa, 1, 1, 1).lanes;
  const std::int64_t panels = ceil_div(s.width(), lanes);
  const std::int64_t shares = plan.blocks == 1 ? 1 : std::min<std::int64_t>(plan.threads, panels);
  const std::int64_t count = plan.blocks == 1 ? s.directions : shares;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t chunk = plan.blocks == 1 ? 0 : i;
    Slice slice{.first = panels * chunk / shares * lanes};
    const std::int64_t end = std::min(panels * (chunk + 1) / shares * lanes, s.width());
    slice.dr = device::RowSumGemm<T>::prepare(plan.cpu.isa, end - slice.first, s.hidden, block);
    slice.dgates = layout.reserve<T>(slice.dr.a_size());
    slice.rows = layout.reserve<T>(s.batch * std::max(s.inputs, s.hidden));
    if (has_dw) {
      slice.dw = device::RowSumGemm<T>::prepare(plan.cpu.isa, end - slice.first, s.inputs, block);
      slice.x = layout.reserve<T>(slice.dw.b_size());
    }
    if (has_dr) slice.before = layout.reserve<T>(slice.dr.b_size());
    slices.push_back(slice);
  }
}

/// Copies rows of X, with zeros for padding.
template <class T>
const T* valid_rows(const CellArgs& args, const TaskRows& task, std::int64_t step, const T* from,
                    T* to) {
  const std::int64_t inputs = args.plan.shape.inputs;
  for (std::int64_t row = 0; row < task.count; ++row) {
    const bool is_valid = args.is_valid(step, task.first + row);
    copy_or_zero<T>(is_valid ? from + row * inputs : nullptr, to + row * inputs, inputs);
  }
  return to;
}

template <class T>
T* WeightSums<T>::panels(const CellArgs& args, std::int64_t direction, std::int64_t number) const {
  const CellShape& s = args.plan.shape;
  if (args.plan.blocks != 1 || (!has_dw && !has_dr)) return nullptr;
  const Slice& slice = slices[static_cast<std::size_t>(direction)];
  if (s.hidden % slice.dr.lanes != 0) return nullptr;
  return args.scratch(slice.dgates) + number % steps * s.batch * slice.dr.lanes;
}

template <class T>
void WeightSums<T>::add(const CellArgs& args, std::int64_t direction, const Step& at) const {
  if (args.plan.blocks != 1 || (!has_dw && !has_dr)) return;
  add_slice(args, direction, slices[static_cast<std::size_t>(direction)], at);
}

template <class T>
void WeightSums<T>::add_slice(const CellArgs& args, std::int64_t direction, const Slice& slice,
                              const Step& at) const {
  const CellShape& s = args.plan.shape;
  const TaskRows all{.direction = direction, .count = s.batch};
  const std::int64_t first = at.number % steps * s.batch;
  const bool is_padded = args.lengths() != nullptr;
  T* dgates = args.scratch(slice.dgates);
  T* rows = args.scratch(slice.rows);
  if (at.gradients != nullptr) {
    slice.dr.pack_a(at.gradients + slice.first, s.width(), first, s.batch, dgates);
  }
  if (has_dw) {
    const T* from = args.at<const T>(Operand::kX) + at.step * s.batch * s.inputs;
    if (is_padded) from = valid_rows(args, all, at.step, from, rows);
    slice.dw.pack_b(from, first, s.batch, args.scratch(slice.x));
  }
  // Without an initial state, the first step of a sequence multiplies R by zeros.
  const bool is_last = at.number + 1 == s.steps;
  const bool is_zero = is_last && args.at<const T>(Operand::kInitialH) == nullptr;
  if (has_dr && !is_zero) {
    const T* from = is_padded ? nullptr : rows_before<T>(args, all, at.step);
    if (from == nullptr) {
      copy_before(args, all, at.step, rows);
      from = rows;
    }
    slice.dr.pack_b(from, first, s.batch, args.scratch(slice.before));
  }
  if ((at.number + 1) % steps != 0 && !is_last) return;
  const auto sum = [&](const device::RowSumGemm<T>& gemm, ScratchArray<T> b, std::int64_t count,
                       Operand result) {
    gemm.run({.a = dgates,
              .b = args.scratch(b),
              .rows = count,
              .adds = at.number >= steps,
              .c = args.at<T>(result) + (direction * s.width() + slice.first) * gemm.n});
  };
  const std::int64_t last = first + s.batch;
  if (has_dw) sum(slice.dw, slice.x, last, Operand::kDW);
  if (has_dr) sum(slice.dr, slice.before, is_zero ? first : last, Operand::kDR);
}

template <class T>
void WeightSums<T>::finish(const CellArgs& args, const T* dgates) const {
  const CellPlan& plan = args.plan;
  const CellShape& s = plan.shape;
  if (s.steps == 0 || s.batch == 0) {
    const std::int64_t rows = s.directions * s.width();
    if (has_dw) copy_or_zero<T>(nullptr, args.at<T>(Operand::kDW), rows * s.inputs);
    if (has_dr) copy_or_zero<T>(nullptr, args.at<T>(Operand::kDR), rows * s.hidden);
    return;
  }
  if (plan.blocks == 1 || (!has_dw && !has_dr)) return;
  const auto count = static_cast<int>(slices.size());
  device::parallel_for(count, count, [&](std::int64_t chunk) {
    for (std::int64_t d = 0; d < s.directions; ++d) {
      const bool goes_back = plan.attributes.goes_back(static_cast<int>(d));
      for (std::int64_t i = 0; i < s.steps; ++i) {
        const std::int64_t step = goes_back ? i : s.steps - 1 - i;
        const T* gradients = dgates + (d * s.steps + step) * s.batch * s.width();
        add_slice(args, d, slices[static_cast<std::size_t>(chunk)],
                  {.number = i, .step = step, .gradients = gradients});
      }
    }
  });
}

template <class T>
void copy_or_zero(const T* from, T* to, std::int64_t count) {
  if (from == nullptr) {
    std::fill_n(to, count, T(0));
  } else {
    std::copy_n(from, count, to);
  }
}

template <class T>
void copy_last(const CellArgs& args, const TaskRows& rows, const T* from, T* to) {
  const std::int64_t hidden = args.plan.shape.hidden;
  const std::int32_t* lengths = args.lengths();
  for (std::int64_t row = 0; row < rows.count; ++row) {
    const bool is_empty = lengths != nullptr && lengths[rows.first + row] == 0;
    copy_or_zero<T>(is_empty || from == nullptr ? nullptr : from + row * hidden, to + row * hidden,
                    hidden);
  }
}

template <class T>
const T* rows_before(const CellArgs& args, const TaskRows& rows, std::int64_t step) {
  const CellPlan& plan = args.plan;
  const bool goes_back = plan.attributes.goes_back(static_cast<int>(rows.direction));
  const std::int64_t before = goes_back ? step + 1 : step - 1;
  if (before < 0 || before == plan.shape.steps) {
    return state_at(plan, rows, args.at<const T>(Operand::kInitialH));
  }
  return output_at(plan, rows, before, args.at<const T>(Operand::kY));
}

template <class T>
void copy_before(const CellArgs& args, const TaskRows& rows, std::int64_t step, T* to) {
  const CellPlan& plan = args.plan;
  const CellShape& s = plan.shape;
  const bool goes_back = plan.attributes.goes_back(static_cast<int>(rows.direction));
  const T* initial = state_at(plan, rows, args.at<const T>(Operand::kInitialH));
  const std::int64_t before = goes_back ? step + 1 : step - 1;
  const T* y = before < 0 || before == s.steps
                   ? nullptr
                   : output_at(plan, rows, before, args.at<const T>(Operand::kY));
  for (std::int64_t row = 0; row < rows.count; ++row) {
    const T* from = nullptr;
    if (args.is_valid(step, rows.first + row)) {
      const bool is_first = y == nullptr || !args.is_valid(before, rows.first + row);
      from = is_first ? initial : y;
      if (from != nullptr) from += row * s.hidden;
    }
    copy_or_zero(from, to + row * s.hidden, s.hidden);
  }
}

template <class T>
void add_blocks(const CellPlan& plan, std::int64_t d, const T* parts, std::int64_t size, T* sums) {
  copy_or_zero(parts + d * plan.blocks * size, sums, size);
  for (std::int64_t block = 1; block < plan.blocks; ++block) {
    const T* more = parts + (d * plan.blocks + block) * size;
    for (std::int64_t i = 0; i < size; ++i) sums[i] += more[i];
  }
}

template struct InputGemm<float>;
template struct InputGemm<double>;
template struct InputSteps<float>;
template struct InputSteps<double>;
template struct HiddenGemm<float>;
template struct HiddenGemm<double>;
template struct WeightGemms<float>;
template struct WeightGemms<double>;
template struct WeightSums<float>;
template struct WeightSums<double>;
template void copy_or_zero(const float*, float*, std::int64_t);
template void copy_or_zero(const double*, double*, std::int64_t);
template void copy_last(const CellArgs&, const TaskRows&, const float*, float*);
template void copy_last(const CellArgs&, const TaskRows&, const double*, double*);
template void copy_before(const CellArgs&, const TaskRows&, std::int64_t, float*);
template void copy_before(const CellArgs&, const TaskRows&, std::int64_t, double*);
template void add_blocks(const CellPlan&, std::int64_t, const float*, std::int64_t, float*);
template void add_blocks(const CellPlan&, std::int64_t, const double*, std::int64_t, double*);

}  // namespace onnxgrad::ops::recurrent
