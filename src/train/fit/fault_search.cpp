#include "train/fit/fault_search.h"

#include <fmt/format.h>

#include <algorithm>

namespace onnxgrad::train {

FaultSearch::FaultSearch(StepRunner& step, BatchBinder& binder, std::int64_t interval)
    : step_(step),
      binder_(binder),
      snapshot_(step),
      interval_(interval),
      results_(step.results().size()) {}

void FaultSearch::take_snapshot(const FitProgress& progress) {
  snapshot_.take();
  place_ = progress;
  rate_ = step_.learning_rate();
  rates_.clear();
  forget_batches();
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
  const std::int64_t begin = place_.row - place_.block_first_row + step * block->batch_rows;
  return {
      .block = *block, .begin = begin, .rows = std::min(block->batch_rows, block->rows - begin)};
}

// Repeats the steps since the snapshot, as long as `is_wanted(number of steps done)`.
template <class F>
EpochLoss FaultSearch::replay(const RowBlock* block, F&& is_wanted) {
  snapshot_.restore();
  EpochLoss sum = place_.loss;
  for (std::int64_t done = 0; is_wanted(done); ++done) {
    const Batch now = batch(block, done);
    if (!kept_.empty()) binder_.prepare(now.block, false);
    runtime::Execution& plan = binder_.bind(now.block, now.begin, now.rows);
    step_.set_learning_rate(rates_[static_cast<std::size_t>(done)]);
    step_.read_results(plan, step_.run(plan), results_);
    sum.add(step_, results_, now.rows);
  }
  return sum;
}

std::string FaultSearch::go_back(const std::string& fault, const RowBlock* block,
                                 FitProgress& progress) {
  const std::int64_t bad = num_steps() - 1;
  std::string text =
      fmt::format("{} at epoch {}, step {} (batch {}, {})", fault, progress.epoch, progress.step,
                  progress.step - progress.epoch_first_step, describe_rows(block, bad));
  std::int64_t good = 0;
  bool is_finite = true;
  progress.is_inside_step = true;  // there is no checkpoint if the steps fail now
  progress.loss = replay(block, [&](std::int64_t done) {
    is_finite = is_finite && step_.state().is_finite();
    if (is_finite) good = done;
    return is_finite && done < bad;
  });
  if (!is_finite) {
    progress.loss = replay(block, [&](std::int64_t done) { return done < good; });
  }
  text += find_value(block, good);
  progress.is_inside_step = false;
  progress.step = place_.step + good;
  progress.row = place_.row;
  for (std::int64_t step = 0; step < good; ++step) progress.row += batch(block, step).rows;
  step_.set_learning_rate(good == 0 ? rate_ : rates_[static_cast<std::size_t>(good - 1)]);
  return text;
}

// Continues from the last finite state with one kernel per node, which may round differently: empty
// if its values are finite.
std::string FaultSearch::find_value(const RowBlock* block, std::int64_t good_steps) {
  const auto unfused = step_.unfused();
  for (std::int64_t step = good_steps; step < num_steps(); ++step) {
    const Batch now = batch(block, step);
    runtime::Execution& plan = binder_.bind(*unfused, now.block, now.begin, now.rows);
    unfused->set_learning_rate(rates_[static_cast<std::size_t>(step)]);
    const auto found = unfused->run_until_non_finite(plan);
    const std::string text =
        first_of_workers(found ? describe_value(*found, step) : "", found ? found->position : 0);
    if (!text.empty()) return text;
  }
  return "";
}

std::string FaultSearch::describe_value(const runtime::NonFinite& found, std::int64_t step) const {
  // Plans have their own nodes; values keep their names.
  const ir::Value* value = step_.graph().model->graph->find(found.value);
  const bool is_known = value != nullptr && value->producer != nullptr;
  return fmt::format("; the first value that is not finite is '{}', of {} in step {}", found.value,
                     is_known ? value->producer->describe() : found.op_type,
                     place_.step + step + 1);
}

// The finding of the worker whose fault is earliest in the plan, with its name: the others find
// values that it has sent.
std::string FaultSearch::first_of_workers(const std::string& text, std::size_t position) const {
  if (!step_.workers().has_others()) return text;
  dist::Communicator& all = step_.workers().communicator();
  const std::string mine = text.empty() ? "" : fmt::format("{:012}{}", position, text);
  const auto texts = all.all_gather_texts(mine);
  const std::string* first = nullptr;
  for (const std::string& one : texts) {
    if (!one.empty() && (first == nullptr || one.substr(0, 12) < first->substr(0, 12))) {
      first = &one;
    }
  }
  if (first == nullptr) return "";
  return first->substr(12) + ", on " + all.rank_name(static_cast<int>(first - texts.data()));
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
