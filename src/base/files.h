#ifndef ONNXGRAD_BASE_FILES_H_
#define ONNXGRAD_BASE_FILES_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

// Every file that onnxgrad reads or writes goes through here. All functions throw onnxgrad::Error
// naming the path and the system's reason; callers give it the class of their job
// (`throw ModelError(error.problem())`).

namespace onnxgrad::base {

/// What a user can do about an error number of the system: make room, choose another path, ...
std::string advice_for(int system_error);

/// An open regular file, read by position. Pipes, devices and folders are refused without blocking.
class ReadableFile {
 public:
  /// A path that the caller gave: symbolic links are followed.
  static ReadableFile open(const std::string& path);
  /// A path that a file gave, relative to `root`: no absolute path, no "..", no symbolic link on
  /// the way, and no file that has a name (a hard link) outside the folder where it was found.
  static ReadableFile open_beneath(const std::string& root, const std::string& relative);

  ReadableFile(ReadableFile&& other) noexcept;
  ReadableFile& operator=(ReadableFile&& other) noexcept;
  ~ReadableFile();

  std::int64_t size_bytes() const { return size_; }
  const std::string& path() const { return path_; }
  /// Fills `out` from `offset`. Throws: Error (the file ends before, or reading fails).
  void read(std::int64_t offset, std::span<std::byte> out) const;

 private:
  ReadableFile(int descriptor, std::string path);
  int descriptor_ = -1;
  std::int64_t size_ = 0;
  std::string path_;
};

/// The folder of `path` with all symbolic links of `path` itself resolved. Throws: Error.
std::string real_folder(const std::string& path);

enum class Existing {
  kReplace,  ///< a file of that name gets the new contents
  kRefuse,   ///< a file of that name is an error
};

/// Appends bytes to the file being written.
using ByteSink = std::function<void(std::string_view)>;

/// Writes `path` whole or not at all: into a new temporary file of the same folder, which is
/// flushed to the disk, renamed, and the folder flushed. When this returns the file survives a
/// power cut; when it throws, a file that was there before is as it was and no temporary file is
/// left. Those of processes that were killed are removed first (remove_stale_temporaries). `write`
/// is called once. An existing file's permissions are kept. A device or a pipe is written to as it
/// is. Throws: Error.
void write_atomically(const std::string& path, const std::function<void(const ByteSink&)>& write,
                      Existing existing = Existing::kReplace);
void write_atomically(const std::string& path, std::string_view contents,
                      Existing existing = Existing::kReplace);

/// Throws what write_atomically would throw for so many bytes, as far as that can be known before.
/// Nothing that was there is touched, and nothing stays.
void check_writable(const std::string& path, std::int64_t bytes = 0);

/// Removes the temporary files of write_atomically in a folder whose writers have ended: each holds
/// a lock on its file, which the kernel frees whatever ends the process. Other files stay, as those
/// do that cannot be removed. Throws nothing of the file system.
void remove_stale_temporaries(const std::string& folder);

}  // namespace onnxgrad::base

#endif  // ONNXGRAD_BASE_FILES_H_
