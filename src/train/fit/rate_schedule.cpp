#include "train/fit/rate_schedule.h"

#include <algorithm>
#include <utility>

namespace onnxgrad::train {

RateSchedule::RateSchedule(const FitOptions& options, StepRunner& step)
    : options_(options),
      step_(step),
      updates_every_(step.graph().steps_per_update),
      first_rate_(step.learning_rate()) {}

void RateSchedule::prepare(BatchFeed& feed, bool has_block, StopFlag& stop) {
  if (!options_.schedule) return;
  if (needs_updates(*options_.schedule) && !feed.num_batches()) {
    if (feed.num_rows() && !has_block) return;
    if (!feed.count_batches(stop)) {
      if (stop.is_set()) return;
      throw DataError({.what = "the schedule needs to know how many rows there are, but they can "
                               "be read only once",
                       .hint = "Pass rows: onnxgrad.data.Batches(batches, rows=1000); or give a "
                               "function that returns a new iterator."});
    }
  }
  std::optional<std::int64_t> updates;
  std::int64_t epochs = options_.epochs;
  if (const auto batches = feed.num_batches()) {
    std::int64_t steps = epochs * *batches;
    if (options_.max_steps > 0) steps = std::min(steps, options_.max_steps);
    updates = steps / updates_every_;
    epochs = (steps + *batches - 1) / std::max<std::int64_t>(*batches, 1);
  }
  schedule_.emplace(*options_.schedule, first_rate_, updates, epochs);
  if (!resumed_state_.empty()) schedule_->load_state(resumed_state_);
}

std::size_t RateSchedule::fill(const FitProgress& progress, std::span<double> rates) {
  if (thrown_) std::rethrow_exception(std::exchange(thrown_, nullptr));
  if (!options_.learning_rate) {
    for (std::size_t i = 0; i < rates.size(); ++i) {
      const std::int64_t step = progress.step + static_cast<std::int64_t>(i);
      rates[i] = schedule_->rate(step / updates_every_, progress.epoch - 1);
    }
    return rates.size();
  }
  for (std::size_t i = 0; i < rates.size(); ++i) {
    try {
      rates[i] = options_.learning_rate(progress.step + static_cast<std::int64_t>(i));
    } catch (...) {
      if (i == 0) throw;
      thrown_ = std::current_exception();
      return i;
    }
  }
  return rates.size();
}

void RateSchedule::end_epoch(double monitored_loss, const FitProgress& progress) {
  if (schedule_) schedule_->end_epoch(monitored_loss, progress.step / updates_every_);
}

void RateSchedule::end_fit() {
  if (schedule_) step_.set_learning_rate(first_rate_);
}

void RateSchedule::resume(std::vector<double> state) {
  resumed_state_ = std::move(state);
  if (schedule_) schedule_->load_state(resumed_state_);
}

}  // namespace onnxgrad::train
