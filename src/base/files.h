#ifndef ONNXGRAD_BASE_FILES_H_
#define ONNXGRAD_BASE_FILES_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

// All file input and output of onnxgrad goes through here. All functions throw onnxgrad::Error
// naming the path and the system's reason; callers rethrow it as their own class
// (`throw ModelError(error.problem())`).

namespace onnxgrad::base {

/// Advice to the user about a system error number: free space, choose another path, ...
std::string advice_for(int system_error);

/// The source of a path, which determines the kinds of files that may stand there.
enum class PathOf {
  kUser,  ///< given by the caller: symbolic links are followed
  kOwn,   ///< a file of a folder that onnxgrad keeps: see open_own (base/own_file.h)
};

/// An open regular file, read by position. Pipes, devices and folders are refused without blocking.
class ReadableFile {
 public:
  static ReadableFile open(const std::string& path, PathOf origin = PathOf::kUser);
  /// Opens a path found in a file, relative to `root`: no absolute path, no "..", no symbolic link
  /// on the way, and no file with a name (a hard link) outside the folder where it was found.
  static ReadableFile open_beneath(const std::string& root, const std::string& relative);

  ReadableFile(ReadableFile&& other) noexcept;
  ReadableFile& operator=(ReadableFile&& other) noexcept;
  ~ReadableFile();

  std::int64_t size_bytes() const { return size_; }
  const std::string& path() const { return path_; }
  /// Fills `out` from `offset`, large ones on several threads. Throws: Error (the file is too
  /// short, or reading fails).
  void read(std::int64_t offset, std::span<std::byte> out) const;

 private:
  void read_part(std::int64_t offset, std::span<std::byte> out) const;
  ReadableFile(int descriptor, std::string path);
  int descriptor_ = -1;
  std::int64_t size_ = 0;
  std::string path_;
};

/// The folder of `path` with all symbolic links of `path` itself resolved. Throws: Error.
std::string real_folder(const std::string& path);

enum class Existing {
  kReplace,     ///< an existing file gets the new contents; a link is followed, a pipe written to
  kReplaceOwn,  ///< whatever has the name is replaced by a file, which not everybody may write to:
                ///< no link is followed, no pipe or device opened
  kRefuse,      ///< an existing file is an error
};

/// Appends bytes to the file being written.
using ByteSink = std::function<void(std::string_view)>;

/// Writes `path` completely or not at all: to a new temporary file in the same folder, which is
/// flushed to disk and renamed; then the folder is flushed. After it returns, the file survives a
/// power failure; if it throws, an existing file is unchanged and no temporary file is left.
/// Those of killed processes are removed first (remove_stale_temporaries). `write` is
/// called once. An existing file's permissions are kept. A device or a pipe is written to
/// directly. Throws: Error.
void write_atomically(const std::string& path, const std::function<void(const ByteSink&)>& write,
                      Existing existing = Existing::kReplace);
void write_atomically(const std::string& path, std::string_view contents,
                      Existing existing = Existing::kReplace);

/// Throws the errors of write_atomically for this many bytes, as far as they can be known in
/// advance. Existing files are unchanged, and no new files remain.
void check_writable(const std::string& path, std::int64_t bytes = 0);

/// Removes the temporary files of write_atomically in a folder whose writers have ended: each
/// writer locks its file, and the kernel releases the lock however the process ends. Other files,
/// and those that cannot be removed, are kept. Never throws for errors of the file system.
void remove_stale_temporaries(const std::string& folder);

}  // namespace onnxgrad::base

#endif  // ONNXGRAD_BASE_FILES_H_
