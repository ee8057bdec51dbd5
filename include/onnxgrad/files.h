#ifndef ONNXGRAD_FILES_H_
#define ONNXGRAD_FILES_H_

#include <cstdint>
#include <string>
#include <string_view>

namespace [[gnu::visibility("default")]] onnxgrad {

/// Writes a file that is there in full, or, after any error, as it was before: under a temporary
/// name of the same folder, flushed to the disk, renamed, and the folder flushed. Links are
/// followed and permissions kept; what a process left that was killed while writing into the folder
/// is removed; a device or a pipe is written to as it is. All files of onnxgrad are written like
/// this. Throws: CheckpointError (no such folder, no room, a folder of that name).
void write_file(const std::string& path, std::string_view contents);

/// Throws what write_file would throw for so many bytes, as far as that can be known before: the
/// folder takes no new file, the disk has no room. Nothing is changed.
void check_writable(const std::string& path, std::int64_t bytes = 0);

}  // namespace onnxgrad

#endif  // ONNXGRAD_FILES_H_
