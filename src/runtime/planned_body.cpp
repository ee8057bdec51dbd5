#include "runtime/planned_body.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "base/check.h"
#include "base/interrupt.h"
#include "runtime/arena.h"
#include "runtime/joint_calls.h"

namespace onnxgrad::runtime {
namespace {

constexpr std::int64_t kAlignment = 64;
constexpr std::byte kTrue{1};

}  // namespace

PlannedBody::PlannedBody(Plan plan, std::vector<opdef::TensorDesc> states)
    : plan_(std::move(plan)) {
  for (const opdef::TensorDesc& desc : states) {
    states_.push_back({.bytes = desc.dims.size_bytes(desc.dtype)});
  }
  ONNXGRAD_ASSERT(plan_.outputs.size() >= states.size());
  const std::size_t num_results = plan_.outputs.size() - states.size();
  for (std::size_t i = 0; i < num_results; ++i) outputs_.push_back(plan_.outputs[i].desc);
  results_.resize(num_results);
  feeds_.resize(plan_.feed_bytes.size());
  sort_copies();
  sort_arguments();
  lay_out();
}

bool PlannedBody::is_in_own_block(std::size_t output) const {
  const Location& at = plan_.outputs[output].location;
  return at.kind == Location::Kind::kBlock && at.block == output;
}

void PlannedBody::sort_copies() {
  const std::size_t num_results = results_.size();
  for (const Copy& copy : plan_.copies) {
    if (copy.to.kind != Location::Kind::kState) {
      preserved_.push_back(copy);
      continue;
    }
    State& state = states_.at(static_cast<std::size_t>(copy.to.at));
    const auto own_block = num_results + static_cast<std::size_t>(copy.to.at);
    if (copy.from.kind == Location::Kind::kBlock && copy.from.block == own_block) {
      state.swaps = true;
    } else {
      commits_.push_back(copy);
    }
  }
  for (std::size_t i = 0; i < num_results; ++i) {
    if (is_in_own_block(i)) continue;
    const auto& [location, desc] = plan_.outputs[i];
    result_copies_.push_back({.from = location,
                              .to = {.at = static_cast<std::int64_t>(i)},
                              .bytes = desc.dims.size_bytes(desc.dtype)});
  }
}

void PlannedBody::sort_arguments() {
  for (const PlanStep& step : plan_.steps) {
    calls_.push_back(
        {.fn = step.kernel.fn, .data = step.kernel.data.get(), .first_arg = num_args_});
    flops_ += step.kernel.flops;
    for (const Location& at : step.args) {
      const std::size_t arg = num_args_++;
      const auto place = static_cast<std::size_t>(at.at);
      switch (at.kind) {
        case Location::Kind::kArena:
          fixed_.push_back({.arg = arg, .offset = at.at});
          break;
        case Location::Kind::kConstant:
          // Kernels only read their inputs.
          fixed_.push_back(
              {.arg = arg, .constant = const_cast<std::byte*>(plan_.constants[place].raw())});
          break;
        case Location::Kind::kState:
          states_[place].reads.push_back(arg);
          break;
        case Location::Kind::kFeed:
          feeds_[place].push_back(arg);
          break;
        case Location::Kind::kBlock:
          ONNXGRAD_ASSERT(at.at == 0);  // an output has its block for itself
          if (at.block < results_.size()) {
            results_[at.block].push_back(arg);
          } else {
            states_[at.block - results_.size()].writes.push_back(arg);
          }
          break;
        case Location::Kind::kNone:
          break;
      }
    }
  }
}

void PlannedBody::lay_out() {
  ArenaLayout layout(kAlignment);
  if (plan_.arena_bytes > 0) layout.allocate(plan_.arena_bytes);
  const auto table = [&](std::size_t count, std::size_t size) {
    return layout.allocate(static_cast<std::int64_t>(count * size));
  };
  args_offset_ = table(num_args_, sizeof(std::byte*));
  followers_offset_ = table(calls_.size(), sizeof(opdef::Follower));
  feeds_offset_ = table(feeds_.size(), sizeof(opdef::Slice));
  results_offset_ = table(results_.size(), sizeof(opdef::Slice));
  states_offset_ = table(states_.size(), 4 * sizeof(std::byte*));
  for (State& state : states_) {
    state.areas[0] = layout.allocate(state.bytes);
    if (state.swaps) state.areas[1] = layout.allocate(state.bytes);
  }
  workspace_bytes_ = layout.size_bytes();
}

// One run of a body, with the data that it writes into its workspace.
class PlannedBody::Runner {
 public:
  Runner(const PlannedBody& body, const opdef::BodyRun& run)
      : body_(body),
        run_(run),
        args_(at<std::byte*>(body.args_offset_)),
        followers_(at<opdef::Follower>(body.followers_offset_)),
        feeds_(at<opdef::Slice>(body.feeds_offset_)),
        results_(at<opdef::Slice>(body.results_offset_)),
        states_(at<Buffers>(body.states_offset_)) {}

  std::int64_t loop(const opdef::Launch& launch) {
    start();
    std::int64_t capacity = run_.capacity;
    std::int64_t i = 0;
    for (; i < run_.count; ++i) {
      if (run_.stops && *states_[0].now == std::byte{0}) break;
      if (i == capacity) {
        ONNXGRAD_ASSERT(run_.grow != nullptr);
        capacity = (*run_.grow)(i);
        place_results(i);
      } else if (i > 0) {
        advance();
      }
      if (i % opdef::kMostWithoutPoll == opdef::kMostWithoutPoll - 1)
        base::poll_interrupt();  // a Loop may have no end
      if (run_.counter != nullptr) *run_.counter = i;
      iterate(launch, i);
    }
    finish();
    return i;
  }

 private:
  // The value, where the next one goes if it swaps, and the two buffers that take turns.
  struct Buffers {
    std::byte* now;
    std::byte* next;
    std::byte* first;
    std::byte* second;
  };

  template <class T>
  T* at(std::int64_t offset) const {
    return reinterpret_cast<T*>(run_.workspace + offset);
  }

  void set(const Args& places, std::byte* address) {
    for (const std::size_t place : places) args_[place] = address;
  }

  void start() {
    std::fill_n(args_, body_.num_args_, nullptr);
    for (const FixedArg& fixed : body_.fixed_) {
      args_[fixed.arg] = fixed.constant != nullptr ? fixed.constant : run_.workspace + fixed.offset;
    }
    link_followers(
        body_.plan_.steps, [this](std::size_t i) { return args_ + body_.calls_[i].first_arg; },
        followers_);
    for (std::size_t f = 0; f < body_.feeds_.size(); ++f) {
      feeds_[f] = run_.inputs[f];
      set(body_.feeds_[f], feeds_[f].at);
    }
    place_results(0);
    for (std::size_t s = 0; s < body_.states_.size(); ++s) start_state(s);
  }

  void place_results(std::int64_t iteration) {
    for (std::size_t r = 0; r < body_.results_.size(); ++r) {
      results_[r] = run_.outputs[r];
      results_[r].at += iteration * results_[r].stride;
      set(body_.results_[r], results_[r].at);
    }
    if (iteration == 0) return;
    for (std::size_t f = 0; f < body_.feeds_.size(); ++f) move(body_.feeds_[f], feeds_[f]);
  }

  void start_state(std::size_t s) {
    const State& state = body_.states_[s];
    opdef::BodyState given = run_.states[s];
    if (given.initial == nullptr) given.initial = &kTrue;
    Buffers& buffers = states_[s];
    buffers.first = given.last != nullptr ? given.last : run_.workspace + state.areas[0];
    if (state.swaps) {
      buffers.second = run_.workspace + state.areas[1];
      buffers.now = const_cast<std::byte*>(given.initial);  // only read
      // The last value shall lie where it is wanted.
      const bool is_odd = run_.count % 2 == 1;
      buffers.next = is_odd && given.initial != buffers.first ? buffers.first : buffers.second;
      set(state.writes, buffers.next);
    } else {
      copy(buffers.first, given.initial, state.bytes);
      buffers.now = buffers.first;
    }
    set(state.reads, buffers.now);
  }

  static void copy(std::byte* to, const std::byte* from, std::int64_t bytes) {
    if (to != from && bytes > 0) std::memcpy(to, from, static_cast<std::size_t>(bytes));
  }

  void move(const Args& places, opdef::Slice& slice) {
    if (slice.stride == 0) return;
    slice.at += slice.stride;
    set(places, slice.at);
  }

  void advance() {
    for (std::size_t f = 0; f < body_.feeds_.size(); ++f) move(body_.feeds_[f], feeds_[f]);
    for (std::size_t r = 0; r < body_.results_.size(); ++r) move(body_.results_[r], results_[r]);
  }

  std::byte* resolve(const Location& location) const {
    const auto place = static_cast<std::size_t>(location.at);
    switch (location.kind) {
      case Location::Kind::kArena:
        return run_.workspace + location.at;
      case Location::Kind::kState:
        return states_[place].now;
      case Location::Kind::kConstant:
        return const_cast<std::byte*>(body_.plan_.constants[place].raw());  // only read
      case Location::Kind::kFeed:
        return feeds_[place].at;
      case Location::Kind::kBlock:
        return location.block < body_.results_.size()
                   ? results_[location.block].at
                   : states_[location.block - body_.results_.size()].next;
      case Location::Kind::kNone:
        break;
    }
    return nullptr;
  }

  void iterate(const opdef::Launch& launch, std::int64_t iteration) {
    const opdef::StepCells cells = opdef::cells_of_iteration(*launch.cells, iteration);
    opdef::Launch own{.stream = launch.stream, .cells = &cells};
    for (std::size_t i = 0; i < body_.calls_.size();) {
      const Call& call = body_.calls_[i];
      const std::size_t num_followers = body_.plan_.steps[i].followers;
      own.follower = num_followers > 0 ? followers_ + i + 1 : nullptr;
      call.fn(call.data, args_ + call.first_arg, own);
      i += 1 + num_followers;
    }
    for (const Copy& c : body_.preserved_) copy(resolve(c.to), resolve(c.from), c.bytes);
    for (const Copy& c : body_.result_copies_) {
      copy(results_[static_cast<std::size_t>(c.to.at)].at, resolve(c.from), c.bytes);
    }
    for (const Copy& c : body_.commits_) copy(resolve(c.to), resolve(c.from), c.bytes);
    for (std::size_t s = 0; s < body_.states_.size(); ++s) {
      const State& state = body_.states_[s];
      if (!state.swaps) continue;
      Buffers& buffers = states_[s];
      buffers.now = buffers.next;
      buffers.next = buffers.now == buffers.first ? buffers.second : buffers.first;
      set(state.reads, buffers.now);
      set(state.writes, buffers.next);
    }
  }

  void finish() {
    for (std::size_t s = 0; s < body_.states_.size(); ++s) {
      std::byte* last = run_.states[s].last;
      if (last != nullptr) copy(last, states_[s].now, body_.states_[s].bytes);
    }
  }

  const PlannedBody& body_;
  const opdef::BodyRun& run_;
  std::byte** args_;
  opdef::Follower* followers_;  // by step
  opdef::Slice* feeds_;
  opdef::Slice* results_;
  Buffers* states_;
};

std::int64_t PlannedBody::run(const opdef::BodyRun& run, const opdef::Launch& launch) const {
  return Runner(*this, run).loop(launch);
}

}  // namespace onnxgrad::runtime
