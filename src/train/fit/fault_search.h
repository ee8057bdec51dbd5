#ifndef ONNXGRAD_TRAIN_FIT_FAULT_SEARCH_H_
#define ONNXGRAD_TRAIN_FIT_FAULT_SEARCH_H_

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "train/fit/batch_binder.h"
#include "train/fit/fit_progress.h"
#include "train/fit/state_snapshot.h"

// A non-finite loss is investigated after the fact: plans are deterministic, so repeating the
// steps since a snapshot of the state yields the same bits up to the last finite
// state; from there a plan of one kernel per node finds the first non-finite value. The steady
// loop pays only for snapshots and for one number per step.

namespace onnxgrad::train {

/// Whether a fit returns to the last finite state.
inline bool goes_back(OnNonFinite policy) {
  return policy == OnNonFinite::kRaise || policy == OnNonFinite::kStop;
}

class FaultSearch {
 public:
  /// A snapshot is due after `interval` steps; 0: never. Counts in MemoryReport::snapshots. All
  /// outlive this.
  FaultSearch(StepRunner& step, BatchBinder& binder, std::int64_t interval);

  /// Steps from here on can be repeated; the state is finite. They are those of one block, or
  /// (with keep_batch) batches that were kept.
  void take_snapshot(const FitProgress& progress);
  bool is_snapshot_due() const { return interval_ > 0 && num_steps() >= interval_; }
  /// Steps until one is due, at least 1.
  std::int64_t steps_until_snapshot() const {
    return interval_ > 0 ? std::max<std::int64_t>(interval_ - num_steps(), 1)
                         : std::numeric_limits<std::int64_t>::max();
  }
  /// Records steps with these rates, or with the present one. Allocates nothing after reserve().
  void note_steps(std::size_t steps, std::span<const double> rates) {
    if (rates.empty()) {
      rates_.insert(rates_.end(), steps, step_.learning_rate());
    } else {
      rates_.insert(rates_.end(), rates.begin(),
                    rates.begin() + static_cast<std::ptrdiff_t>(steps));
    }
  }
  void reserve(std::int64_t steps) { rates_.reserve(static_cast<std::size_t>(steps)); }
  /// Names of the trained weights that no step since the snapshot has changed.
  std::vector<std::string> unchanged_weights() const { return snapshot_.unchanged_weights(); }
  /// Keeps a batch that its feed will not keep: one that is a block.
  void keep_batch(const RowBlock& block);
  /// Steps since the snapshot.
  std::int64_t num_steps() const { return static_cast<std::int64_t>(rates_.size()); }
  std::int64_t kept_bytes() const { return kept_bytes_; }
  /// Drops the kept batches: the epoch is over.
  void forget_batches();

  /// Restores state, learning rate and `progress` to the last finite state, after the last step had
  /// `fault`, and reports the fault: "<fault> at epoch 1, step 3 (batch 3, rows 7, 3); the first
  /// value that is not finite is 'x', of ...". `block`: that of the steps since the snapshot, if no
  /// batches were kept.
  std::string go_back(const std::string& fault, const RowBlock* block, FitProgress& progress);

 private:
  struct Batch {
    RowBlock block;
    std::int64_t begin = 0;
    std::int64_t rows = 0;
  };
  Batch batch(const RowBlock* block, std::int64_t step) const;
  template <class F>
  EpochLoss replay(const RowBlock* block, F&& is_wanted);
  std::string find_value(const RowBlock* block, std::int64_t good_steps);
  std::string describe_value(const runtime::NonFinite& found, std::int64_t step) const;
  std::string first_of_workers(const std::string& text, std::size_t position) const;
  std::string describe_rows(const RowBlock* block, std::int64_t step) const;

  StepRunner& step_;
  BatchBinder& binder_;
  StateSnapshot snapshot_;
  std::int64_t interval_;
  FitProgress place_;               ///< at the snapshot
  double rate_ = 0;                 ///< then
  std::vector<double> rates_;       ///< per step since then
  std::vector<PreparedData> kept_;  ///< per step since then; empty: they are in the block
  std::int64_t kept_bytes_ = 0;
  std::vector<double> results_;  ///< of one step
};

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_FIT_FAULT_SEARCH_H_
