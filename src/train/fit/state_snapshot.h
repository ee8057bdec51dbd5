#ifndef ONNXGRAD_TRAIN_FIT_STATE_SNAPSHOT_H_
#define ONNXGRAD_TRAIN_FIT_STATE_SNAPSHOT_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "train/checkpoints/checkpoint.h"
#include "train/session/step_runner.h"

namespace onnxgrad::train {

/// Copies of all states of a step, to roll back to. They count in MemoryReport::snapshots. Of the
/// state that a training begins with there is no copy: its values are in the model.
class StateSnapshot {
 public:
  /// `step` outlives this.
  explicit StateSnapshot(StepRunner& step);
  ~StateSnapshot();
  StateSnapshot(const StateSnapshot&) = delete;
  StateSnapshot& operator=(const StateSnapshot&) = delete;
  /// Allocates nothing.
  void take();
  void restore() const;
  /// Names of the trained weights that have the same bits now.
  std::vector<std::string> unchanged_weights() const {
    return step_.state().unchanged_weights(values());
  }
  /// Into a checkpoint under separate names, and back. False: it is not in the checkpoint.
  void add_to(Checkpoint& checkpoint, std::string_view purpose) const;
  bool take_from(const Checkpoint& checkpoint, std::string_view purpose);

 private:
  const std::vector<Tensor>& values() const { return is_initial_ ? initial_ : copies_; }

  StepRunner& step_;
  std::vector<Tensor> copies_;   ///< memory that nothing has touched until it is written to
  std::vector<Tensor> initial_;  ///< empty: there are none
  std::int64_t bytes_ = 0;       ///< that it counts
  bool is_initial_ = false;      ///< the values are these
  std::int64_t steps_ = 0;
};

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_FIT_STATE_SNAPSHOT_H_
