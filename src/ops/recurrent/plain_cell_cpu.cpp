#include "ops/recurrent/plain_cell_cpu.h"

#include <algorithm>
#include <utility>

#include "ops/kernel_support.h"

// RNN and LSTM; start reading at run_forward and run_backward. cell_cpu.h describes how the work is
// split.

namespace onnxgrad::ops::recurrent {
namespace {

template <class T>
struct ForwardPlan {
  CellPlan cell = {};
  InputGemm<T> inputs = {};  // used unless by_steps
  InputSteps<T> input_steps = {};
  bool by_steps = false;
  HiddenGemm<T> hidden = {};
  ScratchArray<T> gates = {};  // [D, T, N, G H] in scratch, if not kept
  ScratchArray<T> h = {};      // [D, N, H]
  ScratchArray<T> c = {};      // [D, N, H], LSTM only
};

template <class T>
void forward_rows(const ForwardPlan<T>& plan, const CellArgs& args, const TaskRows& task,
                  std::int64_t step, T* gates, T* h, T* c) {
  const CellShape& s = plan.cell.shape;
  const bool is_lstm = plan.cell.attributes.cell == Cell::kLstm;
  const CellFunctions& functions = plan.cell.functions[static_cast<std::size_t>(task.direction)];
  const T* peepholes = args.at<const T>(Operand::kP);
  if (peepholes != nullptr) peepholes += task.direction * 3 * s.hidden;
  T* y = output_at(plan.cell, task, step, args.at<T>(Operand::kOutY));
  T* cells = kept_at(plan.cell, task, step, s.hidden, args.at<T>(Operand::kOutKept));
  const auto row_of = [&](T* rows, std::int64_t row) {
    return rows == nullptr ? nullptr : rows + row * s.hidden;
  };
  visit_rows(
      args, task, step,
      [&](std::int64_t first, std::int64_t count) {
        if (is_lstm) {
          step_table<T>(plan.cell.cpu.isa)
              .lstm(functions, {.rows = count,
                                .hidden = s.hidden,
                                .gates = gates + first * s.width(),
                                .keeps_values = plan.cell.has_gate_values,
                                .peepholes = peepholes,
                                .c = row_of(c, first),
                                .h = row_of(h, first),
                                .y = row_of(y, first),
                                .cells = row_of(cells, first)});
        } else {
          step_table<T>(plan.cell.cpu.isa)
              .rnn(functions, {.rows = count,
                               .hidden = s.hidden,
                               .gates = gates + first * s.width(),
                               .h = row_of(h, first),
                               .y = row_of(y, first)});
        }
      },
      [&](std::int64_t row) {
        if (y != nullptr) copy_or_zero<T>(nullptr, row_of(y, row), s.hidden);
        if (cells != nullptr) copy_or_zero<T>(row_of(c, row), row_of(cells, row), s.hidden);
      });
}

template <class T>
void forward_task(const ForwardPlan<T>& plan, const CellArgs& args, const TaskRows& task,
                  T* all_gates) {
  const CellShape& s = plan.cell.shape;
  const bool is_lstm = plan.cell.attributes.cell == Cell::kLstm;
  const bool goes_back = plan.cell.attributes.goes_back(static_cast<int>(task.direction));
  const std::int64_t count = task.count * s.hidden;
  T* h = state_at(plan.cell, task, args.scratch(plan.h));
  T* c = is_lstm ? state_at(plan.cell, task, args.scratch(plan.c)) : nullptr;
  const T* initial_h = state_at(plan.cell, task, args.at<const T>(Operand::kInitialH));
  copy_or_zero(initial_h, h, count);
  if (is_lstm) {
    copy_or_zero(state_at(plan.cell, task, args.at<const T>(Operand::kInitialC)), c, count);
  }
  for (std::int64_t i = 0; i < s.steps; ++i) {
    const std::int64_t step = goes_back ? s.steps - 1 - i : i;
    T* gates = kept_at(plan.cell, task, step, s.width(), all_gates);
    if (plan.by_steps) plan.input_steps.run(args, task, i, all_gates);
    const bool is_zero = i == 0 && initial_h == nullptr;
    if (!is_zero) {
      plan.hidden.run(args, task,
                      {.a = h,
                       .a_row = s.hidden,
                       .c = gates,
                       .c_row = s.width(),
                       .start = gates,
                       .start_row = s.width()});
    }
    forward_rows(plan, args, task, step, gates, h, c);
  }
  if (T* last = state_at(plan.cell, task, args.at<T>(Operand::kOutYh))) {
    copy_last<T>(args, task, h, last);
  }
  if (T* last = state_at(plan.cell, task, args.at<T>(Operand::kOutYc))) {
    copy_last<T>(args, task, c, last);
  }
}

template <class T>
void run_forward(const ForwardPlan<T>& plan, KernelArgs arguments) {
  const CellArgs args{plan.cell, arguments};
  check_lengths(args);
  T* gates = args.at<T>(Operand::kOutGates);
  if (gates == nullptr) gates = args.scratch(plan.gates);
  if (plan.by_steps) {
    plan.input_steps.pack(args);
  } else {
    plan.inputs.run(args, gates);
  }
  plan.hidden.pack(args);
  visit_tasks(plan.cell, [&](std::int64_t task) {
    forward_task(plan, args, task_rows(plan.cell, task), gates);
  });
}

template <class T>
struct BackwardPlan {
  CellPlan cell = {};
  HiddenGemm<T> hidden = {};
  WeightSums<T> sums = {};
  WeightGemms<T> products = {};  // dX
  bool keeps_dgates = false;     // keeps those of all steps
  ScratchArray<T> dgates = {};   // [D, T N, G H] if kept, else [D, N, G H]
  ScratchArray<T> dh = {};       // [D, N, H]
  ScratchArray<T> dc = {};       // [D, N, H], LSTM only
  ScratchArray<T> db = {};       // [tasks, G H]
  ScratchArray<T> dp = {};       // [tasks, 3 H]
};

// Operands of one step of a task.
template <class T>
struct BackwardStep {
  std::int64_t step = 0;
  const T* cells = nullptr;
  const T* cells_before = nullptr;  // nullptr: zeros
  T* dh = nullptr;
  T* dc = nullptr;
  T* dgates = nullptr;
  T* panels = nullptr;  // panels of WeightSums
};

template <class T>
void backward_rows(const BackwardPlan<T>& plan, const CellArgs& args, const TaskRows& task,
                   const BackwardStep<T>& at) {
  const CellShape& s = plan.cell.shape;
  const CellFunctions& functions = plan.cell.functions[static_cast<std::size_t>(task.direction)];
  const T* peepholes = args.at<const T>(Operand::kP);
  if (peepholes != nullptr) peepholes += task.direction * 3 * s.hidden;
  const T* dy = output_at(plan.cell, task, at.step, args.at<const T>(Operand::kDY));
  const T* gates = kept_at(plan.cell, task, at.step, s.width(), args.at<const T>(Operand::kGates));
  const auto row_of = [&](auto* rows, std::int64_t row) {
    return rows == nullptr ? nullptr : rows + row * s.hidden;
  };
  visit_rows(
      args, task, at.step,
      [&](std::int64_t first, std::int64_t count) {
        T* dgates = at.dgates + first * s.width();
        if (plan.cell.attributes.cell == Cell::kLstm) {
          step_table<T>(plan.cell.cpu.isa)
              .lstm_back(functions, {.rows = count,
                                     .hidden = s.hidden,
                                     .gates = gates + first * s.width(),
                                     .has_values = plan.cell.has_gate_values,
                                     .peepholes = peepholes,
                                     .before = row_of(at.cells_before, first),
                                     .cells = row_of(at.cells, first),
                                     .dy = row_of(dy, first),
                                     .dh = row_of(at.dh, first),
                                     .dc = row_of(at.dc, first),
                                     .dgates = dgates,
                                     .panels = at.panels,
                                     .panel_size = plan.sums.panel_size()});
        } else {
          step_table<T>(plan.cell.cpu.isa)
              .rnn_back(functions, {.rows = count,
                                    .hidden = s.hidden,
                                    .gates = gates + first * s.width(),
                                    .dy = row_of(dy, first),
                                    .dh = row_of(at.dh, first),
                                    .dgates = dgates});
        }
        // If some rows are padding, whose dh is kept, the GEMM adds to dh: it is zeroed first.
        if (args.lengths() != nullptr) {
          copy_or_zero<T>(nullptr, row_of(at.dh, first), count * s.hidden);
        }
      },
      [&](std::int64_t row) { copy_or_zero<T>(nullptr, at.dgates + row * s.width(), s.width()); });
}

template <class T>
void add_sums(const BackwardPlan<T>& plan, const CellArgs& args, const TaskRows& task,
              const BackwardStep<T>& at) {
  const CellShape& s = plan.cell.shape;
  const std::int64_t number = task.direction * plan.cell.blocks + task.block;
  if (plan.cell.has(Operand::kDB)) {
    step_table<T>(plan.cell.cpu.isa)
        .column_sums(at.dgates, s.width(), nullptr, task.count, s.width(),
                     args.scratch(plan.db) + number * s.width());
  }
  if (!plan.cell.has(Operand::kDP)) return;
  T* dp = args.scratch(plan.dp) + number * 3 * s.hidden;
  const T* factors[3] = {at.cells_before, at.cells, at.cells_before};
  for (std::int64_t k = 0; k < 3; ++k) {
    if (factors[k] == nullptr) continue;
    step_table<T>(plan.cell.cpu.isa)
        .column_sums(at.dgates + k * s.hidden, s.width(), factors[k], task.count, s.hidden,
                     dp + k * s.hidden);
  }
}

// Returns the gates' gradients; of one step only, which stays cached, if no GEMM after the loop
// needs all.
template <class T>
T* dgates_at(const BackwardPlan<T>& plan, const CellArgs& args, const TaskRows& task,
             std::int64_t step) {
  const CellShape& s = plan.cell.shape;
  T* all = args.scratch(plan.dgates);
  if (plan.keeps_dgates) return kept_at(plan.cell, task, step, s.width(), all);
  return all + (task.direction * s.batch + task.first) * s.width();
}

template <class T>
void backward_task(const BackwardPlan<T>& plan, const CellArgs& args, const TaskRows& task) {
  const CellShape& s = plan.cell.shape;
  const bool is_lstm = plan.cell.attributes.cell == Cell::kLstm;
  const bool goes_back = plan.cell.attributes.goes_back(static_cast<int>(task.direction));
  const std::int64_t number = task.direction * plan.cell.blocks + task.block;
  if (plan.cell.has(Operand::kDB)) {
    copy_or_zero<T>(nullptr, args.scratch(plan.db) + number * s.width(), s.width());
  }
  if (plan.cell.has(Operand::kDP)) {
    copy_or_zero<T>(nullptr, args.scratch(plan.dp) + number * 3 * s.hidden, 3 * s.hidden);
  }
  const T* cells = args.at<const T>(Operand::kKept);
  BackwardStep<T> at{.dh = state_at(plan.cell, task, args.scratch(plan.dh))};
  copy_last<T>(args, task, state_at(plan.cell, task, args.at<const T>(Operand::kDYh)), at.dh);
  if (is_lstm) {
    at.dc = state_at(plan.cell, task, args.scratch(plan.dc));
    copy_last<T>(args, task, state_at(plan.cell, task, args.at<const T>(Operand::kDYc)), at.dc);
  }
  T* dinitial_h = state_at(plan.cell, task, args.at<T>(Operand::kDInitialH));
  for (std::int64_t i = 0; i < s.steps; ++i) {
    at.step = goes_back ? i : s.steps - 1 - i;
    const bool is_last = i + 1 == s.steps;
    at.dgates = dgates_at(plan, args, task, at.step);
    if (is_lstm) {
      at.cells = kept_at(plan.cell, task, at.step, s.hidden, cells);
      at.cells_before = is_last ? state_at(plan.cell, task, args.at<const T>(Operand::kInitialC))
                                : kept_at(plan.cell, task, goes_back ? at.step + 1 : at.step - 1,
                                          s.hidden, cells);
    }
    // Packed panels are not zeroed for padding.
    if (is_lstm && args.lengths() == nullptr) at.panels = plan.sums.panels(args, task.direction, i);
    backward_rows(plan, args, task, at);
    add_sums(plan, args, task, at);
    plan.sums.add(
        args, task.direction,
        {.number = i, .step = at.step, .gradients = at.panels == nullptr ? at.dgates : nullptr});
    if (is_last && dinitial_h == nullptr) break;
    plan.hidden.run(args, task,
                    {.a = at.dgates,
                     .a_row = s.width(),
                     .c = at.dh,
                     .c_row = s.hidden,
                     .start = args.lengths() == nullptr ? nullptr : at.dh,
                     .start_row = s.hidden});
  }
  if (dinitial_h != nullptr) std::copy_n(at.dh, task.count * s.hidden, dinitial_h);
  if (T* dinitial_c = state_at(plan.cell, task, args.at<T>(Operand::kDInitialC))) {
    std::copy_n(at.dc, task.count * s.hidden, dinitial_c);
  }
}

template <class T>
void run_backward(const BackwardPlan<T>& plan, KernelArgs arguments) {
  const CellShape& s = plan.cell.shape;
  const CellArgs args{plan.cell, arguments};
  check_lengths(args);
  plan.hidden.pack(args);
  visit_tasks(plan.cell,
              [&](std::int64_t task) { backward_task(plan, args, task_rows(plan.cell, task)); });
  plan.sums.finish(args, args.scratch(plan.dgates));
  plan.products.run(args);
  for (std::int64_t d = 0; d < s.directions; ++d) {
    if (T* db = args.at<T>(Operand::kDB)) {
      db += d * 2 * s.width();
      add_blocks<T>(plan.cell, d, args.scratch(plan.db), s.width(), db);
      std::copy_n(db, s.width(), db + s.width());
    }
    if (T* dp = args.at<T>(Operand::kDP)) {
      add_blocks<T>(plan.cell, d, args.scratch(plan.dp), 3 * s.hidden, dp + d * 3 * s.hidden);
    }
  }
}

template <class T>
KernelOffer offer_forward(CellPlan cell) {
  ForwardPlan<T> plan{.cell = std::move(cell)};
  const CellShape& s = plan.cell.shape;
  ScratchLayout scratch;
  plan.by_steps = InputSteps<T>::fits(plan.cell);
  if (plan.by_steps) {
    plan.input_steps.prepare(plan.cell, scratch);
  } else {
    plan.inputs.prepare(plan.cell, scratch);
  }
  plan.hidden.prepare(plan.cell, {.count = s.width(), .transpose = true}, scratch);
  if (!plan.cell.has(Operand::kOutGates)) {
    plan.gates = scratch.reserve<T>(s.directions * s.rows() * s.width());
  }
  plan.h = scratch.reserve<T>(s.directions * s.batch * s.hidden);
  plan.c = scratch.reserve<T>(s.directions * s.batch * s.hidden);
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
  ScratchLayout scratch;
  plan.hidden.prepare(plan.cell, {.count = s.width(), .transpose = false}, scratch);
  const bool has_dx = plan.cell.has(Operand::kDX);
  plan.keeps_dgates = has_dx || plan.cell.blocks > 1;
  plan.dgates =
      scratch.reserve<T>(s.directions * (plan.keeps_dgates ? s.rows() : s.batch) * s.width());
  plan.sums.prepare(plan.cell, scratch);
  if (has_dx) {
    const GateGradients<T> part{.values = plan.dgates, .width = s.width(), .for_weights = false};
    plan.products.prepare(plan.cell, {&part, 1}, scratch);
  }
  plan.dh = scratch.reserve<T>(s.directions * s.batch * s.hidden);
  plan.dc = scratch.reserve<T>(s.directions * s.batch * s.hidden);
  plan.db = scratch.reserve<T>(plan.cell.tasks() * s.width());
  plan.dp = scratch.reserve<T>(plan.cell.tasks() * 3 * s.hidden);
  const double flops = 2 * flops_of(s);
  KernelOffer offer = prepared<run_backward<T>>(std::move(plan), "steps");
  offer.kernel.scratch_bytes = scratch.size_bytes();
  offer.kernel.flops = flops;
  return offer;
}

}  // namespace

KernelOffer offer_plain_cell(const KernelRequest& request, const CellSignature& signature) {
  return offer_cell(request, signature,
                    []<class T>(T, CellPlan plan) { return offer_forward<T>(std::move(plan)); });
}

KernelOffer offer_plain_cell_gradient(const KernelRequest& request,
                                      const CellSignature& signature) {
  return offer_cell(request, signature,
                    []<class T>(T, CellPlan plan) { return offer_backward<T>(std::move(plan)); });
}

}  // namespace onnxgrad::ops::recurrent
