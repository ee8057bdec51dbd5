#include "onnxgrad/files.h"

#include "base/files.h"
#include "base/own_file.h"
#include "onnxgrad/error.h"

namespace onnxgrad {

void write_file(const std::string& path, std::string_view contents) {
  try {
    base::write_atomically(path, contents);
  } catch (const Error& error) {
    throw CheckpointError(error.problem());
  }
}

void write_own_file(const std::string& path, std::string_view contents) {
  try {
    base::write_atomically(path, contents, base::Existing::kReplaceOwn);
  } catch (const Error& error) {
    throw CheckpointError(error.problem());
  }
}

int open_own_file(const std::string& path, int flags) {
  try {
    return base::open_own(path, flags);
  } catch (const Error& error) {
    throw CheckpointError(error.problem());
  }
}

void check_writable(const std::string& path, std::int64_t bytes) {
  try {
    base::check_writable(path, bytes);
  } catch (const Error& error) {
    throw CheckpointError(error.problem());
  }
}

}  // namespace onnxgrad
