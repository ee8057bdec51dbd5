#include "device/cpu/threads.h"

#include <fmt/format.h>
#include <pthread.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/parts.h"
#include "onnxgrad/error.h"

// A ticket announces work: the work's number, and how many threads take part. The caller writes the
// work and then the ticket; each worker that takes part runs its chunk and writes the number into
// its own Member, where the caller waits for it. A worker may miss tickets in which it has no part.

namespace onnxgrad::device {
namespace {

constexpr std::size_t kLine = 128;  // processors fetch lines of 64 bytes in pairs
constexpr std::int64_t kMostThreads = 1 << 16;

// Nanoseconds of work that pay for another thread: in a kernel, when the threads are awake; in a
// plan, before which they may have to be woken.
constexpr double kKernelShareNs = 1e3;
constexpr double kPlanShareNs = 20e3;

/// Threads of all pools, callers included, and the processors for them.
std::atomic<int> members{0};
std::atomic<int> processors{1};
/// Counts the forks that this process descends from: a child has none of its parent's threads.
std::atomic<int> forks{0};

void pause() {
#ifdef __x86_64__
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// Waits until ready() is true, and returns true; returns false if that takes long.
template <class F>
bool wait_actively(const F& ready) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::microseconds kLong{3000};  // waking up takes twenty to forty
  constexpr int kRound = 64;
  const auto round = [&] {
    for (int i = 0; i < kRound; ++i) {
      if (ready()) return true;
      pause();
    }
    return false;
  };
  if (round()) return true;
  if (members.load(std::memory_order_relaxed) > processors.load(std::memory_order_relaxed)) {
    return false;  // the awaited thread may need this processor
  }
  const Clock::time_point end = Clock::now() + kLong;
  do {
    if (round()) return true;
  } while (Clock::now() < end);
  return false;
}

/// Lets one thread sleep until another one wakes it. Values that ready() reads, and those written
/// before wake(), are sequentially consistent: either the waiting thread sees them or wake() sees
/// that the thread sleeps.
class Waiter {
 public:
  template <class F>
  void wait(const F& ready) {
    if (wait_actively(ready)) return;
    std::unique_lock lock(mutex_);
    sleeps_.store(true);
    woken_.wait(lock, ready);
    sleeps_.store(false);
  }
  void wake() {
    if (!sleeps_.load()) return;
    {
      const std::scoped_lock lock(mutex_);
    }
    woken_.notify_one();
  }

 private:
  std::atomic<bool> sleeps_{false};
  std::mutex mutex_;
  std::condition_variable woken_;
};

struct alignas(kLine) Member {
  std::atomic<std::uint64_t> done{0};  ///< number of the last work that the thread took part in
  Waiter waiter;
  std::thread thread;  ///< not joinable: the caller's
};

[[noreturn]] void throw_no_threads(std::int64_t threads) {
  throw DeviceError({.what = fmt::format("the system does not give {} threads", threads),
                     .hint = "Ask for fewer by threads=, or raise the limit of processes."});
}

thread_local bool is_in_part = false;
thread_local int most_threads = 1;

}  // namespace

class ThreadPool {
 public:
  ThreadPool() : caller_(*members_.emplace_back(std::make_unique<Member>())) {
    ++members;
    processors = base::num_processors();
  }
  ~ThreadPool() {
    if (forks_ != forks) {  // the threads are the parent process's
      for (auto& member : members_) [[maybe_unused]]
        const Member* kept = member.release();
      return;
    }
    work_ = {};
    give_out(size());
    for (auto& member : members_) {
      if (member->thread.joinable()) member->thread.join();
    }
    members -= static_cast<int>(size());
  }
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  bool is_from_before_fork() const { return forks_ != forks; }

  // Members read members_ only while they take part in work, when it does not change.
  void grow(std::int64_t threads) {
    if (threads <= size()) return;
    if (threads > kMostThreads) throw_no_threads(threads);
    processors = base::num_processors();
    members_.reserve(static_cast<std::size_t>(threads));
    while (size() < threads) {
      auto added = std::make_unique<Member>();
      try {
        added->thread = std::thread(
            [this, own = added.get(), i = size(), number = number_] { serve(*own, i, number); });
      } catch (const std::system_error&) {
        throw_no_threads(threads);
      }
      members_.push_back(std::move(added));
      ++members;
    }
  }

  void run(std::int64_t threads, ChunkFn part, const void* context) {
    grow(threads);
    most_threads = std::max(most_threads, static_cast<int>(threads));
    work_ = {.part = part, .context = context};
    give_out(threads);
    run_part(work_, {.thread = 0, .threads = threads, .pool = this});
    const std::uint64_t number = number_;
    for (std::int64_t i = 1; i < threads; ++i) {
      const std::atomic<std::uint64_t>& done = member(i).done;
      caller_.waiter.wait([&] { return done.load() == number; });
    }
  }

  void wait(const Chunk& chunk) {
    const std::uint64_t phase = phase_.load();
    if (arrived_.fetch_add(1) + 1 < chunk.threads) {
      member(chunk.thread).waiter.wait([&] { return phase_.load() != phase; });
      return;
    }
    arrived_.store(0);
    phase_.store(phase + 1);
    for (std::int64_t i = 0; i < chunk.threads; ++i) member(i).waiter.wake();
  }

 private:
  struct Work {
    ChunkFn part = nullptr;  ///< nullptr: threads end
    const void* context = nullptr;
  };
  struct Ticket {
    std::uint64_t number = 0;
    std::int64_t threads = 0;
    static Ticket of(std::uint64_t bits) {
      return {.number = bits / (kMostThreads * 2),
              .threads = static_cast<std::int64_t>(bits % (kMostThreads * 2))};
    }
    std::uint64_t bits() const {
      return number * kMostThreads * 2 + static_cast<std::uint64_t>(threads);
    }
  };

  std::int64_t size() const { return static_cast<std::int64_t>(members_.size()); }
  Member& member(std::int64_t i) { return *members_[static_cast<std::size_t>(i)]; }

  static void run_part(const Work& work, const Chunk& chunk) noexcept {
    is_in_part = true;
    work.part(work.context, chunk);
    is_in_part = false;
  }

  void give_out(std::int64_t threads) {
    ++number_;
    ticket_.store(Ticket{.number = number_, .threads = threads}.bits());
    for (std::int64_t i = 1; i < threads; ++i) member(i).waiter.wake();
  }

  void serve(Member& own, std::int64_t i, std::uint64_t number) {
    while (true) {
      Ticket ticket;
      own.waiter.wait([&] {
        ticket = Ticket::of(ticket_.load());
        return ticket.number != number && i < ticket.threads;
      });
      number = ticket.number;
      const Work work = work_;
      if (work.part == nullptr) return;
      run_part(work, {.thread = i, .threads = ticket.threads, .pool = this});
      own.done.store(number);
      caller_.waiter.wake();
    }
  }

  // Written by the caller, read by all.
  alignas(kLine) std::atomic<std::uint64_t> ticket_{0};
  Work work_;
  std::uint64_t number_ = 0;
  std::vector<std::unique_ptr<Member>> members_;  ///< the caller first
  Member& caller_;
  int forks_ = forks;
  // The barrier of wait(): threads that have arrived, and how often all have.
  alignas(kLine) std::atomic<std::int64_t> arrived_{0};
  alignas(kLine) std::atomic<std::uint64_t> phase_{0};
};

namespace {

struct OwnPool {
  std::unique_ptr<ThreadPool> pool;

  ThreadPool& get() {
    if (pool && pool->is_from_before_fork()) pool.reset();
    if (!pool) {
      static const int watches_forks = pthread_atfork(nullptr, nullptr, [] {
        ++forks;
        members = 0;
      });
      static_cast<void>(watches_forks);
      pool = std::make_unique<ThreadPool>();
    }
    return *pool;
  }
};

thread_local OwnPool own_pool;

}  // namespace

void Chunk::wait() const {
  if (threads > 1) pool->wait(*this);
}

void run_on_pool(std::int64_t threads, ChunkFn part, const void* context) {
  if (is_in_part) return part(context, Chunk{});
  own_pool.get().run(threads, part, context);
}

void start_threads(std::int64_t threads) {
  if (threads > 1 && !is_in_part) own_pool.get().grow(threads);
}

int threads_of_kernel(const Device& device, double cost_ns, int most) {
  return device.uses_host_threads() ? useful_threads(cost_ns, kKernelShareNs, most) : 1;
}

int threads_of_plan(const Device& device, double cost_ns, int most) {
  return device.uses_host_threads() ? useful_threads(cost_ns, kPlanShareNs, most) : 1;
}

int take_threads_used() { return std::exchange(most_threads, 1); }

}  // namespace onnxgrad::device
