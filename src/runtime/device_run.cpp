#include "runtime/device_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "opdef/collectives.h"
#include "opdef/layout_order.h"

namespace onnxgrad::runtime {

DeviceCells::DeviceCells(device::Device& device, device::Stream& stream)
    : stream_(stream), memory_(device.allocate(sizeof(device::DeviceStepCells))) {
  const device::DeviceStepCells first;
  stream_.copy_in(memory_.address, reinterpret_cast<const std::byte*>(&first), sizeof first);
}

DeviceCells::~DeviceCells() {
  try {
    stream_.synchronize();
  } catch (...) {  // NOLINT(bugprone-empty-catch): these results are not needed
  }
}

void DeviceCells::update(const opdef::StepCells& cells) {
  if (cells == known_) return;
  known_ = cells;
  stream_.copy_in(memory_.address, reinterpret_cast<const std::byte*>(&known_), sizeof known_);
}

const opdef::StepCells& DeviceCells::read() {
  stream_.copy_out(reinterpret_cast<std::byte*>(&known_), memory_.address, sizeof known_);
  stream_.synchronize();
  return known_;
}

namespace {

bool writes_state(const PlanStep& step) {
  for (std::size_t i = 0; i < step.uses.size(); ++i) {
    if (step.uses[i].is_written && step.args[i].kind == Location::Kind::kState) return true;
  }
  return false;
}

}  // namespace

DeviceRun::DeviceRun(const Plan& plan, device::Device& device, device::Stream& stream,
                     DeviceCells& cells, Resolve resolve)
    : plan_(plan),
      device_(device),
      stream_(stream),
      cells_(cells),
      target_{device, stream},
      resolve_(std::move(resolve)),
      on_host_(plan),
      constants_(plan.constants.size()),
      readers_(plan),
      feeds_(plan.feed_bytes.size()) {
  copy_constants();
  const bool may_refuse = plan.may_throw();
  for (const PlanStep& step : plan.steps) {
    places_.push_back(step.place);
    places_.back().is_guarded = may_refuse && writes_state(step);
    operands_.emplace_back(step.uses);
    names_.push_back(fmt::format("{} '{}'", step.op_type, step.node));
  }
  for (const Copy& copy : plan.copies) {
    places_.push_back({.is_guarded = may_refuse && copy.to.kind == Location::Kind::kState});
    names_.emplace_back("the copy of a result");
    copies_.push_back({.bytes = copy.bytes});
    copy_operands_.push_back({.bytes = copy.bytes, .is_read = true});
    copy_operands_.push_back({.bytes = copy.bytes, .is_written = true});
  }
  for (std::size_t i = 0; i < plan.copies.size(); ++i) {
    operands_.emplace_back(std::span(copy_operands_).subspan(2 * i, 2));
  }
  add_parts();
}

DeviceRun::~DeviceRun() {
  try {
    stream_.synchronize();
  } catch (...) {  // NOLINT(bugprone-empty-catch): these results are not needed
  }
}

DeviceRun::Readers::Readers(const Plan& plan)
    : constants(plan.constants.size(), false), feeds(plan.feed_bytes.size(), false) {
  const auto add = [this](const Location& at) {
    const auto place = static_cast<std::size_t>(at.at);
    if (at.kind == Location::Kind::kConstant) constants[place] = true;
    if (at.kind == Location::Kind::kFeed) feeds[place] = true;
  };
  for (const PlanStep& step : plan.steps) {
    if (!step.is_on_host) std::ranges::for_each(step.args, add);
  }
  for (const Copy& copy : plan.copies) add(copy.from);
  for (const PlanOutput& output : plan.outputs) {
    if (output.desc.dtype != DataType::kString) add(output.location);
  }
}

std::int64_t DeviceRun::planned_bytes(const Plan& plan, const device::Device& device,
                                      const std::vector<bool>& is_fed_there) {
  const Readers readers(plan);
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < plan.constants.size(); ++i) {
    if (readers.constants[i]) bytes += device.charged_bytes(plan.constants[i].size_bytes());
  }
  for (std::size_t i = 0; i < plan.feed_bytes.size(); ++i) {
    const bool has_slot = readers.feeds[i] && (i >= is_fed_there.size() || !is_fed_there[i]);
    if (has_slot) bytes += device.charged_bytes(plan.feed_bytes[i]);
  }
  return bytes;
}

// Nothing is freed that a copy uses, if there is no memory for all.
void DeviceRun::copy_constants() {
  for (std::size_t i = 0; i < constants_.size(); ++i) {
    if (readers_.constants[i]) constants_[i] = device_.allocate(plan_.constants[i].size_bytes());
  }
  for (std::size_t i = 0; i < constants_.size(); ++i) {
    if (!readers_.constants[i]) continue;
    const Tensor& constant = plan_.constants[i];
    stream_.copy_in(constants_[i].address, constant.raw(), constant.size_bytes());
  }
}

void DeviceRun::add_parts() {
  divide();
  for (Part& part : parts_) part.is_refused = uses_blocks(part);
}

// The copies belong to the last segment, if nothing has to be done between and one stream has run
// all that they read.
void DeviceRun::divide() {
  for (const Segment& segment : plan_.segments) {
    parts_.push_back({.begin = segment.begin, .end = segment.end});
  }
  const std::size_t end = plan_.steps.size() + plan_.copies.size();
  parts_.push_back({.begin = plan_.steps.size(), .end = end});
  if (plan_.segments.empty() || plan_.segments.back().kind != Segment::Kind::kRecordable ||
      !plan_.last_transfers.empty()) {
    return;
  }
  const Segment& last = plan_.segments.back();
  const auto steps = std::span(plan_.steps).subspan(last.begin, last.end - last.begin);
  if (std::ranges::any_of(steps, [](const PlanStep& step) { return step.place.stream != 0; }))
    return;
  parts_.pop_back();
  parts_.back().end = end;
  parts_.push_back({.begin = end, .end = end});
}

device::Address DeviceRun::slot(std::size_t i) {
  Feed& feed = feeds_[i];
  if (feed.slot.owner == nullptr) feed.slot = device_.allocate(plan_.feed_bytes[i]);
  return feed.slot.address;
}

device::Address DeviceRun::bind(std::size_t i, const std::byte* data) {
  feeds_[i].on_host = data;
  on_host_.bind(i, data);
  return readers_.feeds[i] ? slot(i) : device::Address::kNull;
}

void DeviceRun::release(std::size_t i, bool is_kept) {
  feeds_[i].on_host = nullptr;
  on_host_.bind(i, nullptr);
  if (!is_kept) forget_recordings();
}

void DeviceRun::forget_recordings() {
  const bool has_any =
      std::ranges::any_of(parts_, [](const Part& part) { return part.recording != nullptr; });
  if (has_any) stream_.synchronize();  // they live until their work is done
  for (Part& part : parts_) {
    part.recording.reset();
    part.args.clear();
  }
}

// The blocks of results are others in each run.
bool DeviceRun::uses_blocks(const Part& part) const {
  const auto is_in_block = [](const Location& at) { return at.kind == Location::Kind::kBlock; };
  for (std::size_t i = part.begin; i < part.end; ++i) {
    const std::size_t copy = i - plan_.steps.size();
    const bool is_copy = i >= plan_.steps.size();
    if (is_copy ? is_in_block(plan_.copies[copy].from) || is_in_block(plan_.copies[copy].to)
                : std::ranges::any_of(plan_.steps[i].args, is_in_block)) {
      return true;
    }
  }
  return false;
}

void DeviceRun::copy_feeds() {
  for (std::size_t i = 0; i < feeds_.size(); ++i) {
    const Feed& feed = feeds_[i];
    if (feed.on_host == nullptr || !readers_.feeds[i]) continue;
    stream_.copy_in(feed.slot.address, feed.on_host, plan_.feed_bytes[i]);
  }
}

std::int64_t DeviceRun::slot_bytes() const {
  std::int64_t bytes = 0;
  for (const Feed& feed : feeds_) bytes += device_.charged_bytes(feed.slot);
  return bytes;
}

std::int64_t DeviceRun::constant_bytes() const {
  std::int64_t bytes = 0;
  for (const device::Buffer& constant : constants_) bytes += device_.charged_bytes(constant);
  return bytes;
}

device::KernelCall DeviceRun::copy_call(std::size_t i, opdef::KernelArgs args) const {
  return {
      .fn = device_.step_kernels().copy_bytes, .data = &copies_[i], .args = args, .num_args = 2};
}

bool DeviceRun::is_recordable() const {
  const std::vector<Segment>& segments = plan_.segments;
  return segments.empty() ||
         (segments.size() == 1 && segments.front().kind == Segment::Kind::kRecordable);
}

device::Work DeviceRun::work(std::span<const device::KernelCall> calls, std::size_t begin,
                             std::size_t end) const {
  return {.calls = calls.subspan(begin, end - begin),
          .places = std::span(places_).subspan(begin, end - begin),
          .operands = std::span(operands_).subspan(begin, end - begin),
          .names = std::span(names_).subspan(begin, end - begin)};
}

void DeviceRun::copy_out(std::span<const Transfer> transfers) {
  for (const Transfer& transfer : transfers) {
    const bool is_feed = transfer.at.kind == Location::Kind::kFeed;
    if (is_feed && on_host_.is_bound(static_cast<std::size_t>(transfer.at.at))) continue;
    stream_.copy_out(on_host_.mirror(transfer.at), resolve_(transfer.at), transfer.bytes);
  }
}

void DeviceRun::copy_in(std::span<const Transfer> transfers) {
  for (const Transfer& transfer : transfers) {
    stream_.copy_in(resolve_(transfer.at), on_host_.mirror(transfer.at), transfer.bytes);
  }
}

// Copies what the segment reads. What the device throws is thrown before the CPU computes anything:
// it may write a state.
void DeviceRun::enter(const Segment& segment) {
  if (segment.kind != Segment::Kind::kHost) {
    copy_in(segment.transfers);
    return;
  }
  copy_out(segment.transfers);
  stream_.synchronize();
}

namespace {

// True if the arguments of the calls are not those that it has noted.
bool note_arguments(std::span<const device::KernelCall> calls, std::vector<std::byte*>& noted) {
  bool is_new = noted.empty();
  std::size_t next = 0;
  for (const device::KernelCall& call : calls) {
    for (std::size_t i = 0; i < call.num_args; ++i, ++next) {
      if (next == noted.size()) noted.push_back(nullptr);
      is_new = is_new || noted[next] != call.args[i];
      noted[next] = call.args[i];
    }
  }
  return is_new;
}

}  // namespace

void DeviceRun::submit(Part& part, std::span<const device::KernelCall> calls) {
  if (part.begin == part.end) return;
  const device::Work all = work(calls, part.begin, part.end);
  if (note_arguments(all.calls, part.args)) {
    if (part.recording != nullptr) {
      stream_.synchronize();  // it lives until its work is done
      part.recording.reset();
    }
    stream_.run(all, cells_.address());
    return;
  }
  if (part.recording == nullptr && !part.is_refused) {
    part.recording = stream_.record(all, cells_.address());
    part.is_refused = part.recording == nullptr;
  }
  if (part.recording != nullptr) {
    stream_.repeat(*part.recording, 1);
  } else {
    stream_.run(all, cells_.address());
  }
}

// The kernel of a node with bodies is a function of the host, which submits work.
void DeviceRun::run_step(const Segment& segment, std::size_t i, const device::KernelCall& call,
                         const opdef::StepCells& cells) {
  if (segment.kind == Segment::Kind::kHost) {
    on_host_.run(i, {.stream = nullptr, .cells = &cells});
  } else if (plan_.steps[i].is_body) {
    call.fn(call.data, call.args, {.stream = &target_, .cells = &cells});
  } else {
    const device::CallPlace place{.is_guarded = places_[i].is_guarded};
    stream_.run({.calls = {&call, 1},
                 .places = {&place, 1},
                 .operands = std::span(operands_).subspan(i, 1),
                 .names = std::span(names_).subspan(i, 1)},
                cells_.address());
  }
}

// Calls run_segment(number) for each segment.
template <class Run>
void DeviceRun::walk(const opdef::StepCells& cells, const Run& run_segment) {
  cells_.update(cells);
  for (std::size_t s = 0; s < plan_.segments.size(); ++s) {
    enter(plan_.segments[s]);
    run_segment(s);
    // Libraries for messages do nothing by themselves.
    if (cells.collectives != nullptr) cells.collectives->progress();
  }
}

void DeviceRun::run(std::span<const device::KernelCall> calls, const opdef::StepCells& cells) {
  walk(cells, [&](std::size_t s) {
    const Segment& segment = plan_.segments[s];
    if (segment.kind == Segment::Kind::kRecordable) {
      submit(parts_[s], calls);
      return;
    }
    for (std::size_t i = segment.begin; i < segment.end; ++i) run_step(segment, i, calls[i], cells);
  });
  copy_in(plan_.last_transfers);
  submit(parts_.back(), calls);
}

std::vector<std::shared_ptr<device::Event>> DeviceRun::run_timed(
    std::span<const device::KernelCall> calls, const opdef::StepCells& cells) {
  std::vector<std::shared_ptr<device::Event>> events{stream_.mark(true)};
  walk(cells, [&](std::size_t s) {
    const Segment& segment = plan_.segments[s];
    for (std::size_t i = segment.begin; i < segment.end; ++i) {
      run_step(segment, i, calls[i], cells);
      events.push_back(stream_.mark(true));
    }
  });
  finish(calls);
  return events;
}

void DeviceRun::run_alone(std::size_t i, std::span<const device::KernelCall> calls,
                          const opdef::StepCells& cells) {
  const auto segment = std::ranges::find_if(
      plan_.segments, [i](const Segment& one) { return one.begin <= i && i < one.end; });
  ONNXGRAD_ASSERT(segment != plan_.segments.end());
  cells_.update(cells);
  if (i == segment->begin) enter(*segment);
  run_step(*segment, i, calls[i], cells);
  if (segment->kind != Segment::Kind::kHost) stream_.synchronize();
}

void DeviceRun::finish(std::span<const device::KernelCall> calls) {
  copy_in(plan_.last_transfers);
  if (plan_.copies.empty()) return;
  stream_.run(work(calls, plan_.steps.size(), calls.size()), cells_.address());
}

Tensor DeviceRun::result(std::size_t i, const device::KernelCall& call,
                         const PlanResult& result) const {
  const auto& [dtype, dims, layout] = result.desc;
  if (!plan_.steps[i].is_on_host) {
    return stream_.read(device::address_of(call.args[result.arg]), dtype,
                        opdef::stored_dims(dims, layout));
  }
  auto* const data = const_cast<std::byte*>(on_host_.argument(i, result.arg));  // only read
  return Tensor::view(dtype, dims, data, nullptr);
}

Tensor DeviceRun::texts(const PlanOutput& output) const {
  const auto place = static_cast<std::size_t>(output.location.at);
  if (output.location.kind == Location::Kind::kConstant) {
    return plan_.constants[place].reshaped(output.desc.dims);
  }
  ONNXGRAD_ASSERT(output.location.kind == Location::Kind::kFeed);
  auto* const data = const_cast<std::byte*>(feeds_[place].on_host);  // only read
  return Tensor::view(output.desc.dtype, output.desc.dims, data, nullptr);
}

}  // namespace onnxgrad::runtime
