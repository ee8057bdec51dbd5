#include "device/thread_count.h"

#ifdef __linux__
#include <sched.h>
#endif

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>
#include <thread>

// Control groups, version 2: the line "0::/path" of /proc/self/cgroup names the group, and in its
// folder cpu.max contains "<quota> <period>" in microseconds, or "max <period>".
// https://docs.kernel.org/admin-guide/cgroup-v2.html

namespace onnxgrad::device {
namespace {

std::optional<int> read_quota(const std::filesystem::path& folder) {
  std::ifstream file(folder / "cpu.max");
  double quota = 0;
  double period = 0;
  if (!(file >> quota >> period) || quota <= 0 || period <= 0) return std::nullopt;
  return static_cast<int>(std::clamp(quota / period, 1.0, 1e6));
}

int processors() {
#ifdef __linux__
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return CPU_COUNT(&set);
#endif
  return static_cast<int>(std::thread::hardware_concurrency());
}

}  // namespace

std::optional<int> quota_threads(const std::filesystem::path& root, std::string_view membership) {
  constexpr std::string_view kUnified = "0::/";
  std::filesystem::path group;
  while (!membership.empty()) {
    const std::string_view line = membership.substr(0, membership.find('\n'));
    if (line.starts_with(kUnified)) group = line.substr(kUnified.size());
    membership.remove_prefix(std::min(line.size() + 1, membership.size()));
  }
  std::filesystem::path folder = root;
  std::optional<int> least = read_quota(folder);
  for (const std::filesystem::path& part : group) {
    folder /= part;
    const std::optional<int> quota = read_quota(folder);
    if (quota) least = std::min(*quota, least.value_or(*quota));
  }
  return least;
}

std::optional<int> openmp_threads(std::string_view text) {
  const auto is_blank = [](char c) { return c == ' ' || c == '\t'; };
  text = text.substr(0, text.find(','));
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
  int count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  const bool is_number = error == std::errc{} && end == text.data() + text.size() && count > 0;
  return is_number ? std::optional(count) : std::nullopt;
}

int available_threads(const SharedProcessors& shared) {
  std::ifstream file("/proc/self/cgroup");
  const std::string membership(std::istreambuf_iterator<char>(file), {});
  const int own = shared.processors > 0 ? static_cast<int>(shared.processors) : processors();
  const int count = std::max(own, 1);
  const char* wanted = std::getenv("OMP_NUM_THREADS");  // NOLINT(concurrency-mt-unsafe): only reads
  const int quota = quota_threads("/sys/fs/cgroup", membership).value_or(count * shared.processes);
  return std::min({count, std::max(quota / shared.processes, 1),
                   openmp_threads(wanted == nullptr ? "" : wanted).value_or(count)});
}

}  // namespace onnxgrad::device
