#include "train/fit/fit_stop.h"

#include <fmt/format.h>

#include <chrono>
#include <utility>

namespace onnxgrad::train {
namespace {

// Why a worker wants to end, as numbers whose sums over many workers show each reason.
constexpr double kStopped = 1;
constexpr double kTimeOver = 1 << 10;
constexpr double kCallback = 1 << 20;

}  // namespace

FitStop::FitStop(StopFlag& flag, const FitOptions& options, StepRunner& step, History& history)
    : flag_(flag),
      scope_(flag, options.on_interrupt),
      options_(options),
      step_(step),
      workers_(step.workers()),
      history_(history) {}

void FitStop::begin() {
  deadline_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                 std::chrono::duration<double>(options_.max_seconds));
}

bool FitStop::end_with(std::string reason) {
  if (history_.stop_reason.empty()) history_.stop_reason = std::move(reason);
  return false;
}

bool FitStop::end_by_callback() { return end_with("a callback asked to stop"); }

double FitStop::wish_to_stop() {
  double wish = 0;
  if (wants_stop()) wish += kStopped;
  if (is_time_over()) wish += kTimeOver;
  if (callback_stops_) wish += kCallback;
  return wish;
}

bool FitStop::ends_by_wish(const runtime::Execution& plan) {
  const double wish = step_.signal(plan);
  if (!(wish > 0)) return false;
  if (wish >= kCallback) {
    end_by_callback();
  } else if (wish >= kTimeOver) {
    end_by_time();
  } else {
    end();
  }
  return true;
}

bool FitStop::ends_with_step(const runtime::Execution& plan) {
  if (workers_.has_others()) return ends_by_wish(plan);
  if (flag_.is_set()) return !end();
  return is_time_over() && !end_by_time();
}

bool FitStop::note_callback() {
  callback_stops_ = workers_.has_others();
  return callback_stops_ || end_by_callback();
}

// An exception of an interrupt is kept until all workers have ended.
bool FitStop::wants_stop() {
  if (!workers_.has_others()) return flag_.is_set();
  if (interruption_ != nullptr) return true;
  try {
    return flag_.is_set();
  } catch (...) {
    interruption_ = std::current_exception();
    return true;
  }
}

// With several workers, all give the same reason.
std::string FitStop::reason() const {
  return workers_.has_others() ? "a worker was stopped" : flag_.reason();
}

bool FitStop::end_by_time() {
  return end_with(fmt::format("the time limit of {:g} s was reached", options_.max_seconds));
}

}  // namespace onnxgrad::train
