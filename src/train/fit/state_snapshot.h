#ifndef ONNXGRAD_TRAIN_FIT_STATE_SNAPSHOT_H_
#define ONNXGRAD_TRAIN_FIT_STATE_SNAPSHOT_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "train/checkpoints/checkpoint.h"
#include "train/session.h"

namespace onnxgrad::train {

/// Copies of all state tensors, for going back. They count in MemoryReport::snapshots.
class StateSnapshot {
 public:
  explicit StateSnapshot(Session& session);
  ~StateSnapshot();
  StateSnapshot(const StateSnapshot&) = delete;
  StateSnapshot& operator=(const StateSnapshot&) = delete;
  /// Allocates nothing.
  void take(const Session& session);
  void restore(Session& session) const;
  /// Names of the tensors that have the same bits now, of those in `names`.
  std::vector<std::string> unchanged(const Session& session,
                                     std::span<const std::string> names) const;
  /// Into a checkpoint under names of their own, and back. False: it is not in the checkpoint.
  void add_to(Checkpoint& checkpoint, std::string_view purpose, const Session& session) const;
  bool take_from(const Checkpoint& checkpoint, std::string_view purpose, const Session& session);

 private:
  Session& session_;
  std::int64_t bytes_ = 0;
  std::vector<Tensor> copies_;
  std::int64_t steps_ = 0;
};

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_FIT_STATE_SNAPSHOT_H_
