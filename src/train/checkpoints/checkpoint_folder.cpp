#include "train/checkpoints/checkpoint_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <utility>

#include "base/check.h"
#include "base/files.h"

namespace onnxgrad::train {
namespace {

constexpr std::string_view kPrefix = "ck-";
constexpr std::string_view kSuffix = ".safetensors";
constexpr std::size_t kDigits = 12;
constexpr const char* kBestKey = "best";
constexpr const char* kLockName = "lock";
constexpr std::string_view kBadSuffix = ".bad";

std::string no_room(std::int64_t bytes, std::int64_t free_bytes) {
  return fmt::format("a checkpoint needs {} bytes, but {} are free", bytes, free_bytes);
}

// An error of base as a checkpoint error.
template <class Action>
auto with_checkpoint_error(const Action& action) {
  try {
    return action();
  } catch (const CheckpointError&) {
    throw;
  } catch (const Error& error) {
    rethrow_as_checkpoint_error(error);
  }
}

std::vector<std::string> checkpoint_names(const std::string& folder) {
  std::vector<std::string> names = with_checkpoint_error([&] { return base::list_files(folder); });
  std::erase_if(names, [](const std::string& name) { return !checkpoint_step(name); });
  std::ranges::reverse(names);
  return names;
}

// Calls `on_bad` for each incomplete file until one is complete.
template <class OnBad>
std::optional<Checkpoint> first_whole(const std::string& folder, const OnBad& on_bad) {
  for (const std::string& name : checkpoint_names(folder)) {
    try {
      return read_checkpoint(fmt::format("{}/{}", folder, name), base::PathOf::kOwn);
    } catch (const CheckpointError& error) {
      on_bad(name, error.problem().what);
    }
  }
  return std::nullopt;
}

std::string text_of(const Checkpoint& checkpoint, const std::string& key) {
  const auto found = checkpoint.metadata.find(key);
  return found == checkpoint.metadata.end() ? std::string() : found->second;
}

}  // namespace

std::string checkpoint_name(std::int64_t step) {
  return fmt::format("{}{:0{}}{}", kPrefix, step, kDigits, kSuffix);
}

std::optional<std::int64_t> checkpoint_step(const std::string& name) {
  const std::string_view text = name;
  if (!text.starts_with(kPrefix) || !text.ends_with(kSuffix)) return std::nullopt;
  if (text.size() != kPrefix.size() + kDigits + kSuffix.size()) return std::nullopt;
  const char* const first = name.c_str() + kPrefix.size();
  const char* const last = first + kDigits;
  std::int64_t step = 0;
  const auto [end, error] = std::from_chars(first, last, step);
  if (error != std::errc() || end != last || step < 0) return std::nullopt;
  return step;
}

std::optional<Checkpoint> newest_checkpoint(const std::string& folder, const FileReport& report) {
  return first_whole(folder, [&](const std::string& name, const std::string& problem) {
    if (report) report(folder + "/" + name, problem);
  });
}

void save_checkpoint_file(const std::string& path, Checkpoint& checkpoint,
                          const FreeBytes& free_bytes) {
  const std::filesystem::path given = path;
  const std::string folder = given.has_parent_path() ? given.parent_path().string() : ".";
  const std::string name = given.filename().string();
  const std::string lock_path = folder + "/" + kLockName;
  std::error_code ignored;
  std::optional<base::FileLock> lock;
  if (std::filesystem::is_regular_file(lock_path, ignored)) {
    if (name == kLockName || name == kBestKey) {
      throw CheckpointError({.what = fmt::format("'{}' is used by the checkpoints there", name),
                             .where = {.file = path},
                             .hint = "Choose another name, or another folder."});
    }
    if (checkpoint_step(name)) with_checkpoint_error([&] { lock.emplace(lock_path); });
  }
  const std::int64_t bytes = checkpoint_bytes(checkpoint);
  const auto available = free_bytes(folder);
  if (available && *available < bytes) {
    throw CheckpointError({.what = no_room(bytes, *available),
                           .where = {.file = path},
                           .hint = "Free space on the disk, or choose another one; an existing "
                                   "file is kept until the new one is complete."});
  }
  write_checkpoint(path, checkpoint);
}

CheckpointFolder::CheckpointFolder(std::string folder, Options options, FileReport report)
    : folder_(std::move(folder)), options_(std::move(options)), report_(std::move(report)) {
  with_checkpoint_error([&] {
    base::make_folders(folder_);
    lock_.emplace(path_of(kLockName));
    base::remove_stale_temporaries(folder_);
  });
}

std::optional<Checkpoint> CheckpointFolder::take_newest() {
  auto found = first_whole(folder_, [&](const std::string& name, const std::string& problem) {
    std::string note = problem;
    try {
      // A link, or a file of another user, is not ours to rename.
      (void)base::ReadableFile::open(path_of(name), base::PathOf::kOwn);
      base::rename_file(path_of(name), path_of(fmt::format("{}{}", name, kBadSuffix)));
      note += fmt::format("; it is now called '{}{}'", name, kBadSuffix);
    } catch (const Error&) {
      whole_[name] = false;  // left in place, and not counted
    }
    if (report_) report_(path_of(name), note);
  });
  return found;
}

void CheckpointFolder::begin(std::int64_t step, const Checkpoint* resumed) {
  const std::vector<std::string> names = names_newest_first();
  if (!names.empty() && checkpoint_step(names.front()) > step) {
    throw CheckpointError(
        {.what = fmt::format("the folder has checkpoints of another training, up to step {}; this "
                             "one is at step {}",
                             *checkpoint_step(names.front()), step),
         .where = {.file = folder_},
         .hint = "Resume from them, choose another folder, or remove them."});
  }
  if (resumed == nullptr) return;
  best_ = text_of(*resumed, kBestKey);
  if (!checkpoint_step(best_)) best_.clear();
}

std::vector<std::string> CheckpointFolder::names_newest_first() const {
  return checkpoint_names(folder_);
}

bool CheckpointFolder::is_whole(const std::string& name) {
  const auto known = whole_.find(name);
  if (known != whole_.end()) return known->second;
  bool whole = true;
  try {
    (void)read_checkpoint(path_of(name), base::PathOf::kOwn);
  } catch (const CheckpointError&) {
    whole = false;
  }
  whole_[name] = whole;
  return whole;
}

bool CheckpointFolder::try_remove(const std::string& name) {
  try {
    base::remove_file(path_of(name));
    whole_.erase(name);
    for (const std::string& part : part_names(folder_, name)) base::remove_file(path_of(part));
    return true;
  } catch (const Error& error) {
    if (report_) report_(path_of(name), error.problem().what);
    return false;
  }
}

// A save needs space for one additional file. If there is none, the oldest are removed first, as
// long as the newest complete one and the best are left: these must exist in case the save fails.
void CheckpointFolder::make_room(std::int64_t bytes) {
  const auto has_room = [&] {
    const auto available = options_.free_bytes(folder_);
    return !available || *available >= bytes;
  };
  std::int64_t keep = std::max<std::int64_t>(options_.keep - 1, 1);
  for (; keep >= 1 && !has_room(); --keep) prune(keep);
  if (has_room()) return;
  std::vector<std::string> left = names_newest_first();
  std::erase_if(left, [&](const std::string& name) { return !is_whole(name); });
  std::string detail;
  if (!left.empty()) {
    detail = fmt::format("What is left, {}, is kept until the new one is complete.",
                         base::quote_list(left));
  }
  const bool has_bad = std::ranges::any_of(base::list_files(folder_), [](const std::string& name) {
    return name.ends_with(kBadSuffix);
  });
  throw CheckpointError(
      {.what = no_room(bytes, options_.free_bytes(folder_).value_or(0)),
       .where = {.file = folder_},
       .detail = detail,
       .hint = fmt::format("Free space on the disk{}, or choose a folder on another one.",
                           has_bad ? " (files called *.bad are damaged ones)" : "")});
}

std::string CheckpointFolder::save(Checkpoint& checkpoint, std::int64_t step, bool is_best) {
  const std::string name = checkpoint_name(step);
  const std::string best = is_best ? name : best_;
  if (options_.keep_best && !best.empty()) checkpoint.metadata[kBestKey] = best;
  make_room(checkpoint_bytes(checkpoint));
  write_checkpoint(path_of(name), checkpoint, base::Existing::kReplaceOwn);
  whole_[name] = true;
  if (is_best) {
    best_ = name;
    point_to_best();
  }
  try {
    prune(options_.keep);
  } catch (const CheckpointError& error) {  // the new one exists anyway
    if (report_) report_(folder_, error.problem().what);
  }
  return path_of(name);
}

void CheckpointFolder::point_to_best() {
  if (!options_.keep_best) return;
  try {
    base::write_atomically(path_of(kBestKey), best_ + "\n", base::Existing::kReplaceOwn);
  } catch (const Error& error) {  // the checkpoints record it themselves
    if (report_) report_(path_of(kBestKey), error.problem().what);
  }
}

// Removes complete checkpoints older than the `keep` newest complete ones, except the best.
void CheckpointFolder::prune(std::int64_t keep) {
  std::int64_t found = 0;
  for (const std::string& name : names_newest_first()) {
    if (!is_whole(name) || ++found <= keep) continue;
    if (options_.keep_best && name == best_) continue;
    try_remove(name);
  }
}

}  // namespace onnxgrad::train
