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
/// The step of such a name; nullopt for other names.
std::optional<std::int64_t> checkpoint_step(const std::string& name);

/// Bytes that can still be written where a folder is; nullopt: not known. As base::available_bytes.
using FreeBytes = std::function<std::optional<std::int64_t>(const std::string& folder)>;

/// Writes a checkpoint of its own, which is none of a fit's, with the same care: it is refused
/// where its bytes do not fit on the disk (a file that it replaces stays until the new one is
/// whole), and where a fit is writing to the folder and the name is one of those that the fit has
/// there. Throws: CheckpointError.
void save_checkpoint_file(const std::string& path, Checkpoint& checkpoint,
                          const FreeBytes& free_bytes = base::available_bytes);

/// Called with a file that is left out, and why.
using FileReport = std::function<void(const std::string& path, const std::string& problem)>;

/// The newest whole checkpoint of a folder; nullopt if there is none. Files that are not whole are
/// reported and left where they are. Throws: CheckpointError (no such folder).
std::optional<Checkpoint> newest_checkpoint(const std::string& folder, const FileReport& report);

/// A folder that one training writes its checkpoints to. While the object lives, other processes
/// (and other objects) are kept out by the file "lock"; the file "best" has the name of the best
/// checkpoint.
class CheckpointFolder {
 public:
  struct Options {
    std::int64_t keep = 3;  ///< the newest ones that stay, at least 1
    bool keep_best = true;  ///< the best one stays too
    FreeBytes free_bytes = base::available_bytes;
  };
  /// Makes the folder where it does not exist; removes temporary files that a killed process left.
  /// Throws: CheckpointError (the folder cannot be made or is in use).
  CheckpointFolder(std::string folder, Options options, FileReport report);

  /// As newest_checkpoint; files that are not whole get another name with ".bad". Where there is
  /// one, saving continues from it.
  std::optional<Checkpoint> take_newest();
  /// Saving continues from this checkpoint. Throws: CheckpointError if the folder has a later one
  /// than `step`: a training does not overwrite another.
  void begin(std::int64_t step, const Checkpoint* resumed);

  /// Writes the checkpoint of `step`; when this returns it survives a power cut. Then removes those
  /// that are no longer wanted. Returns the path. Throws: CheckpointError; what was there stays.
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
  std::string best_;                   // name of the best one; empty: not known
  std::map<std::string, bool> whole_;  // of files that were written or read in full
};

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_CHECKPOINTS_CHECKPOINT_FOLDER_H_
