#include "train/session/step_runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "train/losses/losses.h"
#include "train/optimizers/averages.h"
#include "train/session/label_form.h"

namespace onnxgrad::train {
namespace {

using runtime::Execution;

Backend with_collectives(Backend backend, Workers& workers) {
  backend.options.collectives = workers.collectives();
  return backend;
}

}  // namespace

StepRunner::StepRunner(StepGraph graph, const Lbfgs* lbfgs, const Backend& backend,
                       Workers& workers, const std::optional<OuterStep::Options>& outer)
    : Runner(graph.model, with_collectives(backend, workers)),
      graph_(std::move(graph)),
      results_(graph_.ports),
      backend_(backend),
      workers_(workers),
      lbfgs_(lbfgs == nullptr ? nullptr : std::make_unique<LbfgsStep>(*lbfgs, executor(), graph_)),
      state_({.executor = executor(),
              .graph = graph_,
              .workers = workers,
              .solver = lbfgs_ ? &lbfgs_->solver() : nullptr},
             /*is_initial=*/backend.options.state_of == nullptr, outer) {
  backend_.options.state_of = nullptr;
  const std::string& first =
      graph_.learning_rate.empty() ? graph_.worker_weight : graph_.learning_rate;
  if (first.empty()) return;
  const auto& inputs = executor().inputs();
  const auto at = std::ranges::find(inputs, first, &runtime::Port::name);
  ONNXGRAD_ASSERT(static_cast<std::size_t>(inputs.end() - at) == controls().size());
  end_data_at(static_cast<std::size_t>(at - inputs.begin()));
}

// One column cannot distinguish classes; if the file leaves their number open, data decides.
void StepRunner::check_class_columns(const std::vector<Dims>& dims) const {
  if (graph_.class_symbol.empty()) return;
  const auto ports = data_ports();
  for (std::size_t i = 0; i < ports.size(); ++i) {
    const auto& shape = ports[i].type.shape;
    for (std::size_t axis = 0; shape && axis < shape->size() && axis < dims[i].rank(); ++axis) {
      if ((*shape)[axis].symbol() != graph_.class_symbol || dims[i][axis] != 1) continue;
      throw DataError({.what = fmt::format("'{}' has one column in these data, but {} takes one "
                                           "column per class",
                                           graph_.loss.scores, describe(graph_.loss.function)),
                       .where = {.value = graph_.loss.scores},
                       .hint = "For two classes with one score use loss='binary_cross_entropy'."});
    }
  }
}

Execution& StepRunner::prepare(const std::vector<Dims>& dims) {
  check_class_columns(dims);
  std::vector<Dims> all = dims;
  all.resize(executor().inputs().size());  // the others are scalars
  Execution& plan = prepare_plan(all, graph_.loss);
  std::size_t port = data_ports().size();
  for (const std::byte* control : controls()) bind(plan, port++, control);
  last_plan_ = &plan;
  return plan;
}

// Addresses of the inputs after the data.
std::vector<const std::byte*> StepRunner::controls() const {
  std::vector<const std::byte*> all;
  const auto add = [&](const auto& number) {
    all.push_back(reinterpret_cast<const std::byte*>(&number));
  };
  if (!graph_.learning_rate.empty()) {
    graph_.learning_rate_dtype == DataType::kFloat64 ? add(rate_double_) : add(rate_float_);
  }
  if (!graph_.worker_weight.empty()) {
    add(worker_weight_);
    add(worker_signal_);
  }
  return all;
}

void StepRunner::set_rows(const RowSlice& slice, std::int64_t batch_rows) {
  worker_weight_ = slice.rows > 0 ? 1 : 0;
  opdef::StepCells& cells = executor().cells();
  cells.first_row = slice.first;
  cells.rows = std::max<std::int64_t>(slice.rows, 1);
  cells.batch_rows = batch_rows;
}

StepRunner::Results StepRunner::run_with_results(Execution& plan) {
  const StepPorts& ports = graph_.ports;
  std::vector<std::size_t> wanted = ports.extras;
  if (ports.row_losses) wanted.push_back(*ports.row_losses);
  Results results;
  if (lbfgs_) {
    results.loss = lbfgs_->run(plan, rate_double_, wanted, &results.outputs);
  } else {
    results.outputs = plan.run_copying(wanted);
    results.loss = scalar(plan, ports.loss);
  }
  if (ports.row_losses) {
    results.row_losses = std::move(results.outputs.back());
    results.outputs.pop_back();
  }
  state_.count_step();
  set_steps(steps() + 1);
  return results;
}

std::size_t StepRunner::run_series(Execution& plan, runtime::StepSeries series,
                                   std::span<const double> rates, std::span<double> results) {
  ONNXGRAD_ASSERT(runs_series());
  series.results = results_.outputs();
  if (!rates.empty() && !graph_.learning_rate.empty()) {
    const bool is_double = graph_.learning_rate_dtype == DataType::kFloat64;
    series.scalar = {.number = data_ports().size(),
                     .dtype = graph_.learning_rate_dtype,
                     .bound = is_double ? reinterpret_cast<std::byte*>(&rate_double_)
                                        : reinterpret_cast<std::byte*>(&rate_float_),
                     .values = rates};
  }
  const std::uint64_t first = executor().cells().step;
  // Also if a step throws: its rate is the last one.
  const auto end_after = [&](std::size_t last) {
    steps_ = static_cast<std::int64_t>(executor().cells().step);
    if (!rates.empty()) set_learning_rate(rates[std::min(last, rates.size() - 1)]);
  };
  try {
    const std::size_t done = plan.run_series(series, results);
    end_after(done - 1);
    return done;
  } catch (...) {
    end_after(executor().cells().step - first);
    throw;
  }
}

std::optional<runtime::NonFinite> StepRunner::run_until_non_finite(Execution& plan) {
  auto found = plan.run_until_non_finite();
  set_steps(steps() + 1);
  return found;
}

std::unique_ptr<StepRunner> StepRunner::unfused() const {
  Backend backend = backend_;
  backend.options.fuse = false;
  auto other = std::make_unique<StepRunner>(graph_, nullptr, backend, workers_);
  other->state_.take(state_);
  other->set_steps(steps());
  other->set_fixed_rows(fixed_rows_);
  other->read_averages(reads_averages_);
  return other;
}

std::optional<std::size_t> StepRunner::weights_port() const {
  const auto ports = data_ports();
  const auto port = std::ranges::find(ports, graph_.sample_weight, &runtime::Port::name);
  if (graph_.sample_weight.empty() || port == ports.end()) return std::nullopt;
  return static_cast<std::size_t>(port - ports.begin());
}

std::optional<std::size_t> StepRunner::evaluated_state(const std::string& weight) const {
  if (reads_averages_) {
    if (const auto average = state_.find(average_of(weight))) return average;
  }
  return state_.find(weight);
}

std::string StepRunner::plan_summary() const {
  return last_plan_ == nullptr ? "" : last_plan_->to_text();
}

std::optional<double> StepRunner::gradient_norm(const Execution& plan) const {
  if (!graph_.ports.gradient_norm) return std::nullopt;
  return scalar(plan, *graph_.ports.gradient_norm);
}

Runner::Runner(std::shared_ptr<const ir::Model> model, const Backend& backend)
    : executor_(backend.executor(std::move(model))), num_data_ports_(executor_.inputs().size()) {}

runtime::Execution& Runner::prepare_plan(const std::vector<Dims>& dims, const LossInfo& loss) {
  try {
    return executor_.prepare(dims);
  } catch (const ShapeError&) {
    check_places(loss, data_ports(), dims);
    throw;
  }
}

}  // namespace onnxgrad::train
