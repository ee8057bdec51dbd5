#include "base/parts.h"

#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <system_error>
#include <thread>
#include <vector>

#include "base/rounding.h"

namespace onnxgrad::base {
namespace {

constexpr std::int64_t kSmallestPart = std::int64_t{8} << 20;
constexpr std::int64_t kBoundary = std::int64_t{2} << 20;

}  // namespace

int num_processors() {
  cpu_set_t allowed;
  if (::sched_getaffinity(0, sizeof allowed, &allowed) == 0)
    return std::max(CPU_COUNT(&allowed), 1);
  return std::max(static_cast<int>(std::thread::hardware_concurrency()), 1);
}

void in_parts(std::int64_t bytes, int threads,
              const std::function<void(std::int64_t begin, std::int64_t end)>& work) {
  const std::int64_t count =
      std::clamp<std::int64_t>(bytes / kSmallestPart, 1, std::max(threads, 1));
  if (count == 1) return work(0, bytes);
  const std::int64_t pages = ceil_div(bytes, kBoundary);
  const auto begin_of = [&](std::int64_t part) {
    return std::min(pages * part / count * kBoundary, bytes);
  };
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(count));
  const auto run = [&](std::int64_t part) {
    try {
      work(begin_of(part), begin_of(part + 1));
    } catch (...) {
      errors[static_cast<std::size_t>(part)] = std::current_exception();
    }
  };
  std::vector<std::thread> others;
  std::int64_t started = 1;
  try {
    for (; started < count; ++started) others.emplace_back(run, started);
  } catch (const std::system_error&) {  // NOLINT(bugprone-empty-catch): the rest is done here
  }
  run(0);
  for (; started < count; ++started) run(started);
  for (std::thread& other : others) other.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

void populate(std::byte* memory, std::int64_t bytes, int threads) {
#ifdef MADV_POPULATE_WRITE
  if (threads < 2 || bytes < 2 * kSmallestPart) return;
  const std::int64_t page = ::sysconf(_SC_PAGESIZE);
  const std::int64_t before = -reinterpret_cast<std::intptr_t>(memory) & (page - 1);
  std::byte* const pages = memory + before;
  in_parts(bytes - before, threads, [pages](std::int64_t begin, std::int64_t end) {
    // Only a wish: kernels before 5.14 do not know it.
    (void)::madvise(pages + begin, static_cast<std::size_t>(end - begin), MADV_POPULATE_WRITE);
  });
#else
  (void)memory;
  (void)bytes;
  (void)threads;
#endif
}

}  // namespace onnxgrad::base
