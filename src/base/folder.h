#ifndef ONNXGRAD_BASE_FOLDER_H_
#define ONNXGRAD_BASE_FOLDER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

// Operations on a folder of the program's own files, besides write_atomically of base/files.h. All
// functions throw onnxgrad::Error naming the path and the system's reason.

namespace onnxgrad::base {

/// Creates the folder and missing parents; they survive a power failure.
void make_folders(const std::string& folder);

/// Names of the regular files and links in the folder, sorted.
std::vector<std::string> list_files(const std::string& folder);

/// Removes a file. Throws: Error, also if there is no such file.
void remove_file(const std::string& path);
void rename_file(const std::string& from, const std::string& to);

/// Bytes that this user can still write to the file system of `folder`; nullopt if the system does
/// not report it.
std::optional<std::int64_t> available_bytes(const std::string& folder);

/// An advisory lock on a file that is created for it (open_own) and never removed; it contains the
/// id of the process that holds the lock. The kernel releases it however that process ends.
class FileLock {
 public:
  /// Acquires the lock. Throws: Error naming the process that holds it, the entry that is no lock
  /// file, or the system's reason.
  explicit FileLock(const std::string& path);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  int descriptor_ = -1;
};

}  // namespace onnxgrad::base

#endif  // ONNXGRAD_BASE_FOLDER_H_
