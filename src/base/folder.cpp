#include "base/folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "base/files.h"
#include "base/own_file.h"
#include "onnxgrad/error.h"

namespace onnxgrad::base {
namespace {

[[noreturn]] void fail(const std::string& path, const std::string& action, int error) {
  throw Error({.what = "cannot " + action + ": " + std::generic_category().message(error),
               .where = {.file = path},
               .hint = advice_for(error)});
}

// Makes the names in a folder survive a power failure.
void flush_folder(const std::filesystem::path& folder) {
  const std::string path = folder.empty() ? "." : folder.string();
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECTORY);
  if (descriptor < 0) return;  // one that may be searched but not read
  const int result = ::fsync(descriptor);
  const int error = errno;
  ::close(descriptor);
  // Some file systems cannot flush folders and return EINVAL.
  if (result != 0 && error != EINVAL) fail(path, "flush the folder", error);
}

// The contents of a small file, as far as readable.
std::string read_some(int descriptor) {
  std::array<char, 32> buffer{};
  const ssize_t count = ::pread(descriptor, buffer.data(), buffer.size(), 0);
  std::string text(buffer.data(), count > 0 ? static_cast<std::size_t>(count) : 0);
  while (!text.empty() && (text.back() < '0' || text.back() > '9')) text.pop_back();
  return text;
}

}  // namespace

void make_folders(const std::string& folder) {
  std::error_code error;
  std::vector<std::filesystem::path> made;  // innermost first
  for (std::filesystem::path path = folder; !path.empty() && !std::filesystem::exists(path, error);
       path = path.parent_path()) {
    if (path.has_filename()) made.push_back(path);
  }
  std::filesystem::create_directories(folder, error);
  if (error) fail(folder, "create the folder", error.value());
  for (const std::filesystem::path& path : made) flush_folder(path.parent_path());
}

std::vector<std::string> list_files(const std::string& folder) {
  std::error_code error;
  std::vector<std::string> names;
  std::filesystem::directory_iterator entries(folder, error);
  if (error) fail(folder, "list the folder", error.value());
  for (; entries != std::filesystem::directory_iterator(); entries.increment(error)) {
    if (error) fail(folder, "list the folder", error.value());
    // Links are listed, and refused when they are opened, so that their names can be reported.
    if (entries->is_regular_file(error) || entries->is_symlink(error))
      names.push_back(entries->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

void remove_file(const std::string& path) {
  if (::unlink(path.c_str()) != 0) fail(path, "remove the file", errno);
}

void rename_file(const std::string& from, const std::string& to) {
  if (std::rename(from.c_str(), to.c_str()) != 0) fail(from, "rename the file", errno);
}

std::optional<std::int64_t> available_bytes(const std::string& folder) {
  struct statvfs status{};
  if (::statvfs(folder.c_str(), &status) != 0 || status.f_blocks == 0) return std::nullopt;
  std::int64_t bytes = 0;
  const bool overflows = __builtin_mul_overflow(static_cast<std::int64_t>(status.f_bavail),
                                                static_cast<std::int64_t>(status.f_frsize), &bytes);
  return overflows ? std::nullopt : std::optional(bytes);
}

FileLock::FileLock(const std::string& path) : descriptor_(open_own(path, O_CREAT | O_RDWR)) {
  int result = 0;
  do {
    result = ::flock(descriptor_, LOCK_EX | LOCK_NB);
  } while (result != 0 && errno == EINTR);
  if (result != 0) {
    const int error = errno;
    const std::string owner = read_some(descriptor_);
    ::close(descriptor_);
    if (error != EWOULDBLOCK) fail(path, "lock the folder", error);
    throw Error({.what = "process " + (owner.empty() ? "?" : owner) + " is writing to this folder",
                 .where = {.file = path},
                 .hint = "Wait until it has ended, or choose another folder."});
  }
  // For other processes' messages; only the lock matters.
  const std::string owner = std::to_string(::getpid()) + "\n";
  if (::ftruncate(descriptor_, 0) == 0) {
    (void)!::pwrite(descriptor_, owner.data(), owner.size(), 0);
  }
}

FileLock::~FileLock() { ::close(descriptor_); }

}  // namespace onnxgrad::base
