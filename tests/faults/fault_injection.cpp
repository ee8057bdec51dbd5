// A library for LD_PRELOAD that makes file calls fail, for tests of what a program does then. Only
// calls about files below one folder count, so that what a process reads at its start is left
// alone.
//
//   ONNXGRAD_FAULT_FOLDER   the folder, absolute; without it nothing is done
//   ONNXGRAD_FAULT_AT       the number of the call, from 1, that fails; 0: none
//   ONNXGRAD_FAULT_FOREVER  1: all calls from that one on
//   ONNXGRAD_FAULT_KIND     enospc, eio: the call fails with that error, without having done
//   anything;
//                           short: of a write, half is written; other calls go through;
//                           kill: the process ends there by SIGKILL, a write after one half
//   ONNXGRAD_FAULT_MIRROR   a folder (elsewhere, of the same file system) that gets what a power
//   cut
//                           would leave: the bytes of a file as "file-<inode>" when it is flushed,
//                           the names in a folder as "folder-<inode>" when that is flushed
//   ONNXGRAD_FAULT_LIES     1: flushing says that it has been done, and does nothing
//   ONNXGRAD_FAULT_FREE     what statvfs gives as free bytes, for calls about the folder
//   ONNXGRAD_FAULT_LOG      a file (elsewhere) that gets one line for each call that was made to
//   fail,
//                           and at the end the number of calls
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <string>
#include <string_view>

namespace {

enum class Kind : std::uint8_t { kNoSpace, kInputOutput, kShort, kKill };

struct Settings {
  std::string folder;
  long at = 0;
  bool forever = false;
  Kind kind = Kind::kInputOutput;
  long free_bytes = -1;
  std::string mirror;
  bool lies = false;
  std::string log;
};

std::string text_of(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

const Settings& settings() {
  // Never destroyed: files are closed until the very end of the process.
  static const Settings* const read = [] {
    auto* const made = new Settings;
    Settings& s = *made;
    s.folder = text_of("ONNXGRAD_FAULT_FOLDER");
    s.at = std::atol(text_of("ONNXGRAD_FAULT_AT").c_str());
    s.forever = text_of("ONNXGRAD_FAULT_FOREVER") == "1";
    const std::string kind = text_of("ONNXGRAD_FAULT_KIND");
    if (kind == "enospc") s.kind = Kind::kNoSpace;
    if (kind == "short") s.kind = Kind::kShort;
    if (kind == "kill") s.kind = Kind::kKill;
    if (!text_of("ONNXGRAD_FAULT_FREE").empty()) {
      s.free_bytes = std::atol(text_of("ONNXGRAD_FAULT_FREE").c_str());
    }
    s.mirror = text_of("ONNXGRAD_FAULT_MIRROR");
    s.lies = text_of("ONNXGRAD_FAULT_LIES") == "1";
    s.log = text_of("ONNXGRAD_FAULT_LOG");
    return made;
  }();
  return *read;
}

constexpr std::size_t kMaxDescriptors = 1024;
std::array<std::atomic<bool>, kMaxDescriptors> is_watched{};
std::atomic<long> num_calls{0};

bool is_inside(const char* path) {
  const std::string& folder = settings().folder;
  return !folder.empty() && path != nullptr && std::string_view(path).starts_with(folder);
}

bool is_inside(int descriptor) {
  return descriptor >= 0 && static_cast<std::size_t>(descriptor) < kMaxDescriptors &&
         is_watched[static_cast<std::size_t>(descriptor)].load();
}

void watch(int descriptor, bool on) {
  if (descriptor >= 0 && static_cast<std::size_t>(descriptor) < kMaxDescriptors) {
    is_watched[static_cast<std::size_t>(descriptor)].store(on);
  }
}

// By system calls: the functions of the C library are the ones that are replaced here.
void write_log(const std::string& line) {
  if (settings().log.empty()) return;
  const long descriptor = syscall(SYS_openat, AT_FDCWD, settings().log.c_str(),
                                  O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0644);
  if (descriptor < 0) return;
  (void)syscall(SYS_write, descriptor, line.data(), line.size());
  (void)syscall(SYS_close, descriptor);
}

void write_file(const std::string& path, const std::string& bytes) {
  const long descriptor =
      syscall(SYS_openat, AT_FDCWD, path.c_str(), O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC, 0644);
  if (descriptor < 0) return;
  (void)syscall(SYS_write, descriptor, bytes.data(), bytes.size());
  (void)syscall(SYS_close, descriptor);
}

std::string name_in_mirror(const char* kind, ino_t inode) {
  return settings().mirror + "/" + kind + "-" + std::to_string(inode);
}

std::string link_of(int descriptor) { return "/proc/self/fd/" + std::to_string(descriptor); }

// An open path keeps the number of a file's inode from being used again. (A hard link would, too,
// but files with another name are refused; a second descriptor would keep locks.)
void keep_inode(int descriptor) {
  struct stat status{};
  if (settings().mirror.empty() || ::fstat(descriptor, &status) != 0) return;
  if (!S_ISREG(status.st_mode)) return;
  static std::mutex mutex;
  static auto& kept = *new std::set<ino_t>;
  const std::scoped_lock lock(mutex);
  if (!kept.insert(status.st_ino).second) return;
  (void)syscall(SYS_openat, AT_FDCWD, link_of(descriptor).c_str(), O_PATH | O_CLOEXEC);
}

// The bytes of a file, which may have been opened for writing alone.
std::string bytes_of(int descriptor) {
  std::string bytes;
  const long again =
      syscall(SYS_openat, AT_FDCWD, link_of(descriptor).c_str(), O_RDONLY | O_CLOEXEC, 0);
  std::array<char, 1 << 16> buffer{};
  for (long count = 0; (count = syscall(SYS_read, again, buffer.data(), buffer.size())) > 0;) {
    bytes.append(buffer.data(), static_cast<std::size_t>(count));
  }
  (void)syscall(SYS_close, again);
  return bytes;
}

// Lines "<inode> <d or f> <name>".
std::string names_of(int descriptor) {
  std::string lines;
  DIR* const entries = ::opendir(link_of(descriptor).c_str());
  if (entries == nullptr) return lines;
  while (const dirent* const entry = ::readdir(entries)) {
    const std::string name = entry->d_name;
    if (name == "." || name == "..") continue;
    lines += std::to_string(entry->d_ino) + (entry->d_type == DT_DIR ? " d " : " f ") + name + "\n";
  }
  ::closedir(entries);
  return lines;
}

// After a flush.
void copy_to_mirror(int descriptor) {
  struct stat status{};
  if (settings().mirror.empty() || ::fstat(descriptor, &status) != 0) return;
  if (S_ISDIR(status.st_mode)) {
    write_file(name_in_mirror("folder", status.st_ino), names_of(descriptor));
  } else {
    write_file(name_in_mirror("file", status.st_ino), bytes_of(descriptor));
  }
}

enum class Verdict : std::uint8_t { kGo, kFail, kHalf, kHalfThenDie };

// Counts the call and says what becomes of it.
Verdict judge(const char* call, bool writes) {
  const Settings& s = settings();
  const long number = ++num_calls;
  const bool is_hit = s.at > 0 && (number == s.at || (s.forever && number > s.at));
  if (!is_hit) return Verdict::kGo;
  if (s.kind == Kind::kShort) {
    if (writes) write_log(std::string("short ") + call + "\n");
    return writes ? Verdict::kHalf : Verdict::kGo;
  }
  if (s.kind == Kind::kKill) {
    if (writes) return Verdict::kHalfThenDie;
    (void)::kill(::getpid(), SIGKILL);
  }
  write_log(std::string("failed ") + call + "\n");
  errno = s.kind == Kind::kNoSpace ? ENOSPC : EIO;
  return Verdict::kFail;
}

bool fails(const char* call) { return judge(call, false) == Verdict::kFail; }

template <class Function>
Function real(Function /*replacement*/, const char* name) {
  return reinterpret_cast<Function>(::dlsym(RTLD_NEXT, name));
}

struct AtTheEnd {
  ~AtTheEnd() { write_log("calls " + std::to_string(num_calls.load()) + "\n"); }
} at_the_end;

int opened(const char* call, const char* path, int flags, auto open_it) {
  if (!is_inside(path)) return open_it();
  const char* name = (flags & O_CREAT) != 0 ? "create" : call;
  if (fails(name)) return -1;
  const int descriptor = open_it();
  watch(descriptor, true);
  if (descriptor >= 0 && (flags & O_CREAT) != 0) keep_inode(descriptor);
  return descriptor;
}

mode_t mode_of(int flags, va_list arguments) {
  return (flags & (O_CREAT | O_TMPFILE)) != 0 ? static_cast<mode_t>(va_arg(arguments, int)) : 0;
}

ssize_t written(const char* call, int descriptor, std::size_t count, auto write_it) {
  if (!is_inside(descriptor)) return write_it(count);
  const Verdict verdict = judge(call, true);
  if (verdict == Verdict::kFail) return -1;
  if (verdict == Verdict::kGo || count < 2) return write_it(count);
  const ssize_t result = write_it(count / 2);
  if (verdict == Verdict::kHalfThenDie) (void)::kill(::getpid(), SIGKILL);
  return result;
}

int flushed(const char* call, int descriptor, auto flush_it) {
  if (!is_inside(descriptor)) return flush_it();
  if (fails(call)) return -1;
  if (settings().lies) return 0;
  const int result = flush_it();
  if (result == 0) copy_to_mirror(descriptor);
  return result;
}

}  // namespace

extern "C" {
// The rest of the project hides its symbols.
#pragma GCC visibility push(default)

int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  return opened("open", path, flags, [&] { return real(&open, "open")(path, flags, mode); });
}

int open64(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  return opened("open", path, flags, [&] { return real(&open64, "open64")(path, flags, mode); });
}

int openat(int folder, const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  return opened("open", path, flags,
                [&] { return real(&openat, "openat")(folder, path, flags, mode); });
}

int openat64(int folder, const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  return opened("open", path, flags,
                [&] { return real(&openat64, "openat64")(folder, path, flags, mode); });
}

ssize_t write(int descriptor, const void* data, size_t count) {
  return written("write", descriptor, count,
                 [&](size_t bytes) { return real(&write, "write")(descriptor, data, bytes); });
}

ssize_t pwrite(int descriptor, const void* data, size_t count, off_t offset) {
  return written("pwrite", descriptor, count, [&](size_t bytes) {
    return real(&pwrite, "pwrite")(descriptor, data, bytes, offset);
  });
}

// Pieces are either all written or none: who writes by writev has to take short counts anyway.
ssize_t writev(int descriptor, const struct iovec* pieces, int count) {
  if (is_inside(descriptor) && fails("writev")) return -1;
  return real(&writev, "writev")(descriptor, pieces, count);
}

int fsync(int descriptor) {
  return flushed("fsync", descriptor, [&] { return real(&fsync, "fsync")(descriptor); });
}

int fdatasync(int descriptor) {
  return flushed("fdatasync", descriptor,
                 [&] { return real(&fdatasync, "fdatasync")(descriptor); });
}

// As on Linux, a descriptor is closed even if closing it fails.
int close(int descriptor) {
  const bool fails_here = is_inside(descriptor) && fails("close");
  watch(descriptor, false);
  const int error = errno;
  const int result = real(&close, "close")(descriptor);
  if (!fails_here) return result;
  errno = error;
  return -1;
}

int rename(const char* from, const char* to) noexcept {
  if (is_inside(to) && fails("rename")) return -1;
  return real(&rename, "rename")(from, to);
}

int link(const char* from, const char* to) noexcept {
  if (is_inside(to) && fails("link")) return -1;
  return real(&link, "link")(from, to);
}

int unlink(const char* path) noexcept {
  if (is_inside(path) && fails("unlink")) return -1;
  return real(&unlink, "unlink")(path);
}

int mkdir(const char* path, mode_t mode) noexcept {
  if (is_inside(path) && fails("mkdir")) return -1;
  return real(&mkdir, "mkdir")(path, mode);
}

int ftruncate(int descriptor, off_t size) noexcept {
  if (is_inside(descriptor) && fails("ftruncate")) return -1;
  return real(&ftruncate, "ftruncate")(descriptor, size);
}

int flock(int descriptor, int operation) noexcept {
  if (is_inside(descriptor) && fails("flock")) return -1;
  return real(&flock, "flock")(descriptor, operation);
}

int statvfs(const char* path, struct statvfs* status) noexcept {
  if (!is_inside(path)) return real(&statvfs, "statvfs")(path, status);
  if (fails("statvfs")) return -1;
  const int result = real(&statvfs, "statvfs")(path, status);
  if (result == 0 && settings().free_bytes >= 0) {
    status->f_frsize = 1;
    status->f_bavail = static_cast<fsblkcnt_t>(settings().free_bytes);
  }
  return result;
}

#pragma GCC visibility pop
}  // extern "C"
