#include "device/testing/simulated_schedule.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace onnxgrad::device::testing {

void SimulatedSchedule::set_seed(std::uint64_t seed) {
  const std::scoped_lock lock(mutex_);
  random_.seed(seed);
  order_of_rows_ = random_();
}

TaskRef SimulatedSchedule::add(TaskOwner& owner, int row, std::span<const TaskRef> after,
                               std::function<void()> work) {
  auto task = std::make_shared<Task>();
  task->work = std::move(work);
  task->owner = &owner;
  task->row = row;
  task->thread = std::this_thread::get_id();
  const std::scoped_lock lock(mutex_);
  if (owner.number == 0) owner.number = ++num_owners_;
  for (const TaskRef& other : after) {
    if (!task->error) task->error = other->error;
    if (other->is_done) continue;
    task->after.push_back(other);
    other->next.push_back(task);
  }
  task->num_missing = task->after.size();
  owner.tasks.push_back(task);
  if (task->num_missing == 0) begin(task);
  return task;
}

std::size_t SimulatedSchedule::num_pending(const TaskOwner& owner) {
  const std::scoped_lock lock(mutex_);
  return owner.tasks.size();
}

bool SimulatedSchedule::is_done(const Task& task) {
  const std::scoped_lock lock(mutex_);
  return task.is_done;
}

void SimulatedSchedule::want(const TaskRef& task, std::uint64_t wait) {
  std::vector<Task*> found{task.get()};
  while (!found.empty()) {
    Task* const last = found.back();
    found.pop_back();
    if (last->wanted_by == wait) continue;
    last->wanted_by = wait;
    for (const TaskRef& other : last->after) found.push_back(other.get());
  }
}

std::uint64_t SimulatedSchedule::preference(const Task& task) const {
  std::uint64_t mixed =
      order_of_rows_ ^ (task.owner->number * 16 + static_cast<unsigned>(task.row));
  mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9U;  // the mixer of SplitMix64
  mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EBU;
  return mixed ^ (mixed >> 31);
}

// nullptr: other threads do what is wanted.
TaskRef SimulatedSchedule::choose(std::uint64_t wait, bool takes_others) {
  constexpr unsigned kTasksInARow = 8;
  if (random_() % kTasksInARow == 0) order_of_rows_ = random_();
  const auto can_take = [&, self = std::this_thread::get_id()](const Task& task) {
    return task.wanted_by == wait || (takes_others && task.thread == self);
  };
  auto best = ready_.end();
  std::uint64_t least = std::numeric_limits<std::uint64_t>::max();
  for (auto task = ready_.begin(); task != ready_.end(); ++task) {
    if (!can_take(**task) || (best != ready_.end() && preference(**task) >= least)) continue;
    best = task;
    least = preference(**task);
  }
  if (best == ready_.end()) return nullptr;
  TaskRef chosen = std::move(*best);
  ready_.erase(best);
  return chosen;
}

std::exception_ptr SimulatedSchedule::wait(std::span<const TaskRef> tasks) {
  constexpr unsigned kWaitsOfOneThatTakesOthers = 4;
  Lock lock(mutex_);
  const std::uint64_t number = ++num_waits_;
  for (const TaskRef& task : tasks) want(task, number);
  const bool takes_others = random_() % kWaitsOfOneThatTakesOthers == 0;
  while (!std::ranges::all_of(tasks, &Task::is_done)) {
    if (const TaskRef task = choose(number, takes_others)) {
      run(lock, task);
    } else {
      changed_.wait(lock);
    }
  }
  for (const TaskRef& task : tasks) {
    if (task->error) return task->error;
  }
  return nullptr;
}

void SimulatedSchedule::run(Lock& lock, const TaskRef& task) {
  task->is_running = true;
  std::exception_ptr error;
  lock.unlock();
  try {
    task->work();
  } catch (...) {
    error = std::current_exception();
  }
  lock.lock();
  task->is_running = false;
  task->error = std::move(error);
  finish(task);
  changed_.notify_all();
}

// All that it comes after is done.
void SimulatedSchedule::begin(const TaskRef& task) {
  if (task->error) {
    finish(task);
  } else {
    ready_.push_back(task);
  }
}

// And drops what can only begin after it, if it has an error.
void SimulatedSchedule::finish(const TaskRef& task) {
  std::vector<TaskRef> finished{task};
  while (!finished.empty()) {
    const TaskRef last = std::move(finished.back());
    finished.pop_back();
    last->is_done = true;
    last->work = nullptr;
    last->after.clear();
    for (const TaskRef& other : std::exchange(last->next, {})) {
      if (!other->error) other->error = last->error;
      if (--other->num_missing > 0 || other->is_done) continue;
      (other->error ? finished : ready_).push_back(other);
    }
    std::deque<TaskRef>& tasks = last->owner->tasks;
    while (!tasks.empty() && tasks.front()->is_done) tasks.pop_front();
  }
}

void SimulatedSchedule::drop_tasks(TaskOwner& owner) {
  std::vector<TaskRef> dropped;
  for (const TaskRef& task : owner.tasks) {
    if (!task->is_done && !task->is_running) dropped.push_back(task);
  }
  for (const TaskRef& task : dropped) task->is_done = true;
  for (const TaskRef& task : dropped) finish(task);
  std::erase_if(ready_, [](const TaskRef& task) { return task->is_done; });
}

void SimulatedSchedule::drop(TaskOwner& owner) {
  Lock lock(mutex_);
  drop_tasks(owner);
  changed_.wait(lock, [&] { return owner.tasks.empty(); });  // another thread's
}

}  // namespace onnxgrad::device::testing
