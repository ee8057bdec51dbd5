#ifndef ONNXGRAD_TRAIN_SESSION_SESSION_CHECKPOINT_H_
#define ONNXGRAD_TRAIN_SESSION_SESSION_CHECKPOINT_H_

#include "train/checkpoints/checkpoint.h"
#include "train/session/session.h"

namespace onnxgrad::train {

/// A checkpoint of state, number of steps, learning rate, seed, and the session's description. The
/// tensors are views. `of_worker`: with the states that only this worker has, for its part of a
/// checkpoint.
Checkpoint checkpoint_of(const Session& session, bool of_worker = false);

/// Checks that the checkpoint belongs to such a session and then loads it: all or nothing.
/// Throws: CheckpointError naming the first difference.
void restore_session(Session& session, const Checkpoint& checkpoint);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_SESSION_SESSION_CHECKPOINT_H_
