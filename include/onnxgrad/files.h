#ifndef ONNXGRAD_FILES_H_
#define ONNXGRAD_FILES_H_

#include <cstdint>
#include <string>
#include <string_view>

namespace [[gnu::visibility("default")]] onnxgrad {

/// Writes a file atomically: after an error it is unchanged. The bytes go to a temporary file in
/// the same folder, which is flushed to disk and renamed; then the folder is flushed. Links are
/// followed and permissions kept; temporary files of processes that were killed while writing to
/// the folder are removed; a device or a pipe is written to directly. All files of onnxgrad are
/// written this way. Throws: CheckpointError (no such folder, disk full, a folder of that name).
void write_file(const std::string& path, std::string_view contents);

/// Writes a file of a folder that onnxgrad keeps (a run, checkpoints), which may be shared or come
/// from somebody else: any entry of this name is replaced, and no link followed; not everybody may
/// write to the file. Otherwise like write_file.
void write_own_file(const std::string& path, std::string_view contents);
/// Opens a file of a folder that onnxgrad keeps with the flags of open(2) and returns its
/// descriptor, which the caller closes. Throws: CheckpointError for links, pipes, devices, files of
/// other users, and for writing hard links; it never blocks.
int open_own_file(const std::string& path, int flags);

/// Throws the errors of write_file for this many bytes, as far as they can be known in advance: the
/// folder is not writable, the disk is full. Nothing is changed.
void check_writable(const std::string& path, std::int64_t bytes = 0);

}  // namespace onnxgrad

#endif  // ONNXGRAD_FILES_H_
