#include <algorithm>
#include <utility>

#include "ops/kernel_support.h"
#include "ops/recurrent/cell_cpu.h"
#include "ops/recurrent/cell_signatures.h"

// Kernels of GRU, of the functions of its gradient and of onnxgrad.fused.GRU, which is GRU with the
// results of GRUGates as additional outputs. The formulas are in gru.cpp; cell_cpu.h describes how
// the work is split. Start reading at run_forward and run_backward.

namespace onnxgrad::ops::recurrent::gru {

using enum Operand;

template <class T>
struct ForwardPlan {
  CellPlan cell = {};
  InputGemm<T> inputs = {};
  HiddenGemm<T> of_zr = {};    // y' R_z^T and y' R_r^T
  HiddenGemm<T> of_n = {};     // y' R_n^T, or (r y') R_n^T
  ScratchArray<T> gates = {};  // [D, T, N, 3 H] in scratch, if not kept
  ScratchArray<T> h = {};      // [D, N, H]
  ScratchArray<T> side = {};   // [D, N, H]: m, if not kept, or r y'
};

// Pre-activations of one step for all rows of a task; m, or nullptr.
template <class T>
const T* add_hidden(const ForwardPlan<T>& plan, const CellArgs& args, const TaskRows& task,
                    std::int64_t step, T* gates, T* h) {
  const CellShape& s = plan.cell.shape;
  const CellFunctions& functions = plan.cell.functions[static_cast<std::size_t>(task.direction)];
  plan.of_zr.run(args, task,
                 {.a = h,
                  .a_row = s.hidden,
                  .c = gates,
                  .c_row = s.width(),
                  .start = gates,
                  .start_row = s.width()});
  T* side = state_at(plan.cell, task, args.scratch(plan.side));
  if (plan.cell.attributes.linear_before_reset) {
    T* kept = kept_at(plan.cell, task, step, s.hidden, args.at<T>(kOutKept));
    T* m = kept != nullptr ? kept : side;
    const T* bias = args.at<const T>(kB);
    if (bias != nullptr) bias += (task.direction * 2 + 1) * s.width() + 2 * s.hidden;
    plan.of_n.run(args, task,
                  {.a = h, .a_row = s.hidden, .c = m, .c_row = s.hidden, .start = bias});
    return m;
  }
  step_table<T>(plan.cell.cpu.isa)
      .gru_reset(functions, {.rows = task.count, .hidden = s.hidden, .gates = gates, .h = h}, side);
  T* s_n = gates + 2 * s.hidden;
  plan.of_n.run(args, task,
                {.a = side,
                 .a_row = s.hidden,
                 .c = s_n,
                 .c_row = s.width(),
                 .start = s_n,
                 .start_row = s.width()});
  return nullptr;
}

template <class T>
void forward_task(const ForwardPlan<T>& plan, const CellArgs& args, const TaskRows& task,
                  T* all_gates) {
  const CellShape& s = plan.cell.shape;
  const CellFunctions& functions = plan.cell.functions[static_cast<std::size_t>(task.direction)];
  const bool goes_back = plan.cell.attributes.goes_back(static_cast<int>(task.direction));
  T* h = state_at(plan.cell, task, args.scratch(plan.h));
  copy_or_zero(state_at(plan.cell, task, args.at<const T>(kInitialH)), h, task.count * s.hidden);
  for (std::int64_t i = 0; i < s.steps; ++i) {
    const std::int64_t step = goes_back ? s.steps - 1 - i : i;
    T* gates = kept_at(plan.cell, task, step, s.width(), all_gates);
    const T* m = add_hidden(plan, args, task, step, gates, h);
    T* y = output_at(plan.cell, task, step, args.at<T>(kOutY));
    const auto row_of = [&](auto* rows, std::int64_t row) {
      return rows == nullptr ? nullptr : rows + row * s.hidden;
    };
    visit_rows(
        args, task, step,
        [&](std::int64_t first, std::int64_t count) {
          step_table<T>(plan.cell.cpu.isa)
              .gru(functions, {.rows = count,
                               .hidden = s.hidden,
                               .gates = gates + first * s.width(),
                               .linear = row_of(m, first),
                               .h = row_of(h, first),
                               .y = row_of(y, first)});
        },
        [&](std::int64_t row) {
          if (y != nullptr) copy_or_zero<T>(nullptr, row_of(y, row), s.hidden);
        });
  }
  if (T* last = state_at(plan.cell, task, args.at<T>(kOutYh))) {
    copy_last<T>(args, task, h, last);
  }
}

template <class T>
void run_forward(const ForwardPlan<T>& plan, KernelArgs arguments) {
  const CellArgs args{plan.cell, arguments};
  check_lengths(args);
  T* gates = args.at<T>(kOutGates);
  if (gates == nullptr) gates = args.scratch(plan.gates);
  plan.inputs.run(args, gates);
  plan.of_zr.pack(args);
  plan.of_n.pack(args);
  visit_tasks(plan.cell, [&](std::int64_t task) {
    forward_task(plan, args, task_rows(plan.cell, task), gates);
  });
}

template <class T>
struct BackwardPlan {
  CellPlan cell = {};
  HiddenGemm<T> of_zr = {};  // ds_z R_z + ds_r R_r
  HiddenGemm<T> of_n = {};   // dm R_n, or ds_n R_n
  WeightGemms<T> products = {};
  ScratchArray<T> dzr = {};     // [D, T N, 2 H]
  ScratchArray<T> dn = {};      // [D, T N, H]
  ScratchArray<T> dm = {};      // [D, T N, H], with m
  ScratchArray<T> before = {};  // [D, T N, H]: y'
  ScratchArray<T> q = {};       // [D, T N, H], without m: r y'
  ScratchArray<T> dq = {};      // [D, N, H], without m
  ScratchArray<T> dh = {};      // [D, N, H]
  ScratchArray<T> sums = {};    // [tasks, 4 H]: sums of ds_z, ds_r, ds_n, dm
};

// Operands of one step of a task: GruBackward for all its rows.
template <class T>
GruBackward<T> step_of(const BackwardPlan<T>& plan, const CellArgs& args, const TaskRows& task,
                       std::int64_t step) {
  const CellShape& s = plan.cell.shape;
  const bool is_linear = plan.cell.attributes.linear_before_reset;
  const auto buffer = [&](ScratchArray<T> array, std::int64_t width) {
    return kept_at(plan.cell, task, step, width, args.scratch(array));
  };
  GruBackward<T> at{
      .rows = task.count,
      .hidden = s.hidden,
      .gates = kept_at(plan.cell, task, step, s.width(), args.at<const T>(kGates)),
      .before = buffer(plan.before, s.hidden),
      .dy = output_at(plan.cell, task, step, args.at<const T>(kDY)),
      .dh = state_at(plan.cell, task, args.scratch(plan.dh)),
      .dzr = buffer(plan.dzr, 2 * s.hidden),
      .dn = buffer(plan.dn, s.hidden),
  };
  if (is_linear) {
    at.linear = kept_at(plan.cell, task, step, s.hidden, args.at<const T>(kKept));
    at.dm = buffer(plan.dm, s.hidden);
  } else {
    at.dq = state_at(plan.cell, task, args.scratch(plan.dq));
    at.q = buffer(plan.q, s.hidden);
  }
  return at;
}

// Returns the operands of rows [first, first + count).
template <class T>
GruBackward<T> rows_of(GruBackward<T> at, std::int64_t first, std::int64_t count) {
  const auto move = [&](auto*& rows, std::int64_t parts) {
    if (rows != nullptr) rows += first * parts * at.hidden;
  };
  at.rows = count;
  move(at.gates, 3);
  move(at.dzr, 2);
  for (const T** rows : {&at.linear, &at.before, &at.dy, &at.dq}) move(*rows, 1);
  for (T** rows : {&at.dh, &at.dn, &at.dm, &at.q}) move(*rows, 1);
  return at;
}

template <class T>
void zero_row(const GruBackward<T>& at, std::int64_t row) {
  const std::int64_t n = at.hidden;
  copy_or_zero<T>(nullptr, at.dzr + row * 2 * n, 2 * n);
  for (T* rows : {at.dn, at.dm, at.q}) {
    if (rows != nullptr) copy_or_zero<T>(nullptr, rows + row * n, n);
  }
}

// Runs one step backward: dh becomes the cotangent of y'.
template <class T>
void step_back(const BackwardPlan<T>& plan, const CellArgs& args, const TaskRows& task,
               std::int64_t step) {
  const CellShape& s = plan.cell.shape;
  const std::int64_t n = s.hidden;
  const CellFunctions& functions = plan.cell.functions[static_cast<std::size_t>(task.direction)];
  const GruBackward<T> at = step_of(plan, args, task, step);
  copy_before(args, task, step, kept_at(plan.cell, task, step, n, args.scratch(plan.before)));
  visit_rows(
      args, task, step,
      [&](std::int64_t first, std::int64_t count) {
        step_table<T>(plan.cell.cpu.isa).gru_back(functions, rows_of(at, first, count));
      },
      [&](std::int64_t row) { zero_row(at, row); });
  if (plan.cell.attributes.linear_before_reset) {
    plan.of_n.run(args, task,
                  {.a = at.dm, .a_row = n, .c = at.dh, .c_row = n, .start = at.dh, .start_row = n});
  } else {
    T* dq = state_at(plan.cell, task, args.scratch(plan.dq));
    plan.of_n.run(args, task, {.a = at.dn, .a_row = n, .c = dq, .c_row = n});
    visit_rows(
        args, task, step,
        [&](std::int64_t first, std::int64_t count) {
          step_table<T>(plan.cell.cpu.isa).gru_reset_back(functions, rows_of(at, first, count));
        },
        [](std::int64_t /*row*/) {});
  }
  plan.of_zr.run(
      args, task,
      {.a = at.dzr, .a_row = 2 * n, .c = at.dh, .c_row = n, .start = at.dh, .start_row = n});
  if (!plan.cell.has(kDB)) return;
  T* sums = args.scratch(plan.sums) + (task.direction * plan.cell.blocks + task.block) * 4 * n;
  const auto add = [&](const T* rows, std::int64_t width, T* to) {
    if (rows != nullptr)
      step_table<T>(plan.cell.cpu.isa).column_sums(rows, width, nullptr, task.count, width, to);
  };
  add(at.dzr, 2 * n, sums);
  add(at.dn, n, sums + 2 * n);
  add(at.dm, n, sums + 3 * n);
}

template <class T>
void backward_task(const BackwardPlan<T>& plan, const CellArgs& args, const TaskRows& task) {
  const CellShape& s = plan.cell.shape;
  const bool goes_back = plan.cell.attributes.goes_back(static_cast<int>(task.direction));
  const std::int64_t number = task.direction * plan.cell.blocks + task.block;
  copy_or_zero<T>(nullptr, args.scratch(plan.sums) + number * 4 * s.hidden, 4 * s.hidden);
  T* dh = state_at(plan.cell, task, args.scratch(plan.dh));
  copy_last<T>(args, task, state_at(plan.cell, task, args.at<const T>(kDYh)), dh);
  for (std::int64_t i = 0; i < s.steps; ++i) {
    step_back(plan, args, task, goes_back ? i : s.steps - 1 - i);
  }
  if (T* dinitial_h = state_at(plan.cell, task, args.at<T>(kDInitialH))) {
    std::copy_n(dh, task.count * s.hidden, dinitial_h);
  }
}

template <class T>
void run_backward(const BackwardPlan<T>& plan, KernelArgs arguments) {
  const CellShape& s = plan.cell.shape;
  const CellArgs args{plan.cell, arguments};
  check_lengths(args);
  plan.of_zr.pack(args);
  plan.of_n.pack(args);
  visit_tasks(plan.cell,
              [&](std::int64_t task) { backward_task(plan, args, task_rows(plan.cell, task)); });
  plan.products.run(args);
  T* db = args.at<T>(kDB);
  if (db == nullptr) return;
  for (std::int64_t d = 0; d < s.directions; ++d, db += 2 * s.width()) {
    // dB is ds_z, ds_r, ds_n for Wb, then ds_z, ds_r and dm or ds_n for Rb.
    add_blocks<T>(plan.cell, d, args.scratch(plan.sums), 4 * s.hidden, db);
    T* rb = db + s.width();
    const bool is_linear = plan.cell.attributes.linear_before_reset;
    std::copy_n(is_linear ? rb : rb - s.hidden, s.hidden, rb + 2 * s.hidden);
    std::copy_n(db, 2 * s.hidden, rb);
  }
}

template <class T>
KernelOffer offer_forward(CellPlan cell) {
  ForwardPlan<T> plan{.cell = std::move(cell)};
  const CellShape& s = plan.cell.shape;
  ScratchLayout scratch;
  plan.inputs.prepare(plan.cell, scratch);
  plan.of_zr.prepare(plan.cell, {.count = 2 * s.hidden, .transpose = true}, scratch);
  plan.of_n.prepare(plan.cell, {.first = 2 * s.hidden, .count = s.hidden, .transpose = true},
                    scratch);
  if (!plan.cell.has(kOutGates)) {
    plan.gates = scratch.reserve<T>(s.directions * s.rows() * s.width());
  }
  plan.h = scratch.reserve<T>(s.directions * s.batch * s.hidden);
  plan.side = scratch.reserve<T>(s.directions * s.batch * s.hidden);
  const double flops = flops_of(s);
  const std::vector<opdef::ValueCheck> checks = length_checks(plan.cell);
  KernelOffer offer = prepared<run_forward<T>>(std::move(plan), "steps");
  offer.kernel.checks = checks;
  offer.kernel.scratch_bytes = scratch.size_bytes();
  offer.kernel.flops = flops;
  return offer;
}

template <class T>
KernelOffer offer_backward(CellPlan cell) {
  BackwardPlan<T> plan{.cell = std::move(cell)};
  const CellShape& s = plan.cell.shape;
  const bool is_linear = plan.cell.attributes.linear_before_reset;
  const std::int64_t all_rows = s.directions * s.rows();
  ScratchLayout scratch;
  plan.of_zr.prepare(plan.cell, {.count = 2 * s.hidden}, scratch);
  plan.of_n.prepare(plan.cell, {.first = 2 * s.hidden, .count = s.hidden}, scratch);
  plan.dzr = scratch.reserve<T>(all_rows * 2 * s.hidden);
  plan.dn = scratch.reserve<T>(all_rows * s.hidden);
  plan.before = scratch.reserve<T>(all_rows * s.hidden);
  plan.dh = scratch.reserve<T>(s.directions * s.batch * s.hidden);
  plan.sums = scratch.reserve<T>(plan.cell.tasks() * 4 * s.hidden);
  GateGradients<T> zr{.values = plan.dzr, .width = 2 * s.hidden, .side = plan.before};
  GateGradients<T> n{.values = plan.dn, .width = s.hidden, .row = 2 * s.hidden};
  std::vector<GateGradients<T>> parts;
  if (is_linear) {
    plan.dm = scratch.reserve<T>(all_rows * s.hidden);
    GateGradients<T> m{
        .values = plan.dm, .width = s.hidden, .row = 2 * s.hidden, .side = plan.before};
    n.for_hidden = false;
    m.for_inputs = false;
    parts = {zr, n, m};
  } else {
    plan.q = scratch.reserve<T>(all_rows * s.hidden);
    plan.dq = scratch.reserve<T>(s.directions * s.batch * s.hidden);
    n.side = plan.q;
    parts = {zr, n};
  }
  plan.products.prepare(plan.cell, parts, scratch);
  const double flops = 2 * flops_of(s);
  KernelOffer offer = prepared<run_backward<T>>(std::move(plan), "steps");
  offer.kernel.scratch_bytes = scratch.size_bytes();
  offer.kernel.flops = flops;
  return offer;
}

KernelOffer offer_with(const KernelRequest& request, std::span<const Operand> outputs) {
  return offer_cell(request, {Cell::kGru, kInputs, outputs},
                    []<class T>(T, CellPlan plan) { return offer_forward<T>(std::move(plan)); });
}

KernelOffer offer(const KernelRequest& request) { return offer_with(request, kOutputs); }
KernelOffer offer_gates(const KernelRequest& request) { return offer_with(request, kGatesOutputs); }

KernelOffer offer_gradient(const KernelRequest& request) {
  return offer_cell(request, {Cell::kGru, kGradientInputs, kGradientOutputs},
                    []<class T>(T, CellPlan plan) { return offer_backward<T>(std::move(plan)); });
}

}  // namespace onnxgrad::ops::recurrent::gru

namespace onnxgrad::ops::gru_cpu {

void register_gru_cpu(opdef::KernelRegistry& registry) {
  registry.add("", "GRU", 0, recurrent::gru::offer);
  registry.add(ir::kFusedDomain, "GRU", 0, recurrent::gru::offer);
  registry.add(ir::kFunctionDomain, "GRUGates", 0, recurrent::gru::offer_gates);
  registry.add(ir::kFunctionDomain, "GRUGradient", 0, recurrent::gru::offer_gradient);
}

}  // namespace onnxgrad::ops::gru_cpu
