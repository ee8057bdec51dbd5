#include "runtime/plan_cache.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <sys/stat.h>
#ifdef __x86_64__
#include <cpuid.h>
#endif

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/checksum.h"
#include "base/files.h"
#include "base/folder.h"
#include "base/memory_budget.h"
#include "onnxgrad/error.h"
#include "onnxgrad/version.h"

namespace onnxgrad::runtime {
namespace {

constexpr std::string_view kMagic = "onnxgrad plan 1\n";
constexpr std::string_view kEnding = ".plan";
constexpr std::size_t kChecksumSize = 32;
constexpr std::size_t kMaxFiles = 1024;
constexpr std::size_t kKeptFiles = 768;

// Kernels, and so the passes' choices, differ between processors.
std::string processor() {
  std::string text;
#ifdef __x86_64__
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) != 0) text += fmt::format("{:x}.{:x}.{:x}", a, c, d);
  for (const unsigned leaf : {0U, 1U}) {
    if (__get_cpuid_count(7, leaf, &a, &b, &c, &d) != 0) {
      text += fmt::format("/{:x}.{:x}.{:x}.{:x}", a, b, c, d);
    }
  }
#endif
  return text;
}

// Of the code that makes plans: of a library that was built again, the old ones are not used.
std::string build() {
  Dl_info info{};
  struct stat file{};
  const auto* inside = reinterpret_cast<const void*>(&build);
  if (::dladdr(inside, &info) == 0 || info.dli_fname == nullptr ||
      ::stat(info.dli_fname, &file) != 0) {
    return kVersion;
  }
  return fmt::format("{} {} {}.{:09}", kVersion, file.st_size, file.st_mtim.tv_sec,
                     file.st_mtim.tv_nsec);
}

}  // namespace

PlanCache::PlanCache(std::string folder, Warn warn)
    : folder_(std::move(folder)), warn_(std::move(warn)) {
  try {
    base::make_folders(folder_);
  } catch (const Error& error) {
    is_usable_ = false;
    if (warn_) warn_(fmt::format("no plans are kept in '{}': {}", folder_, error.problem().what));
  }
}

std::string PlanCache::key_of(const Program& program, const std::vector<FeedInfo>& feeds,
                              const Engine& engine, const ExecutorOptions& options,
                              std::optional<std::int64_t> max_arena_bytes) {
  base::Checksum sum;
  static const std::string machine = processor() + "|" + build();
  sum.update(machine);
  sum.update(fmt::format("|{}|{}|{}|{}|", options.threads, options.fuse,
                         max_arena_bytes ? std::to_string(*max_arena_bytes) : "-",
                         engine.device.alignment()));
  for (const FeedInfo& feed : feeds) {
    sum.update(fmt::format("{}{},", dtype_name(feed.desc.dtype), feed.desc.dims.to_string()));
    if (!feed.value.is_defined()) continue;
    sum.update("=");
    sum.update(std::span(feed.value.raw(), static_cast<std::size_t>(feed.value.size_bytes())));
  }
  describe_program(program, [&](std::string_view bytes) { sum.update(bytes); });
  return sum.hex();
}

std::string PlanCache::path_of(const std::string& key) const {
  return folder_ + "/" + key + std::string(kEnding);
}

void PlanCache::warn_of(const std::string& key, const std::string& why) {
  if (warn_) warn_(fmt::format("the plan in '{}' is not used: {}", path_of(key), why));
}

std::optional<PlannedGraph> PlanCache::read(const std::string& key, const Program& program) {
  if (!is_usable_) return std::nullopt;
  std::error_code error;
  if (!std::filesystem::exists(path_of(key), error)) return std::nullopt;
  try {
    const auto file = base::ReadableFile::open(path_of(key));
    const auto size = static_cast<std::size_t>(file.size_bytes());
    const auto memory = base::allocate_aligned(file.size_bytes());
    file.read(0, {memory.get(), size});
    std::string_view bytes(reinterpret_cast<const char*>(memory.get()), size);
    const std::string head = std::string(kMagic) + key;
    if (!bytes.starts_with(head) || size < head.size() + kChecksumSize) {
      warn_of(key, "it is not a plan of this library, or it is incomplete");
      return std::nullopt;
    }
    const std::string_view body = bytes.substr(0, size - kChecksumSize);
    if (base::checksum_hex(body) != bytes.substr(body.size())) {
      warn_of(key, "its checksum is wrong");
      return std::nullopt;
    }
    auto graph = read_planned_graph(body.substr(head.size()), program);
    if (!graph) warn_of(key, "its contents are not those of a plan");
    return graph;
  } catch (const Error& failure) {
    warn_of(key, failure.problem().what);
    return std::nullopt;
  }
}

void PlanCache::write(const std::string& key, std::string_view graph) {
  if (!is_usable_) return;
  base::Checksum sum;
  const auto parts = {kMagic, std::string_view(key), graph};
  for (const std::string_view part : parts) sum.update(part);
  try {
    base::write_atomically(path_of(key), [&](const base::ByteSink& sink) {
      for (const std::string_view part : parts) sink(part);
      sink(sum.hex());
    });
    remove_oldest();
  } catch (const Error& error) {
    is_usable_ = false;  // one warning
    if (warn_) warn_(fmt::format("no plans are kept in '{}': {}", folder_, error.problem().what));
  }
}

void PlanCache::remove_oldest() {
  namespace fs = std::filesystem;
  std::error_code error;
  std::vector<std::pair<fs::file_time_type, fs::path>> files;
  for (fs::directory_iterator entry(folder_, error), end; !error && entry != end;
       entry.increment(error)) {
    if (entry->path().extension() != kEnding) continue;
    std::error_code gone;  // by another process
    const auto time = entry->last_write_time(gone);
    if (!gone) files.emplace_back(time, entry->path());
  }
  if (files.size() <= kMaxFiles) return;
  std::ranges::sort(files);
  for (std::size_t i = 0; i + kKeptFiles < files.size(); ++i) fs::remove(files[i].second, error);
}

}  // namespace onnxgrad::runtime
