#include "train/fit/epoch_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <span>
#include <vector>

#include "train/fit/fit_history.h"

namespace onnxgrad::train {

EpochReport::EpochReport(const Parts& fit)
    : fit_(fit), workers_(fit.step.workers()), best_(fit.options, fit.step, fit.history) {}

void EpochReport::begin_steps() {
  began_ = Clock::now();
  waited_ = network_wait();
}

void EpochReport::end_steps() {
  waited_ = network_wait() - waited_;
  computed_ = seconds_since(began_) - waited_;
}

double EpochReport::network_wait() const { return workers_.communicator().seconds_waited(); }

void EpochReport::fill(EpochLog& log, double waited_s) const {
  const FitProgress& progress = fit_.progress;
  const double seconds = progress.clock.seconds();
  log.epoch = progress.epoch;
  progress.loss.write_to(log, fit_.step.graph());
  log.learning_rate = fit_.step.learning_rate();
  log.steps = progress.step;
  log.rows = progress.row;
  log.rows_per_s = static_cast<double>(progress.row) / std::max(seconds, 1e-9);
  log.data_wait_s = progress.clock.wait(waited_s);
}

void EpochReport::validate(EpochLog& log, StopFlag& stop) {
  if (validation_ && log.epoch % fit_.options.validation_every == 0) validation_->run(stop, log);
}

void EpochReport::finish(EpochLog& log) {
  if (!validation_ || log.val_loss) best_.add(log);
  log.seconds = fit_.progress.clock.seconds();
  if (workers_.has_others()) share_times(log);
}

// Replaces the times by those of the first worker, so that all have the same history, and adds the
// seconds that each worker has computed and waited, which show the slow ones.
void EpochReport::share_times(EpochLog& log) const {
  const auto size = static_cast<std::size_t>(workers_.size());
  std::vector<double> times(4 + size, 0);
  if (workers_.rank() == 0)
    std::ranges::copy(std::array{log.seconds, log.rows_per_s, log.data_wait_s}, times.begin());
  times[3] = waited_;
  times[4 + static_cast<std::size_t>(workers_.rank())] = computed_;
  workers_.add_up(std::span(times));
  log.seconds = times[0];
  log.rows_per_s = times[1];
  log.data_wait_s = times[2];
  log.network_wait_s = times[3] / workers_.size();
  const std::span<const double> of_ranks = std::span(times).subspan(4);
  const auto slowest = std::ranges::max_element(of_ranks);
  log.slowest_rank = slowest - of_ranks.begin();
  log.slowest_host = workers_.communicator().hosts()[static_cast<std::size_t>(log.slowest_rank)];
  const double others = std::accumulate(of_ranks.begin(), of_ranks.end(), 0.0) - *slowest;
  log.slowest_lag_s = *slowest - others / (workers_.size() - 1);
}

void EpochReport::append(const EpochLog& log) {
  append_epoch(fit_.history, log, fit_.options.max_history);
}

void EpochReport::append_part(double waited_s) {
  const FitProgress& progress = fit_.progress;
  if (fit_.history.stop_reason.empty() || progress.row == 0 || std::isnan(progress.loss.mean()))
    return;
  EpochLog log;
  fill(log, waited_s);
  log.seconds = progress.clock.seconds();
  append(log);
}

bool EpochReport::stops_early(FitStop& stop) const {
  if (!best_.has_waited()) return false;
  stop.end_with(fmt::format("no improvement for {} epochs", fit_.options.early_stopping->patience));
  return true;
}

}  // namespace onnxgrad::train
