#include "base/own_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string>
#include <system_error>

#include "base/files.h"
#include "onnxgrad/error.h"

namespace onnxgrad::base {
namespace {

std::string kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

// Reason not to trust the file: neither onnxgrad nor only trusted users can have written it. Empty
// if it can be trusted.
std::string stranger_than_expected(const struct stat& file, const struct stat& folder,
                                   bool for_writing) {
  if (!S_ISREG(file.st_mode)) {
    return "this is " + kind_of(file.st_mode) + ", expected a file that onnxgrad wrote";
  }
  if (for_writing && file.st_nlink > 1) {
    return "this is a hard link to a file that has another name";
  }
  const bool is_open_folder = (folder.st_mode & S_IWOTH) != 0;
  const bool is_of_folder = file.st_uid == folder.st_uid && !is_open_folder;
  if (file.st_uid != ::geteuid() && file.st_uid != 0 && !is_of_folder) {
    return "this file belongs to another user (" + std::to_string(file.st_uid) + ")";
  }
  if ((file.st_mode & S_IWOTH) != 0 && !is_open_folder) {
    return "everybody may write to this file";
  }
  return "";
}

}  // namespace

int open_own(const std::string& path, int flags) {
  constexpr int kFlags = O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY;
  const auto refuse = [&path](const std::string& what) {
    throw Error({.what = what,
                 .where = {.file = path},
                 .hint = "Remove it, or choose another folder: files here are written by onnxgrad, "
                         "and never through links."});
  };
  int number = -1;
  do {
    number = ::open(path.c_str(), (flags & ~O_TRUNC) | kFlags, kOwnMode);
  } while (number < 0 && errno == EINTR);
  if (number < 0) {
    const int error = errno;
    if (error == ELOOP) refuse("this is a symbolic link, which is not followed");
    if (error == ENXIO) refuse("this is a pipe or a device, expected a file that onnxgrad wrote");
    if (error == EISDIR) refuse("this is a folder, expected a file that onnxgrad wrote");
    throw Error({.what = "cannot open the file: " + std::generic_category().message(error),
                 .where = {.file = path},
                 .hint = advice_for(error)});
  }
  const std::string parent = std::filesystem::path(path).parent_path().string();
  struct stat file{};
  struct stat folder{};
  std::string problem;
  if (::fstat(number, &file) != 0 || ::stat(parent.empty() ? "." : parent.c_str(), &folder) != 0) {
    problem = "cannot examine the file: " + std::generic_category().message(errno);
  } else {
    problem = stranger_than_expected(file, folder, (flags & O_ACCMODE) != O_RDONLY);
  }
  if (problem.empty() && (flags & O_TRUNC) != 0 && ::ftruncate(number, 0) != 0) {
    problem = "cannot truncate the file: " + std::generic_category().message(errno);
  }
  if (!problem.empty()) {
    ::close(number);
    refuse(problem);
  }
  return number;
}

}  // namespace onnxgrad::base
