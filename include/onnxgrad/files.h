#ifndef ONNXGRAD_FILES_H_
#define ONNXGRAD_FILES_H_

#include <string>
#include <string_view>

namespace onnxgrad {

/// Writes a file that is there in full, or, after any error, as it was before: under a temporary
/// name of the same folder, flushed to the disk, renamed, and the folder flushed. Links are
/// followed and permissions kept; all files of onnxgrad are written like this.
/// Throws: CheckpointError (no such folder, no room, no regular file).
void write_file(const std::string& path, std::string_view contents);

}  // namespace onnxgrad

#endif  // ONNXGRAD_FILES_H_
