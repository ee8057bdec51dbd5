#include "train/fit/best_epoch.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"

namespace onnxgrad::train {
namespace {

constexpr std::string_view kPurpose = "best";  // name of the copy in a checkpoint

// The number that determines the best epoch; smaller is better.
double monitored(const FitOptions& options, const EpochLog& log) {
  if (!options.early_stopping || options.early_stopping->monitor.empty()) {
    return log.val_loss.value_or(log.train_loss);
  }
  const std::string& monitor = options.early_stopping->monitor;
  const double sign = options.early_stopping->maximize ? -1 : 1;
  if (monitor == "train_loss") return sign * log.train_loss;
  if (monitor == "val_loss" && log.val_loss) return sign * *log.val_loss;
  if (monitor == "val_accuracy" && log.val_accuracy) return sign * *log.val_accuracy;
  const auto found =
      std::ranges::find(log.val_metrics, monitor, &std::pair<std::string, double>::first);
  ONNXGRAD_ASSERT(found != log.val_metrics.end());  // check_monitor() refuses others
  return sign * found->second;
}

}  // namespace

BestEpoch::BestEpoch(const FitOptions& options, StepRunner& step, History& history)
    : options_(options), history_(history) {
  const bool restores_best = options.early_stopping && options.early_stopping->restore_best;
  if (restores_best || options.keep_best) snapshot_.emplace(step);
}

void BestEpoch::check_monitor(bool has_validation, bool counts_correct_rows) const {
  if (!options_.early_stopping || options_.early_stopping->monitor.empty()) return;
  std::vector<std::string> known{"train_loss"};
  if (has_validation) {
    known.emplace_back("val_loss");
    if (counts_correct_rows) known.emplace_back("val_accuracy");
    for (const Metric& metric : options_.metrics) known.push_back("val_" + metric.name);
  }
  const std::string& monitor = options_.early_stopping->monitor;
  if (std::ranges::find(known, monitor) != known.end()) return;
  throw DataError(
      {.what = "there is no '" + monitor + "' to monitor",
       .detail = "There are " + base::quote_list(known) + ".",
       .hint = base::nearest_or(monitor, known,
                                "Monitor one of these, or add the metric, or validation rows.")});
}

void BestEpoch::add(EpochLog& log) {
  const double loss = monitored(options_, log);
  if (std::isnan(loss)) {  // never the best
    ++epochs_without_improvement_;
    return;
  }
  const double delta = options_.early_stopping ? options_.early_stopping->min_delta : 0;
  const bool first = !history_.best_epoch;
  if (first || loss < loss_) {
    log.is_best = true;
    history_.best_epoch = log.epoch;
    is_unsaved_ = true;
    if (snapshot_) snapshot_->take();
  }
  const bool improved = first || loss < loss_ - delta;
  loss_ = log.is_best ? loss : loss_;
  epochs_without_improvement_ = improved ? 0 : epochs_without_improvement_ + 1;
}

bool BestEpoch::has_waited() const {
  return options_.early_stopping && epochs_without_improvement_ > 0 &&
         epochs_without_improvement_ >= options_.early_stopping->patience;
}

bool BestEpoch::restore() const {
  if (!snapshot_ || !history_.best_epoch) return false;
  snapshot_->restore();
  return true;
}

void BestEpoch::add_to(Checkpoint& checkpoint) const {
  checkpoint.set_int("fit/epochs_without_improvement", epochs_without_improvement_);
  checkpoint.set_double("fit/best_loss", loss_);
  if (snapshot_ && history_.best_epoch) snapshot_->add_to(checkpoint, kPurpose);
}

void BestEpoch::take_weights(const Checkpoint& checkpoint, bool has_best) {
  if (!snapshot_ || !has_best || snapshot_->take_from(checkpoint, kPurpose)) return;
  throw CheckpointError({.what = "the checkpoint has no copy of the best weights",
                         .where = {.file = checkpoint.path},
                         .hint = "Resume without restore_best, as in the first run."});
}

void BestEpoch::take_numbers(const Checkpoint& checkpoint) {
  epochs_without_improvement_ = checkpoint.get_int("fit/epochs_without_improvement");
  loss_ = checkpoint.get_double("fit/best_loss");
}

}  // namespace onnxgrad::train
