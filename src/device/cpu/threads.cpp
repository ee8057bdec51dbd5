#include "device/cpu/threads.h"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
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
#include "device/cpu/thread_limit.h"
#include "onnxgrad/error.h"

// A ticket announces work: its number, its threads and its chunks. Thread i owns the chunks
// [chunks * i / threads, chunks * (i + 1) / threads), whose unclaimed rest is one word of its
// Member: the number of the work and the two ends. The owner claims chunks from the front, others
// from the back. A word with the number of earlier work stands for all chunks, so nobody has to
// reset the words; one with the number of later work stands for none, so a thread that comes too
// late finds nothing. The work itself is read after a claim only: until the claimed chunk is done,
// no other work replaces it.

namespace onnxgrad::device {
namespace {

constexpr std::size_t kLine = 128;  // processors fetch lines of 64 bytes in pairs
constexpr std::int64_t kMostThreads = kMostChunks;

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

using Clock = ThreadLimit::Clock;

// How long threads wait actively for their next work; waking up takes twenty to forty microseconds.
constexpr Clock::duration kLongWait = std::chrono::milliseconds(3);
// How long they do while other processes want the processors.
constexpr Clock::duration kShortWait = std::chrono::microseconds(50);

// Least time to wait actively for the end of others' chunks.
constexpr Clock::duration kLeastWait = std::chrono::microseconds(20);
// A thread that keeps the others waiting for twice as long as they worked, and for this time, has
// lost its processor.
constexpr Clock::duration kLeastLost = std::chrono::microseconds(300);

constexpr int kRound = 64;

template <class F>
bool wait_one_round(const F& ready) {
  for (int i = 0; i < kRound; ++i) {
    if (ready()) return true;
    pause();
  }
  return false;
}

/// Waits until ready() is true, and returns true; returns false after `longest`.
template <class F>
bool wait_actively(const F& ready, Clock::duration longest) {
  if (members.load(std::memory_order_relaxed) > processors.load(std::memory_order_relaxed)) {
    return false;  // the awaited thread may need this processor
  }
  const Clock::time_point end = Clock::now() + longest;
  do {
    if (wait_one_round(ready)) return true;
  } while (Clock::now() < end);
  return false;
}

/// Lets one thread sleep until another one wakes it. Values that ready() reads, and those written
/// before wake(), are sequentially consistent: either the waiting thread sees them or wake() sees
/// that the thread sleeps.
class Waiter {
 public:
  template <class F>
  void wait(const F& ready, Clock::duration active) {
    if (wait_one_round(ready) || wait_actively(ready, active)) return;
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

/// Number of some work with two numbers of chunks, in one word.
struct Tagged {
  std::uint64_t number = 0;
  std::int64_t first = 0, second = 0;

  static constexpr int kBits = 13;  // of kMostChunks
  static constexpr std::uint64_t kMask = (1U << kBits) - 1;
  static_assert(kMostChunks <= static_cast<std::int64_t>(kMask));

  static Tagged of(std::uint64_t bits) {
    return {.number = bits >> (2 * kBits),
            .first = static_cast<std::int64_t>((bits >> kBits) & kMask),
            .second = static_cast<std::int64_t>(bits & kMask)};
  }
  std::uint64_t bits() const {
    return number << (2 * kBits) | static_cast<std::uint64_t>(first) << kBits |
           static_cast<std::uint64_t>(second);
  }
};
constexpr std::uint64_t kNumbers = std::uint64_t{1} << (64 - 2 * Tagged::kBits);

struct alignas(kLine) Member {
  /// First and end of the unclaimed chunks that the thread owns.
  std::atomic<std::uint64_t> unclaimed{0};
  /// Number of chunks that the thread has done, its own and others'.
  alignas(kLine) std::atomic<std::uint64_t> done{0};
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
  ThreadPool() : caller_((make_room(1), add(std::make_unique<Member>()))) {
    processors = base::num_processors();
  }
  ~ThreadPool() {
    if (forks_ != forks) {  // the threads are the parent process's
      for (auto& member : members_) [[maybe_unused]]
        const Member* kept = member.release();
      return;
    }
    ends_.store(true);
    for (std::int64_t i = 1; i < size(); ++i) member(i).waiter.wake();
    for (auto& member : members_) {
      if (member->thread.joinable()) member->thread.join();
    }
    members -= static_cast<int>(size());
  }
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  bool is_from_before_fork() const { return forks_ != forks; }

  void grow(std::int64_t threads) {
    if (threads <= size()) return;
    if (threads > kMostThreads) throw_no_threads(threads);
    processors = base::num_processors();
    make_room(threads);
    while (size() < threads) {
      auto added = std::make_unique<Member>();
      added->unclaimed = Tagged{.number = number_}.bits();
      try {
        added->thread = std::thread(
            [this, own = added.get(), i = size(), number = number_] { serve(*own, i, number); });
      } catch (const std::system_error&) {
        throw_no_threads(threads);
      }
      add(std::move(added));
    }
  }

  void run(std::int64_t threads, std::int64_t chunks, ChunkFn part, const void* context) {
    grow(threads);
    most_threads = std::max(most_threads, static_cast<int>(threads));
    const Clock::time_point begin = Clock::now();
    threads = limit_.of(threads, begin);
    is_shared_.store(limit_.is_limited(), std::memory_order_relaxed);
    if (threads == 1) return run_alone(chunks, part, context);
    work_ = {.part = part, .context = context};
    number_ = next_number();
    const Tagged ticket{.number = number_, .first = threads, .second = chunks};
    ticket_.store(ticket.bits());
    for (std::int64_t i = 1; i < threads; ++i) member(i).waiter.wake();
    const std::int64_t own = run_chunks(0, ticket);
    const auto is_done = [&] {
      std::int64_t done = own;
      for (std::int64_t i = 1; i < threads; ++i) {
        const Tagged of_member = Tagged::of(member(i).done.load());
        if (of_member.number == ticket.number) done += of_member.second;
      }
      return done == chunks;
    };
    if (wait_one_round(is_done)) return;
    wait_for_others(threads, begin, is_done);
  }

 private:
  struct Work {
    ChunkFn part = nullptr;
    const void* context = nullptr;
  };

  std::int64_t size() const { return static_cast<std::int64_t>(members_.size()); }
  Member& member(std::int64_t i) { return *table_.load(std::memory_order_acquire)[i]; }

  /// Makes a table for `size` threads. Those of before stay: a thread that comes too late for its
  /// work may still read one.
  void make_room(std::int64_t size) {
    if (size <= room_) return;
    room_ = std::max(size, 2 * room_);
    tables_.push_back(std::make_unique<Member*[]>(static_cast<std::size_t>(room_)));
    Member** const table = tables_.back().get();
    std::ranges::transform(members_, table, [](const auto& member) { return member.get(); });
    table_.store(table, std::memory_order_release);
  }

  Member& add(std::unique_ptr<Member> added) {
    tables_.back()[members_.size()] = added.get();
    members_.push_back(std::move(added));
    ++members;
    return *members_.back();
  }

  static void run_alone(std::int64_t chunks, ChunkFn part, const void* context) noexcept {
    is_in_part = true;
    for (std::int64_t i = 0; i < chunks; ++i) part(context, {.index = i, .count = chunks});
    is_in_part = false;
  }

  /// Waits for the chunks that other threads have begun. They should take no longer than the
  /// caller's own: after that time, it sleeps, and its processor is free for them.
  template <class F>
  void wait_for_others(std::int64_t threads, Clock::time_point begin, const F& is_done) {
    const Clock::time_point arrived = Clock::now();
    const Clock::duration work = arrived - begin;
    caller_.waiter.wait(is_done, std::clamp(work, kLeastWait, kLongWait));
    const Clock::time_point now = Clock::now();
    const Clock::duration waited = now - arrived;
    if (waited > 2 * work + kLeastLost) limit_.lose(threads, waited - work, now);
  }

  /// Returns the number of the next work. Words that have not been written for so long that their
  /// number could become that of new work are written now and then.
  std::uint64_t next_number() {
    constexpr std::uint64_t kOften = kNumbers / 8;
    const std::uint64_t next = (number_ + 1) % kNumbers;
    if (next % kOften == 0) {
      for (const auto& each : members_) {
        each->unclaimed.store(Tagged{.number = number_}.bits());
        each->done.store(Tagged{.number = number_}.bits());
      }
    }
    return next;
  }

  static bool is_earlier(std::uint64_t number, std::uint64_t than) {
    return (than - number) % kNumbers - 1 < kNumbers / 2;
  }

  /// Claims one of the chunks that thread `i` owns, and returns its index; -1: none is left.
  std::int64_t claim(std::int64_t i, const Tagged& ticket, bool is_own) {
    std::atomic<std::uint64_t>& word = member(i).unclaimed;
    std::uint64_t bits = word.load();
    while (true) {
      Tagged rest = Tagged::of(bits);
      if (rest.number != ticket.number) {
        if (!is_earlier(rest.number, ticket.number)) return -1;
        const Chunk owned{.index = i, .count = ticket.first};
        rest = {.number = ticket.number,
                .first = owned.first(ticket.second),
                .second = owned.last(ticket.second)};
      }
      if (rest.first >= rest.second) return -1;
      const std::int64_t chunk = is_own ? rest.first++ : --rest.second;
      if (word.compare_exchange_weak(bits, rest.bits())) return chunk;
    }
  }

  /// Runs the chunks of thread `i`, then those that other threads have not begun; returns how many
  /// it ran.
  std::int64_t run_chunks(std::int64_t i, const Tagged& ticket) noexcept {
    const std::int64_t threads = ticket.first;
    std::int64_t done = 0;
    is_in_part = true;
    for (std::int64_t victim = 0; victim < threads; ++victim) {
      while (true) {
        const std::int64_t chunk = claim((i + victim) % threads, ticket, victim == 0);
        if (chunk < 0) break;
        work_.part(work_.context, {.index = chunk, .count = ticket.second, .thread = i});
        ++done;
        if (i == 0) continue;
        member(i).done.store(Tagged{.number = ticket.number, .second = done}.bits());
        caller_.waiter.wake();
      }
    }
    is_in_part = false;
    return done;
  }

  void serve(Member& own, std::int64_t i, std::uint64_t number) {
    while (true) {
      Tagged ticket;
      own.waiter.wait(
          [&] {
            ticket = Tagged::of(ticket_.load());
            return ends_.load() || (ticket.number != number && i < ticket.first);
          },
          is_shared_.load(std::memory_order_relaxed) ? kShortWait : kLongWait);
      if (ends_.load()) return;
      number = ticket.number;
      run_chunks(i, ticket);
    }
  }

  // Written by the caller, read by all.
  alignas(kLine) std::atomic<std::uint64_t> ticket_{0};
  std::atomic<bool> ends_{false};
  std::atomic<bool> is_shared_{false};  ///< the machine, with other processes
  Work work_;
  std::uint64_t number_ = 0;
  std::vector<std::unique_ptr<Member>> members_;  ///< the caller first
  std::int64_t room_ = 0;                         ///< of the last table
  std::vector<std::unique_ptr<Member*[]>> tables_;
  std::atomic<Member**> table_{nullptr};  ///< members_ for all threads: the last table
  Member& caller_;
  int forks_ = forks;
  ThreadLimit limit_;
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

void run_on_pool(std::int64_t threads, std::int64_t chunks, ChunkFn part, const void* context) {
  if (is_in_part) return part(context, Chunk{});
  own_pool.get().run(std::min(threads, chunks), std::min(chunks, kMostChunks), part, context);
}

void start_threads(std::int64_t threads) {
  if (threads > 1 && !is_in_part) own_pool.get().grow(threads);
}

int take_threads_used() { return std::exchange(most_threads, 1); }

}  // namespace onnxgrad::device
