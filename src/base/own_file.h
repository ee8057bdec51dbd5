#ifndef ONNXGRAD_BASE_OWN_FILE_H_
#define ONNXGRAD_BASE_OWN_FILE_H_

#include <sys/types.h>

#include <string>

namespace onnxgrad::base {

/// Mode of the files of folders that onnxgrad keeps, less the umask: not everybody may write.
inline constexpr mode_t kOwnMode = 0664;

/// Opens a file of a folder that onnxgrad keeps, a lock or a checkpoint, and returns its
/// descriptor, which the caller closes. The folder may be shared or come from somebody else, so
/// whatever stands in the file's place is refused, without following it and without blocking:
/// - a symbolic link, a pipe, a device, a folder;
/// - for writing, a file with a further name (a hard link), perhaps of another use;
/// - a file of another user, unless it is root's, or of the owner of a folder that not everybody
///   may write to;
/// - a file that everybody may write to, in a folder where not everybody may.
/// `flags` are those of open(2); a created file has kOwnMode. Throws: Error.
int open_own(const std::string& path, int flags);

}  // namespace onnxgrad::base

#endif  // ONNXGRAD_BASE_OWN_FILE_H_
