#include "onnxgrad/files.h"

#include "base/files.h"
#include "base/own_file.h"
#include "onnxgrad/error.h"

namespace onnxgrad {
namespace {

template <class Work>
auto as_checkpoint_error(const Work& work) {
  try {
    return work();
  } catch (const Error& error) {
    throw CheckpointError(error.problem());
  }
}

}  // namespace

void write_file(const std::string& path, std::string_view contents) {
  as_checkpoint_error([&] { return base::write_atomically(path, contents); });
}

void write_own_file(const std::string& path, std::string_view contents) {
  as_checkpoint_error(
      [&] { return base::write_atomically(path, contents, base::Existing::kReplaceOwn); });
}

int open_own_file(const std::string& path, int flags) {
  return as_checkpoint_error([&] { return base::open_own(path, flags); });
}

void check_writable(const std::string& path, std::int64_t bytes) {
  as_checkpoint_error([&] { return base::check_writable(path, bytes); });
}

}  // namespace onnxgrad
