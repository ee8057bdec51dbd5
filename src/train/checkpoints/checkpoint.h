#ifndef ONNXGRAD_TRAIN_CHECKPOINTS_CHECKPOINT_H_
#define ONNXGRAD_TRAIN_CHECKPOINTS_CHECKPOINT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "onnxgrad/model.h"
#include "train/checkpoints/safetensors.h"

// A checkpoint is a safetensors file. Weights have their own names; everything else has names that
// begin with kReservedPrefix. The metadata contains format, version, checksums and the purpose of
// the file; see docs/checkpoints.md.

namespace onnxgrad::train {

inline constexpr std::string_view kReservedPrefix = "onnxgrad:";

/// Metadata and tensors to write or as read. Tensors may be views of a session's state.
struct Checkpoint {
  SafetensorsMetadata metadata = {};
  NamedTensors tensors = {};

  const Tensor* find(std::string_view name) const;
  void set(std::string name, Tensor tensor);
  /// Sets one worker's elements of a slot of shape `whole`, from `begin` on. read_checkpoint()
  /// returns whole slots.
  void set_part(const std::string& name, Tensor tensor, std::int64_t begin, const Dims& whole);
  /// Set rank-0 numbers under kReservedPrefix + name.
  void set_int(std::string_view name, std::int64_t value);
  void set_double(std::string_view name, double value);
  /// Read rank-0 numbers. Throws: CheckpointError (missing, or of another type).
  std::int64_t get_int(std::string_view name) const;
  double get_double(std::string_view name) const;
  /// Rows of numbers; float64 [N] and int64 [N].
  std::vector<double> get_doubles(std::string_view name) const;
  std::vector<std::int64_t> get_ints(std::string_view name) const;

  std::string path = {};  ///< file that it was read from
};

/// Adds format, version and checksums, and writes the file atomically. `checkpoint` is
/// sorted. Throws: CheckpointError.
void write_checkpoint(const std::string& path, Checkpoint& checkpoint,
                      base::Existing existing = base::Existing::kReplace);

/// Bytes that write_checkpoint will write, up to the length of the metadata.
std::int64_t checkpoint_bytes(const Checkpoint& checkpoint);

/// Reads the file and compares all checksums. Throws: CheckpointError (not a safetensors file, not
/// a checkpoint, a newer format, a checksum that differs; names the first tensor). Parts of several
/// workers are files of onnxgrad wherever they are.
Checkpoint read_checkpoint(const std::string& path, base::PathOf origin = base::PathOf::kUser);

/// Path of the part of one of several workers: a checkpoint with the states that differ between
/// them. Each worker writes its part first; then the first worker writes the checkpoint, with the
/// number of workers.
std::string part_path(const std::string& path, int worker, int workers);
void set_workers(Checkpoint& checkpoint, int workers);
/// The files of all parts that belong to a checkpoint of this name.
std::vector<std::string> part_names(const std::string& folder, const std::string& name);
/// Gives worker `worker` its own states from its part of a checkpoint that as many workers wrote;
/// false: another number of workers wrote it, or there are no parts. A checkpoint from
/// read_checkpoint() has the states of all workers: slots that only some had, and whole slots where
/// each had a part; these stay whole. Throws: CheckpointError.
bool take_part(Checkpoint& checkpoint, int worker, int workers);

/// The weights in a checkpoint or in any other safetensors file, by their own names.
/// Throws: CheckpointError.
NamedTensors read_weights(const std::string& path);

/// The name of a state tensor in a checkpoint: a weight's own name (unless it looks like a reserved
/// one), else a reserved one.
std::string stored_state_name(const std::string& state_name, bool is_weight);
/// The name of the state tensor for a stored one; nullopt if it is not state.
std::optional<std::string> state_of(std::string_view stored_name);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_CHECKPOINTS_CHECKPOINT_H_
