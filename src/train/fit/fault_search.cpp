#include "train/fit/fault_search.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/finite.h"

namespace onnxgrad::train {

FaultSearch::FaultSearch(Session& session, BatchBinder& binder)
    : session_(session), binder_(binder), snapshot_(session) {}

void FaultSearch::take_snapshot(std::int64_t begin, const EpochLoss& loss) {
  snapshot_.take(session_);
  begin_ = begin;
  loss_ = loss;
  rate_ = session_.learning_rate();
  rates_.clear();
  forget_batches();
}

std::vector<std::string> FaultSearch::unchanged_weights() const {
  std::vector<std::string> names;
  for (const WeightInfo& weight : session_.graph().weights) names.push_back(weight.name);
  return snapshot_.unchanged(session_, names);
}

void FaultSearch::keep_batch(const RowBlock& block) {
  kept_.push_back(*block.data);
  for (const Column& column : block.data->columns) kept_bytes_ += column.values.size_bytes();
}

void FaultSearch::forget_batches() {
  kept_.clear();
  kept_bytes_ = 0;
}

FaultSearch::Batch FaultSearch::batch(const RowBlock* block, std::int64_t step) const {
  if (!kept_.empty()) {
    const PreparedData& data = kept_[static_cast<std::size_t>(step)];
    return {.block = {.data = &data, .order = {}, .rows = data.rows, .batch_rows = data.rows},
            .begin = 0,
            .rows = data.rows};
  }
  const std::int64_t begin = begin_ + step * block->batch_rows;
  return {
      .block = *block, .begin = begin, .rows = std::min(block->batch_rows, block->rows - begin)};
}

// The steps since the snapshot once more, as long as `is_wanted(number of steps done)`.
template <class F>
EpochLoss FaultSearch::replay(const RowBlock* block, F&& is_wanted) {
  snapshot_.restore(session_);
  EpochLoss sum = loss_;
  for (std::int64_t done = 0; is_wanted(done); ++done) {
    const Batch now = batch(block, done);
    if (!kept_.empty()) binder_.prepare(now.block, false);
    runtime::Execution& execution = binder_.bind(now.block, now.begin, now.rows);
    session_.set_learning_rate(rates_[static_cast<std::size_t>(done)]);
    const double loss = session_.run_step(execution);
    session_.set_steps(session_.steps() + 1);
    sum.add(session_, execution, loss, now.rows);
  }
  return sum;
}

FaultSearch::Finding FaultSearch::go_back(const RowBlock* block) {
  const std::int64_t bad = num_steps() - 1;
  Finding finding;
  bool is_finite = true;
  finding.loss = replay(block, [&](std::int64_t done) {
    is_finite = is_finite && runtime::all_finite(session_.state_views());
    if (is_finite) finding.good_steps = done;
    return is_finite && done < bad;
  });
  if (!is_finite) {
    finding.loss = replay(block, [&](std::int64_t done) { return done < finding.good_steps; });
  }
  for (std::int64_t step = 0; step < finding.good_steps; ++step) {
    finding.good_rows += batch(block, step).rows;
  }
  finding.rate =
      finding.good_steps == 0 ? rate_ : rates_[static_cast<std::size_t>(finding.good_steps - 1)];
  find_value(block, finding);
  return finding;
}

// Goes on from the last finite state with one kernel per node, which may round differently.
void FaultSearch::find_value(const RowBlock* block, Finding& finding) {
  runtime::Executor executor = session_.make_unfused();
  const auto& views = session_.state_views();
  for (std::size_t i = 0; i < views.size(); ++i) executor.set_state(i, views[i]);
  executor.cells() = session_.step_executor().cells();
  for (std::int64_t step = finding.good_steps; step < num_steps();
       ++step, ++executor.cells().step) {
    const Batch now = batch(block, step);
    runtime::Execution& execution = executor.prepare(binder_.batch_dims(*now.block.data, now.rows));
    binder_.bind_to(execution, now.block, now.begin, now.rows);
    session_.set_learning_rate(rates_[static_cast<std::size_t>(step)]);
    execution.bind(session_.learning_rate_port(), session_.learning_rate_cell());
    const auto found = execution.run_until_non_finite();
    if (!found) continue;
    // Plans have nodes of their own; values keep their names.
    const ir::Value* value = session_.graph().model->graph->find(found->value);
    const bool is_known = value != nullptr && value->producer != nullptr;
    finding.text = fmt::format("the first value that is not finite is '{}', of {}", found->value,
                               is_known ? value->producer->describe() : found->op_type);
    finding.step = step;
    return;
  }
}

std::string FaultSearch::describe_rows(const RowBlock* block, std::int64_t step) const {
  constexpr std::int64_t kListed = 4;
  const Batch now = batch(block, step);
  std::string text = now.rows == 1 ? "row" : "rows";
  for (std::int64_t i = 0; i < std::min(now.rows, kListed); ++i) {
    text += fmt::format("{} {}", i > 0 ? "," : "", now.block.row_number(now.begin + i));
  }
  return now.rows > kListed ? text + ", ..." : text;
}

}  // namespace onnxgrad::train
