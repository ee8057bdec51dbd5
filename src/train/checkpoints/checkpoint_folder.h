#ifndef ONNXGRAD_TRAIN_CHECKPOINTS_CHECKPOINT_FOLDER_H_
#define ONNXGRAD_TRAIN_CHECKPOINTS_CHECKPOINT_FOLDER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/folder.h"
#include "train/checkpoints/checkpoint.h"

namespace onnxgrad::train {

/// "ck-000000000123.safetensors"; names sort by step.
std::string checkpoint_name(std::int64_t step);
/// The step in such a name; nullopt for other names.
std::optional<std::int64_t> checkpoint_step(const std::string& name);

/// Bytes that can still be written to a folder; nullopt: unknown. See base::available_bytes.
using FreeBytes = std::function<std::optional<std::int64_t>(const std::string& folder)>;

/// Writes a standalone checkpoint, not one of a fit, as atomically as CheckpointFolder does.
/// Refused if its bytes do not fit on the disk (a file that it replaces is kept until the new one
/// is complete), or if a fit is writing to the folder and the name is one of the fit's files there.
/// Throws: CheckpointError.
void save_checkpoint_file(const std::string& path, Checkpoint& checkpoint,
                          const FreeBytes& free_bytes = base::available_bytes);

/// Called with a file that is skipped, and the reason.
using FileReport = std::function<void(const std::string& path, const std::string& problem)>;

/// The newest complete checkpoint of a folder; nullopt if there is none. Incomplete files are
/// reported and left in place. Throws: CheckpointError (no such folder).
std::optional<Checkpoint> newest_checkpoint(const std::string& folder, const FileReport& report);

/// A folder that one training writes its checkpoints to. During the object's lifetime, the file
/// "lock" excludes other processes (and objects); the file "best" has the name of the best
/// checkpoint.
class CheckpointFolder {
 public:
  struct Options {
    std::int64_t keep = 3;  ///< number of newest checkpoints to keep, at least 1
    bool keep_best = true;  ///< keep the best one too
    FreeBytes free_bytes = base::available_bytes;
  };
  /// Creates the folder if it does not exist; removes temporary files left by a killed process.
  /// Throws: CheckpointError (the folder cannot be created or is in use).
  CheckpointFolder(std::string folder, Options options, FileReport report);

  /// Finds the newest checkpoint like newest_checkpoint(), but renames incomplete files with
  /// ".bad". Saving continues from it.
  std::optional<Checkpoint> take_newest();
  /// Makes saving continue from this checkpoint. Throws: CheckpointError if the folder has a later
  /// one than `step`: a training does not overwrite another.
  void begin(std::int64_t step, const Checkpoint* resumed);

  /// Writes the checkpoint of `step`; once it returns it survives a power failure. Then removes
  /// those no longer needed. Returns the path. Throws: CheckpointError; existing files are kept.
  std::string save(Checkpoint& checkpoint, std::int64_t step, bool is_best);

  const std::string& path() const { return folder_; }

 private:
  std::string path_of(const std::string& name) const { return folder_ + "/" + name; }
  std::vector<std::string> names_newest_first() const;
  bool is_whole(const std::string& name);
  void make_room(std::int64_t bytes);
  void point_to_best();
  void prune(std::int64_t keep);
  bool try_remove(const std::string& name);

  std::string folder_;
  Options options_;
  FileReport report_;
  std::optional<base::FileLock> lock_;
  std::string best_;                   // name of the best one; empty: unknown
  std::map<std::string, bool> whole_;  // by file: whether it was written or read in full
};

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_CHECKPOINTS_CHECKPOINT_FOLDER_H_
