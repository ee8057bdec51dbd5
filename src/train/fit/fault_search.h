#ifndef ONNXGRAD_TRAIN_FIT_FAULT_SEARCH_H_
#define ONNXGRAD_TRAIN_FIT_FAULT_SEARCH_H_

#include <cstdint>
#include <string>
#include <vector>

#include "train/fit/batch_binder.h"
#include "train/fit/epoch_loss.h"
#include "train/fit/state_snapshot.h"

// A loss that is not finite is looked into after the fact: plans are deterministic, so that the
// steps since a snapshot of the state, done again, give the same bits up to the last state that is
// finite; from there a plan of one kernel per node finds the first value that is not. The steady
// loop pays for snapshots and for one number per step.

namespace onnxgrad::train {

class FaultSearch {
 public:
  /// Counts in MemoryReport::snapshots.
  FaultSearch(Session& session, BatchBinder& binder);

  /// Steps from here on can be done again; the state is finite. They are those of one block from
  /// the place `begin` on, or (with keep_batch) batches that were kept.
  void take_snapshot(std::int64_t begin, const EpochLoss& loss);
  /// Of the step that comes next. Allocates nothing after reserve().
  void note_rate(double rate) { rates_.push_back(rate); }
  void reserve(std::int64_t steps) { rates_.reserve(static_cast<std::size_t>(steps)); }
  /// Names of the trained weights that no step since the snapshot has changed.
  std::vector<std::string> unchanged_weights() const;
  /// Keeps a batch that its feed will not: one that is a block.
  void keep_batch(const RowBlock& block);
  /// Since the snapshot.
  std::int64_t num_steps() const { return static_cast<std::int64_t>(rates_.size()); }
  std::int64_t kept_bytes() const { return kept_bytes_; }
  /// Drops the batches that were kept: the epoch is over.
  void forget_batches();

  struct Finding {
    std::int64_t good_steps = 0;  ///< since the snapshot, after which the state was finite
    std::int64_t good_rows = 0;   ///< of these steps
    EpochLoss loss;               ///< of the epoch, after these
    double rate = 0;              ///< the learning rate then
    /// "the first value that is not finite is ..., of ...", and which step that is, from 0; the
    /// text is empty where kernels that round differently give finite values.
    std::string text = {};
    std::int64_t step = 0;
  };
  /// Puts the state (not the rate) back to the last finite one. `block`: that of the steps since
  /// the snapshot, where no batches were kept.
  Finding go_back(const RowBlock* block);
  /// The rows of a step since the snapshot: "row 7", "rows 7, 3, 0, 2, ...".
  std::string describe_rows(const RowBlock* block, std::int64_t step) const;

 private:
  struct Batch {
    RowBlock block;
    std::int64_t begin = 0;
    std::int64_t rows = 0;
  };
  Batch batch(const RowBlock* block, std::int64_t step) const;
  template <class F>
  EpochLoss replay(const RowBlock* block, F&& is_wanted);
  void find_value(const RowBlock* block, Finding& finding);

  Session& session_;
  BatchBinder& binder_;
  StateSnapshot snapshot_;
  EpochLoss loss_;                  ///< of the epoch, at the snapshot
  double rate_ = 0;                 ///< then
  std::int64_t begin_ = 0;          ///< place in the block of the first step since then
  std::vector<double> rates_;       ///< per step since then
  std::vector<PreparedData> kept_;  ///< per step since then; empty: they are in the block
  std::int64_t kept_bytes_ = 0;
};

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_FIT_FAULT_SEARCH_H_
