#include <fmt/format.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/interrupt.h"
#include "dist/communicator.h"
#include "onnxgrad/error.h"

namespace onnxgrad::dist {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Seconds for which a waiting rank polls before it leaves the core to others. It does not yield:
// beside busy processes, steps of ranks that yielded took longer.
constexpr double kLookFor = 100e-6;

}  // namespace

// By default Linux lets a thread sleep 50 microseconds longer than it asked for.
void Transport::idle(double seconds) {
#ifdef __linux__
  constexpr unsigned long kSlack = 1000;  // nanoseconds
  const int before = prctl(PR_GET_TIMERSLACK);
  prctl(PR_SET_TIMERSLACK, kSlack);
#endif
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
#ifdef __linux__
  if (before > 0) prctl(PR_SET_TIMERSLACK, static_cast<unsigned long>(before));
#endif
}

Collective::Collective(Communicator& workers, Schedule schedule, int fixed_tag)
    : workers_(workers),
      schedule_(std::move(schedule)),
      scratch_(static_cast<std::size_t>(schedule_.scratch_bytes)),
      fixed_tag_(fixed_tag) {
  std::size_t messages = 0;
  std::size_t sources = 0;
  for (const Phase& phase : schedule_.phases) {
    messages = std::max(messages, phase.sends.size() + phase.receives.size());
    for (const Sum& sum : phase.after) sources = std::max(sources, sum.sources.size());
  }
  pending_.reserve(messages);
  sources_.reserve(std::max<std::size_t>(sources, 1));
  workers_.active_.reserve(workers_.active_.size() + 1);
}

Collective::~Collective() { give_up(); }

std::byte* Collective::address(const Slice& slice) const {
  switch (slice.memory) {
    case Memory::kInput:  // read only: sends and sources
      return const_cast<std::byte*>(input_) + slice.offset;
    case Memory::kOutput:
      return output_ + slice.offset;
    case Memory::kScratch:
      break;
  }
  return const_cast<std::byte*>(scratch_.data()) + slice.offset;
}

void Collective::start(const void* input, void* output) {
  ONNXGRAD_ASSERT(!active_);
  if (workers_.broken_) {
    throw DeviceError(
        {.what = "the ranks are no longer in step, since an earlier collective failed",
         .hint = "End this process; train on from the last checkpoint."});
  }
  input_ = static_cast<const std::byte*>(input);
  output_ = static_cast<std::byte*>(output);
  if (fixed_tag_ >= 0) {
    tag_ = fixed_tag_;
  } else {
    sequence_ = workers_.next_sequence_++;
    tag_ = static_cast<int>(sequence_ % kCollectiveTags);
  }
  phase_ = 0;
  active_ = true;
  workers_.bytes_sent_ += schedule_.bytes_sent;
  workers_.active_.push_back(this);
  start_phase();
  advance();
}

void Collective::start_phase() {
  if (phase_ == schedule_.phases.size()) return;
  const Phase& phase = schedule_.phases[phase_];
  for (const Sum& sum : phase.before) add(sum);
  Transport& transport = *workers_.transport_;
  for (const Message& message : phase.receives) {
    pending_.push_back({nullptr, message.peer});
    const auto bytes = static_cast<std::size_t>(message.slice.bytes);
    try {
      pending_.back().request =
          transport.receive(message.peer, tag_, {address(message.slice), bytes});
    } catch (const DeviceError& error) {
      fail(pending_.back(), error);
    }
  }
  for (const Message& message : phase.sends) {
    pending_.push_back({nullptr, message.peer});
    const auto bytes = static_cast<std::size_t>(message.slice.bytes);
    try {
      pending_.back().request = transport.send(message.peer, tag_, {address(message.slice), bytes});
    } catch (const DeviceError& error) {
      fail(pending_.back(), error);
    }
  }
}

void Collective::add(const Sum& sum) {
  sources_.clear();
  for (const Slice& source : sum.sources) sources_.push_back(address(source));
  add_in_order(sum, sources_, address(sum.target));
}

bool Collective::advance() {
  while (active_) {
    for (std::size_t i = pending_.size(); i > 0; --i) {
      Pending& pending = pending_[i - 1];
      try {
        if (!workers_.transport_->test(pending.request)) continue;
      } catch (const DeviceError& error) {
        fail(pending, error);
      }
      ++num_events_;
      pending = pending_.back();
      pending_.pop_back();
    }
    if (!pending_.empty()) return false;
    if (phase_ < schedule_.phases.size()) {
      for (const Sum& sum : schedule_.phases[phase_].after) add(sum);
      ++phase_;
    }
    if (phase_ == schedule_.phases.size()) {
      active_ = false;
      std::erase(workers_.active_, this);
    } else {
      start_phase();
    }
  }
  return true;
}

bool Collective::test() {
  if (!active_) return true;
  workers_.progress();
  return !active_;
}

void Collective::wait() {
  if (test()) return;
  constexpr double kPolite = 0.5;  // seconds before it answers roll calls
  const Clock::time_point begin = Clock::now();
  Clock::time_point last_event = begin;
  Clock::time_point next_answer = begin + std::chrono::milliseconds(500);
  std::int64_t events = num_events_;
  // Ranks that share a processor leave it at once.
  const double look_for = workers_.local_processors() < 1 ? 0 : kLookFor;
  try {
    while (!test()) {
      base::poll_interrupt();
      if (events != num_events_) {
        events = num_events_;
        last_event = Clock::now();
      }
      const double waited = seconds_since(last_event);
      if (waited > look_for) workers_.transport_->idle(std::clamp(waited / 32, 10e-6, 1e-3));
      if (waited > workers_.options_.timeout_s) workers_.report_missing(*this);
      if (waited > kPolite && Clock::now() > next_answer) {
        workers_.answer_roll_call(*this);
        next_answer = Clock::now() + std::chrono::milliseconds(50);
      }
    }
  } catch (...) {
    give_up();
    throw;
  }
  const double seconds = seconds_since(begin);
  seconds_waited_ += seconds;
  workers_.seconds_waited_ += seconds;
}

void Collective::run(const void* input, void* output) {
  start(input, output);
  wait();
}

void Collective::give_up() noexcept {
  if (!active_) return;
  workers_.broken_ = true;
  for (Pending& pending : pending_) workers_.transport_->cancel(pending.request);
  pending_.clear();
  active_ = false;
  std::erase(workers_.active_, this);
}

void Collective::fail(const Pending& pending, const DeviceError& error) {
  Problem problem = error.problem();
  problem.what =
      fmt::format("{} with {}: {}", schedule_.name, workers_.rank_name(pending.peer), problem.what);
  give_up();
  throw DeviceError(std::move(problem));
}

}  // namespace onnxgrad::dist
