#include "runtime/submitted_body.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "base/check.h"
#include "base/interrupt.h"
#include "runtime/arena.h"
#include "runtime/device_run.h"

namespace onnxgrad::runtime {

namespace {

BodyTarget& target_of(const opdef::Launch& launch) {
  ONNXGRAD_ASSERT(launch.stream != nullptr);
  return *static_cast<BodyTarget*>(launch.stream);
}

}  // namespace

// The plan with its memory on a device: constants, and the places of one run.
class SubmittedBody::Runner {
 public:
  Runner(const SubmittedBody& body, const BodyTarget& target)
      : body_(body),
        device_(target.device),
        stream_(target.stream),
        cells_(target.device, target.stream),
        plan_run_(body.plan_, target.device, target.stream, cells_,
                  [this](const Location& at) { return resolve(at); }),
        feeds_(body.plan_.feed_bytes.size()),
        results_(body.outputs_.size()),
        states_(body.states_.size()) {
    const Plan& plan = body.plan_;
    std::size_t num_args = 2 * plan.copies.size();
    for (const PlanStep& step : plan.steps) num_args += step.args.size();
    args_.resize(num_args, nullptr);
    std::size_t next = 0;
    for (const PlanStep& step : plan.steps) {
      calls_.push_back({.fn = step.kernel.fn,
                        .data = step.kernel.data.get(),
                        .args = args_.data() + next,
                        .num_args = step.args.size()});
      next += step.args.size();
    }
    for (std::size_t i = 0; i < plan.copies.size(); ++i, next += 2) {
      calls_.push_back(plan_run_.copy_call(i, args_.data() + next));
    }
  }

  std::int64_t run(const opdef::BodyRun& run, const opdef::StepCells& cells) {
    workspace_ = device::address_of(run.workspace);
    for (std::size_t s = 0; s < states_.size(); ++s) start_state(s, run.states[s]);
    std::int64_t i = 0;
    for (; i < run.count; ++i) {
      if (run.stops && !holds(run.states[0], i)) break;
      if (i % opdef::kMostWithoutPoll == opdef::kMostWithoutPoll - 1) {
        base::poll_interrupt();  // a Loop may have no end
      }
      place(run, i);
      plan_run_.run(calls_, body_.draws_ ? opdef::cells_of_iteration(cells, i) : kNoCells);
      copy_results();
    }
    return i;
  }

  std::int64_t memory_bytes() const {
    return device_.charged_bytes(cells_.memory()) + plan_run_.constant_bytes();
  }
  std::int64_t mirror_bytes() const { return plan_run_.mirror_bytes(); }

 private:
  static constexpr opdef::StepCells kNoCells = {};

  // Its value lies where the last one is wanted.
  void start_state(std::size_t s, const opdef::BodyState& given) {
    const State& state = body_.states_[s];
    states_[s] = given.last != nullptr ? device::address_of(given.last) : workspace_ + state.value;
    if (given.initial == nullptr) {
      constexpr std::byte kHolds{1};
      stream_.copy_in(states_[s], &kHolds, 1);
    } else if (given.initial != given.last && state.bytes > 0) {
      stream_.copy(states_[s], device::address_of(given.initial), state.bytes);
    }
  }

  // State 0, which decides whether there is a further iteration.
  bool holds(const opdef::BodyState& given, std::int64_t iteration) {
    if (iteration == 0 && given.initial == nullptr) return true;
    std::byte value{};
    stream_.copy_out(&value, states_[0], 1);
    stream_.synchronize();
    return value != std::byte{0};
  }

  // Sets the places of iteration `i`.
  void place(const opdef::BodyRun& run, std::int64_t i) {
    const auto moved = [i](const opdef::Slice& slice) {
      return device::address_of(slice.at) + i * slice.stride;
    };
    for (std::size_t f = 0; f < feeds_.size(); ++f) {
      const bool is_number = run.counts && f == 0;
      feeds_[f] = is_number ? workspace_ + body_.counter_ : moved(run.inputs[f]);
    }
    for (std::size_t r = 0; r < results_.size(); ++r) results_[r] = moved(run.outputs[r]);
    if (run.counts && !feeds_.empty() && body_.plan_.feed_bytes[0] >= 0) {
      stream_.copy_in(feeds_[0], reinterpret_cast<const std::byte*>(&i), sizeof i);
    }
    std::size_t next = 0;
    const auto add = [&](const Location& at) {
      args_[next++] = device::kernel_argument(resolve(at));
    };
    for (const PlanStep& step : body_.plan_.steps) std::ranges::for_each(step.args, add);
    for (const Copy& copy : body_.plan_.copies) {
      add(copy.from);
      add(copy.to);
    }
  }

  // Copies results that no kernel writes in their place.
  void copy_results() {
    for (std::size_t r = 0; r < results_.size(); ++r) {
      const auto& [location, desc] = body_.plan_.outputs[r];
      const std::int64_t bytes = desc.dims.size_bytes(desc.dtype);
      const bool is_placed = location.kind == Location::Kind::kBlock && location.block == r;
      if (!is_placed && bytes > 0) stream_.copy(results_[r], resolve(location), bytes);
    }
  }

  device::Address resolve(const Location& at) const {
    const auto place = static_cast<std::size_t>(at.at);
    switch (at.kind) {
      case Location::Kind::kArena:
        return workspace_ + at.at;
      case Location::Kind::kState:
        return states_[place];
      case Location::Kind::kConstant:
        return plan_run_.constant(place);
      case Location::Kind::kFeed:
        return feeds_[place];
      case Location::Kind::kBlock:
        if (at.block < results_.size()) return results_[at.block] + at.at;
        return workspace_ + (body_.states_[at.block - results_.size()].next + at.at);
      case Location::Kind::kNone:
        break;
    }
    return device::Address::kNull;
  }

  const SubmittedBody& body_;
  device::Device& device_;
  device::Stream& stream_;
  DeviceCells cells_;
  DeviceRun plan_run_;
  std::vector<std::byte*> args_;
  std::vector<device::KernelCall> calls_;
  device::Address workspace_ = device::Address::kNull;
  std::vector<device::Address> feeds_;
  std::vector<device::Address> results_;
  std::vector<device::Address> states_;
};

SubmittedBody::SubmittedBody(Plan plan, const std::vector<opdef::TensorDesc>& states,
                             std::int64_t alignment, bool draws)
    : plan_(std::move(plan)), draws_(draws) {
  ONNXGRAD_ASSERT(plan_.outputs.size() >= states.size());
  const std::size_t num_results = plan_.outputs.size() - states.size();
  for (std::size_t i = 0; i < num_results; ++i) outputs_.push_back(plan_.outputs[i].desc);
  for (const PlanStep& step : plan_.steps) flops_ += step.kernel.flops;
  ArenaLayout layout(alignment);
  if (plan_.arena_bytes > 0) layout.allocate(plan_.arena_bytes);
  for (const opdef::TensorDesc& desc : states) {
    State& state = states_.emplace_back();
    state.bytes = desc.dims.size_bytes(desc.dtype);
    state.value = layout.allocate(state.bytes);
    state.next = layout.allocate(state.bytes);
  }
  counter_ = layout.allocate(sizeof(std::int64_t));
  workspace_bytes_ = layout.size_bytes();
}

SubmittedBody::~SubmittedBody() = default;

std::int64_t SubmittedBody::memory_bytes() const { return runner_ ? runner_->memory_bytes() : 0; }
std::int64_t SubmittedBody::mirror_bytes() const { return runner_ ? runner_->mirror_bytes() : 0; }

std::int64_t SubmittedBody::planned_bytes(const device::Device& device) const {
  return device.charged_bytes(sizeof(opdef::StepCells)) +
         DeviceRun::planned_bytes(plan_, device, std::vector<bool>(plan_.feed_bytes.size(), true));
}

std::int64_t SubmittedBody::run(const opdef::BodyRun& run, const opdef::Launch& launch) const {
  ONNXGRAD_ASSERT(run.grow == nullptr);
  if (runner_ == nullptr) runner_ = std::make_unique<Runner>(*this, target_of(launch));
  return runner_->run(run, *launch.cells);
}

void SubmittedBody::read(std::byte* to, const std::byte* from, std::int64_t bytes,
                         const opdef::Launch& launch) const {
  device::Stream& stream = target_of(launch).stream;
  stream.copy_out(to, device::address_of(from), bytes);
  stream.synchronize();
}

}  // namespace onnxgrad::runtime
