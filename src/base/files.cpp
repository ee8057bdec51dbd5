#include "base/files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>
#if __has_include(<linux/openat2.h>)
#include <linux/openat2.h>
#include <sys/syscall.h>
#endif

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/folder.h"
#include "base/interrupt.h"
#include "base/own_file.h"
#include "base/parts.h"
#include "onnxgrad/error.h"

namespace onnxgrad::base {

std::string advice_for(int system_error) {
  switch (system_error) {
    case ENOENT:
    case ENOTDIR:
      return "Check the path; a relative path starts at the folder that the program runs in.";
    case EISDIR:
      return "Give the path of a file.";
    case EACCES:
    case EPERM:
    case EROFS:
      return "Choose another path, or get permission for this one.";
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return "Free space on the disk, or choose another one.";
    case EMFILE:
    case ENFILE:
      return "Close other files, or raise the limit on open files (ulimit -n).";
    case ENAMETOOLONG:
      return "Choose a shorter path.";
    case ELOOP:
      return "Remove the loop of symbolic links, or choose another path.";
    case EIO:
      return "The disk does not respond: check it, or choose another one.";
    default:
      return "Choose another path, or ask the administrator of the disk.";
  }
}

namespace {

constexpr const char* kOtherName = "Choose another name, or remove the file.";

constexpr int kReadFlags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;

[[noreturn]] void fail(const std::string& path, const std::string& what, Hint hint) {
  throw Error({.what = what, .where = {.file = path}, .hint = std::move(hint)});
}

[[noreturn]] void fail_errno(const std::string& path, const std::string& action, int error) {
  fail(path, "cannot " + action + ": " + std::generic_category().message(error), advice_for(error));
}

// Closes its descriptor; for a file that was written, the writer checks close().
class Descriptor {
 public:
  explicit Descriptor(int number = -1) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  int get() const { return number_; }
  int release() { return std::exchange(number_, -1); }
  bool is_open() const { return number_ >= 0; }

 private:
  int number_;
};

int open_retrying(int folder, const char* path, int flags, mode_t mode = 0) {
  int number = -1;
  do {
    number = ::openat(folder, path, flags, mode);
  } while (number < 0 && errno == EINTR);
  return number;
}

std::vector<std::string> components(const std::string& relative) {
  std::vector<std::string> parts;
  for (const std::filesystem::path& part : std::filesystem::path(relative)) {
    if (part != "." && !part.empty()) parts.push_back(part.string());
  }
  return parts;
}

// Opens component by component, following no link: for kernels without openat2.
Descriptor walk(const Descriptor& root, const std::vector<std::string>& parts) {
  Descriptor folder;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const bool is_last = i + 1 == parts.size();
    const int flags = kReadFlags | O_NOFOLLOW | (is_last ? 0 : O_DIRECTORY);
    const int from = i == 0 ? root.get() : folder.get();
    Descriptor next(open_retrying(from, parts[i].c_str(), flags));
    if (!next.is_open()) return next;
    folder = std::move(next);
  }
  return folder;
}

Descriptor open_inside(const Descriptor& root, const std::string& relative) {
#ifdef SYS_openat2
  open_how how{};
  how.flags = static_cast<unsigned>(kReadFlags);
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS;
  for (int attempt = 0; attempt < 16; ++attempt) {
    const long number = ::syscall(SYS_openat2, root.get(), relative.c_str(), &how, sizeof how);
    if (number >= 0) return Descriptor(static_cast<int>(number));
    if (errno == ENOSYS || errno == EPERM) break;  // an old kernel, or a sandbox that denies it
    if (errno != EINTR && errno != EAGAIN) return Descriptor();
  }
#endif
  return walk(root, components(relative));
}

// Names in `folder` that refer to the file `wanted`.
nlink_t count_names(const std::string& folder, const struct stat& wanted) {
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(::opendir(folder.c_str()), &::closedir);
  nlink_t count = 0;
  if (dir == nullptr) return 0;
  while (const dirent* entry = ::readdir(dir.get())) {  // NOLINT(concurrency-mt-unsafe): own DIR
    struct stat found{};
    if (entry->d_ino != wanted.st_ino) continue;
    if (::fstatat(::dirfd(dir.get()), entry->d_name, &found, AT_SYMLINK_NOFOLLOW) != 0) continue;
    if (found.st_dev == wanted.st_dev && found.st_ino == wanted.st_ino) ++count;
  }
  return count;
}

constexpr const char* kBesideModel =
    "Save the model again with its data in a file next to it, or name the folder of the data as "
    "the "
    "external root.";

void check_relative(const std::string& root, const std::string& relative) {
  const std::string quoted = "'" + relative.substr(0, 200) + "'";
  if (relative.empty() || relative.find('\0') != std::string::npos) {
    fail(root, "the location of external data is not a path", kBesideModel);
  }
  const std::filesystem::path path(relative);
  if (path.is_absolute()) fail(root, "external data at the absolute path " + quoted, kBesideModel);
  for (const std::filesystem::path& part : path) {
    if (part == "..") {
      fail(root, "external data outside the model's folder: " + quoted, kBesideModel);
    }
  }
}

}  // namespace

ReadableFile::ReadableFile(int descriptor, std::string path)
    : descriptor_(descriptor), path_(std::move(path)) {
  struct stat status{};
  const int result = ::fstat(descriptor_, &status);
  if (result == 0 && S_ISREG(status.st_mode)) {
    size_ = status.st_size;
    return;
  }
  const int error = errno;
  ::close(descriptor_);
  if (result != 0) fail_errno(path_, "examine the file", error);
  fail(path_,
       S_ISDIR(status.st_mode) ? "this is a folder, expected a file" : "this is not a regular file",
       "Give the path of a file on a disk.");
}

ReadableFile::ReadableFile(ReadableFile&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)),
      size_(other.size_),
      path_(std::move(other.path_)) {}

ReadableFile& ReadableFile::operator=(ReadableFile&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(size_, other.size_);
  std::swap(path_, other.path_);
  return *this;
}

ReadableFile::~ReadableFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

ReadableFile ReadableFile::open(const std::string& path, PathOf origin) {
  if (path.find('\0') != std::string::npos)
    fail(path, "the path contains a zero byte", "Remove it from the path.");
  if (origin == PathOf::kOwn) return {open_own(path, O_RDONLY), path};
  Descriptor file(open_retrying(AT_FDCWD, path.c_str(), kReadFlags));
  if (!file.is_open()) fail_errno(path, "open the file", errno);
  return {file.release(), path};
}

ReadableFile ReadableFile::open_beneath(const std::string& root, const std::string& relative) {
  check_relative(root, relative);
  const std::string full = (std::filesystem::path(root) / relative).string();
  const Descriptor folder(
      open_retrying(AT_FDCWD, root.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECTORY));
  if (!folder.is_open()) fail_errno(root, "open the folder of external data", errno);
  Descriptor file = open_inside(folder, relative);
  if (!file.is_open()) {
    if (errno == ELOOP || errno == EXDEV) {
      fail(full, "external data behind a symbolic link is not followed",
           "Copy the data next to the model, or name its folder as the external root.");
    }
    const std::string reason = std::generic_category().message(errno);
    throw Error({.what = "cannot open its external data '" + relative + "': " + reason,
                 .where = {.file = full},
                 .detail = "Its path is relative to the folder of the model.",
                 .hint = errno == ENOENT || errno == ENOTDIR
                             ? "Put the file into '" + root + "', or load the model where it is."
                             : advice_for(errno)});
  }
  ReadableFile opened(file.release(), full);
  struct stat status{};
  if (::fstat(opened.descriptor_, &status) != 0) fail_errno(full, "examine the file", errno);
  const std::string own_folder = std::filesystem::path(full).parent_path().string();
  if (status.st_nlink > 1 && count_names(own_folder, status) != status.st_nlink) {
    fail(full, "external data is a hard link to a file with a name elsewhere",
         "Copy the file: a link could point at data that does not belong to the model.");
  }
  return opened;
}

void ReadableFile::read(std::int64_t offset, std::span<std::byte> out) const {
  constexpr int kMostThreads = 4;  // memory is not faster with more
  const auto size = static_cast<std::int64_t>(out.size());
  in_parts(size, std::min(num_processors(), kMostThreads),
           [&](std::int64_t begin, std::int64_t end) {
             read_part(offset + begin, out.subspan(static_cast<std::size_t>(begin),
                                                   static_cast<std::size_t>(end - begin)));
           });
}

void ReadableFile::read_part(std::int64_t offset, std::span<std::byte> out) const {
  constexpr std::size_t kMaxPart = std::size_t{16} << 20;  // between two checks for interrupts
  while (!out.empty()) {
    poll_interrupt();
    const std::size_t part = std::min(out.size(), kMaxPart);
    const ssize_t count = ::pread(descriptor_, out.data(), part, offset);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail_errno(path_, "read", errno);
    if (count == 0)
      fail(path_, "the file ended while it was being read",
           "Another program truncated it: try again when it is complete.");
    out = out.subspan(static_cast<std::size_t>(count));
    offset += count;
  }
}

std::string real_folder(const std::string& path) {
  std::error_code error;
  const std::filesystem::path real = std::filesystem::canonical(path, error);
  if (error) fail(path, "cannot resolve the path: " + error.message(), advice_for(error.value()));
  return real.parent_path().string();
}

namespace {

// Random digits, which differ between processes with equal ids in different containers.
std::string random_digits(int attempt) {
  std::uint32_t number = 0;
  if (::getrandom(&number, sizeof number, GRND_NONBLOCK) != sizeof number) number = 0;
  return std::to_string(number) + std::to_string(attempt);
}

constexpr std::string_view kTemporary = ".onnxgrad-tmp-";

// ".<name>.onnxgrad-tmp-<process>-<digits>"
bool is_temporary(std::string_view name) {
  const std::size_t place = name.rfind(kTemporary);
  if (!name.starts_with('.') || place == std::string_view::npos) return false;
  const std::string_view rest = name.substr(place + kTemporary.size());
  return rest.find('-') != std::string_view::npos &&
         rest.find_first_not_of("0123456789-") == std::string_view::npos;
}

void remove_if_stale(const std::string& path) {
  constexpr int kFlags = O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  Descriptor file(open_retrying(AT_FDCWD, path.c_str(), O_RDWR | kFlags));
  if (!file.is_open()) file = Descriptor(open_retrying(AT_FDCWD, path.c_str(), O_RDONLY | kFlags));
  struct stat status{};
  if (!file.is_open() || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) return;
  if (::flock(file.get(), LOCK_EX | LOCK_NB) == 0) ::unlink(path.c_str());
}

// Writes all bytes, however many a call accepts.
void write_all(const Descriptor& file, const std::string& path, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(file.get(), bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) {
      poll_interrupt();  // a pipe that nobody reads blocks
      continue;
    }
    if (count <= 0) fail_errno(path, "write", count < 0 ? errno : ENOSPC);
    bytes.remove_prefix(static_cast<std::size_t>(count));
  }
}

// A temporary file that is removed unless renamed. It is locked while it is written, so that
// an unlocked one is known to belong to a process that has ended. Messages call it `shown`, the
// file that it becomes.
class TemporaryFile {
 public:
  TemporaryFile(std::string shown, std::string folder, const std::string& name, mode_t mode)
      : shown_(std::move(shown)), folder_(std::move(folder)) {
    static constexpr int kAttempts = 100;
    for (int attempt = 0; attempt < kAttempts && !file_.is_open(); ++attempt) {
      path_ = folder_ + "/." + name.substr(0, 200) + std::string(kTemporary) +
              std::to_string(::getpid()) + "-" + random_digits(attempt);
      file_ = Descriptor(
          open_retrying(AT_FDCWD, path_.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, mode));
      if (!file_.is_open() && errno != EEXIST) {
        const int error = errno;
        path_.clear();
        fail_errno(shown_, "create the file", error);
      }
      if (file_.is_open() && !lock()) file_ = Descriptor();
    }
    if (!file_.is_open()) {
      path_.clear();
      fail(shown_, "too many temporary files are left here",
           "Remove the files .*.onnxgrad-tmp-* in this folder that no program is writing.");
    }
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile() {
    if (!path_.empty()) ::unlink(path_.c_str());
  }

  // Small pieces are buffered.
  void append(std::string_view bytes) {
    if (gathered_.size() + bytes.size() > kGathered) flush();
    if (bytes.size() > kGathered) return write_all(file_, shown_, bytes);
    gathered_.append(bytes);
  }

  void set_mode(mode_t mode) { (void)::fchmod(file_.get(), mode); }

  // A failed flush is final: the kernel may have dropped the pages, and a second one would succeed.
  // The lock is kept until the file has its name: it belongs to both descriptors.
  void finish() {
    flush();
    if (::fsync(file_.get()) != 0) fail_errno(shown_, "flush", errno);
    lock_ = Descriptor(::fcntl(file_.get(), F_DUPFD_CLOEXEC, 0));
    if (::close(file_.release()) != 0) fail_errno(shown_, "close", errno);
  }

  void rename_to(const std::string& path, Existing existing) {
    int result = 0;
    if (existing != Existing::kRefuse) {
      result = ::rename(path_.c_str(), path.c_str());
    } else {
      // Unlike rename, link atomically refuses a name that is taken.
      result = ::link(path_.c_str(), path.c_str());
      if (result == 0) ::unlink(path_.c_str());
    }
    if (result != 0) {
      if (errno == EEXIST) fail(path, "the file already exists", kOtherName);
      fail_errno(path, "rename the file", errno);
    }
    path_.clear();
    const Descriptor folder(
        open_retrying(AT_FDCWD, folder_.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECTORY));
    // Some file systems cannot flush folders and return EINVAL.
    if (!folder.is_open() || (::fsync(folder.get()) != 0 && errno != EINVAL)) {
      fail_errno(folder_, "flush the folder", errno);
    }
  }

 private:
  static constexpr std::size_t kGathered = std::size_t{1} << 16;

  // False: another process considers it stale and removes it. On file systems without locks no
  // process does.
  bool lock() {
    if (::flock(file_.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) return false;
    struct stat status{};
    return ::fstat(file_.get(), &status) != 0 || status.st_nlink > 0;
  }

  void flush() {
    write_all(file_, shown_, gathered_);
    gathered_.clear();
  }

  std::string shown_;
  std::string folder_;
  std::string path_;
  Descriptor file_;
  Descriptor lock_;  // second descriptor of the file, held until it is closed
  std::string gathered_;
};

// The destination of the bytes for a path.
struct Target {
  std::string folder;
  std::string name;
  std::optional<mode_t> mode = {};  ///< mode of an existing file
  bool is_stream = false;           ///< a device or a pipe, which is written to directly

  std::string path() const { return folder + "/" + name; }
};

Target find_target(const std::string& path, Existing existing) {
  if (path.empty() || path.find('\0') != std::string::npos) {
    fail(path, "this is not a path", "Give a non-empty path without zero bytes.");
  }
  // A link to a file is kept: its target is replaced.
  std::error_code error;
  std::filesystem::path real = path;
  if (existing == Existing::kReplace && std::filesystem::is_symlink(real, error)) {
    const std::filesystem::path resolved = std::filesystem::weakly_canonical(real, error);
    if (!error) real = resolved;
  }
  const std::filesystem::path parent = real.parent_path();
  Target target{.folder = parent.empty() ? "." : parent.string(), .name = real.filename().string()};
  const bool is_own = existing == Existing::kReplaceOwn;
  struct stat status{};
  if (::stat(target.folder.c_str(), &status) != 0) {
    fail(path, "there is no folder '" + target.folder + "'",
         "Create the folder first, or choose another.");
  }
  if ((is_own ? ::lstat(real.c_str(), &status) : ::stat(real.c_str(), &status)) != 0) {
    if (errno == ENAMETOOLONG || errno == ELOOP) fail_errno(path, "use the path", errno);
    return target;
  }
  if (existing == Existing::kRefuse) fail(path, "the file already exists", kOtherName);
  if (S_ISDIR(status.st_mode)) {
    fail(path, "this is a folder, not a regular file",
         "Choose the path of a file, or one that does not exist.");
  }
  if (is_own) return target;
  target.mode = status.st_mode & 07777u;
  target.is_stream = !S_ISREG(status.st_mode);
  return target;
}

// A pipe is opened once it has a reader; waiting for one can be interrupted.
Descriptor open_stream(const std::string& path) {
  constexpr int kFlags = O_WRONLY | O_CLOEXEC | O_NOCTTY;
  constexpr std::chrono::milliseconds kPause(10);
  for (;;) {
    Descriptor stream(open_retrying(AT_FDCWD, path.c_str(), kFlags | O_NONBLOCK));
    if (stream.is_open()) {
      const int flags = ::fcntl(stream.get(), F_GETFL);
      if (flags >= 0) (void)::fcntl(stream.get(), F_SETFL, flags & ~O_NONBLOCK);
      return stream;
    }
    if (errno != ENXIO) fail_errno(path, "open it for writing", errno);
    poll_interrupt();
    std::this_thread::sleep_for(kPause);
  }
}

void write_stream(const std::string& path, const std::function<void(const ByteSink&)>& write) {
  const Descriptor stream = open_stream(path);
  write([&](std::string_view bytes) { write_all(stream, path, bytes); });
}

}  // namespace

void write_atomically(const std::string& path, const std::function<void(const ByteSink&)>& write,
                      Existing existing) {
  const Target target = find_target(path, existing);
  if (target.is_stream) return write_stream(path, write);
  remove_stale_temporaries(target.folder);
  const mode_t mode = existing == Existing::kReplaceOwn ? kOwnMode : 0666;
  TemporaryFile file(path, target.folder, target.name, mode);
  if (target.mode) file.set_mode(*target.mode);
  write([&file](std::string_view bytes) { file.append(bytes); });
  file.finish();
  file.rename_to(target.path(), existing);
}

void write_atomically(const std::string& path, std::string_view contents, Existing existing) {
  write_atomically(path, [contents](const ByteSink& sink) { sink(contents); }, existing);
}

void check_writable(const std::string& path, std::int64_t bytes) {
  const Target target = find_target(path, Existing::kReplace);
  if (target.is_stream) return;
  const TemporaryFile file(path, target.folder, target.name, 0666);  // and is gone
  const auto available = available_bytes(target.folder);
  if (!available || *available >= bytes) return;
  fail(path,
       "this needs " + std::to_string(bytes) + " bytes, but " + std::to_string(*available) +
           " are free on the disk",
       advice_for(ENOSPC));
}

void remove_stale_temporaries(const std::string& folder) {
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(::opendir(folder.c_str()), ::closedir);
  if (!entries) return;
  while (const dirent* const entry = ::readdir(entries.get())) {
    if (is_temporary(entry->d_name)) remove_if_stale(folder + "/" + entry->d_name);
  }
}

}  // namespace onnxgrad::base
