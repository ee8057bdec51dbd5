#ifndef ONNXGRAD_DEVICE_TESTING_SIMULATED_SCHEDULE_H_
#define ONNXGRAD_DEVICE_TESTING_SIMULATED_SCHEDULE_H_

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <span>
#include <thread>
#include <vector>

// The order in which the simulated device does its work: any that it was not told not to take.
//
// Tasks are done when a thread of the host waits, by that thread. Among those that can begin, a
// generator chooses: mostly from the row (a compute stream, or a stream of copies) that it prefers
// for now, so that one gets far ahead of another. The same calls by one thread, with the same seed,
// give the same order. Mostly, only what the host waits for is done; sometimes all of its tasks.
// When a task throws, those that begin after it are dropped with its error, on other streams too.

namespace onnxgrad::device::testing {

struct TaskOwner;

struct Task {
  std::function<void()> work = {};
  TaskOwner* owner = nullptr;
  int row = 0;
  std::thread::id thread = {};  ///< that submitted it
  std::vector<std::shared_ptr<Task>> after = {};
  std::vector<std::shared_ptr<Task>> next = {};
  std::size_t num_missing = 0;  ///< tasks of `after` that are not done
  std::uint64_t wanted_by = 0;  ///< number of the last wait for it
  bool is_running = false;
  bool is_done = false;                ///< or dropped
  std::exception_ptr error = nullptr;  ///< that it threw, or for which it has been dropped
};
using TaskRef = std::shared_ptr<Task>;

/// The tasks that a stream has submitted; only the schedule uses what is in it.
struct TaskOwner {
  std::uint64_t number = 0;
  std::deque<TaskRef> tasks = {};  ///< in order, from the first on that is not done
};

/// Thread-safe.
class SimulatedSchedule {
 public:
  explicit SimulatedSchedule(std::uint64_t seed) : random_(seed) {}

  void set_seed(std::uint64_t seed);
  /// Adds a task that begins after others. The owner outlives it.
  TaskRef add(TaskOwner& owner, int row, std::span<const TaskRef> after,
              std::function<void()> work);
  std::size_t num_pending(const TaskOwner& owner);
  bool is_done(const Task& task);
  /// Does work until all of these are done. Returns the error of the first that has one.
  std::exception_ptr wait(std::span<const TaskRef> tasks);
  /// Drops the tasks that are not done.
  void drop(TaskOwner& owner);

 private:
  using Lock = std::unique_lock<std::mutex>;
  static void want(const TaskRef& task, std::uint64_t wait);
  TaskRef choose(std::uint64_t wait, bool takes_others);
  std::uint64_t preference(const Task& task) const;
  void run(Lock& lock, const TaskRef& task);
  void begin(const TaskRef& task);
  void finish(const TaskRef& task);
  void drop_tasks(TaskOwner& owner);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::mt19937_64 random_;
  std::uint64_t order_of_rows_ = 0;
  std::uint64_t num_owners_ = 0;
  std::uint64_t num_waits_ = 0;
  std::vector<TaskRef> ready_;  // can begin, in the order in which they could
};

}  // namespace onnxgrad::device::testing

#endif  // ONNXGRAD_DEVICE_TESTING_SIMULATED_SCHEDULE_H_
