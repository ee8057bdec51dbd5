#include "runtime/device_run.h"

#include <algorithm>

namespace onnxgrad::runtime {

DeviceCells::DeviceCells(device::Device& device, device::Stream& stream)
    : stream_(stream), memory_(device.allocate(sizeof(opdef::StepCells))) {
  stream_.copy_in(memory_.address, reinterpret_cast<const std::byte*>(&known_), sizeof known_);
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

DeviceRun::DeviceRun(const Plan& plan, device::Device& device, device::Stream& stream,
                     DeviceCells& cells)
    : plan_(plan), device_(device), stream_(stream), cells_(cells), feeds_(plan.feed_bytes.size()) {
  for (const Tensor& constant : plan.constants) {
    constants_.push_back(device.allocate(constant.size_bytes()));
    stream.copy_in(constants_.back().address, constant.raw(), constant.size_bytes());
  }
  for (const PlanStep& step : plan.steps) {
    places_.push_back(step.place);
    operands_.emplace_back(step.uses);
  }
  for (const Copy& copy : plan.copies) {
    places_.emplace_back();
    copies_.push_back({.bytes = copy.bytes});
    copy_operands_.push_back({.bytes = copy.bytes, .is_read = true});
    copy_operands_.push_back({.bytes = copy.bytes, .is_written = true});
  }
  for (std::size_t i = 0; i < plan.copies.size(); ++i) {
    operands_.push_back(std::span(copy_operands_).subspan(2 * i, 2));
  }
}

DeviceRun::~DeviceRun() {
  try {
    stream_.synchronize();
  } catch (...) {  // NOLINT(bugprone-empty-catch): these results are not needed
  }
}

device::Address DeviceRun::slot(std::size_t i) {
  Feed& feed = feeds_[i];
  if (feed.slot.owner == nullptr) feed.slot = device_.allocate(plan_.feed_bytes[i]);
  return feed.slot.address;
}

device::Address DeviceRun::bind(std::size_t i, const std::byte* data) {
  feeds_[i].on_host = data;
  return slot(i);
}

void DeviceRun::copy_feeds() {
  for (std::size_t i = 0; i < feeds_.size(); ++i) {
    const Feed& feed = feeds_[i];
    if (feed.on_host == nullptr) continue;
    stream_.copy_in(feed.slot.address, feed.on_host, plan_.feed_bytes[i]);
  }
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
          .operands = std::span(operands_).subspan(begin, end - begin)};
}

void DeviceRun::submit(std::span<const device::KernelCall> calls, const opdef::StepCells& cells) {
  cells_.update(cells);
  const auto submit_part = [&](std::size_t begin, std::size_t end) {
    if (begin == end) return;
    stream_.run({.calls = calls.subspan(begin, end - begin),
                 .places = std::span(places_).subspan(begin, end - begin),
                 .operands = std::span(operands_).subspan(begin, end - begin)},
                cells_.address());
  };
  for (const Segment& segment : plan_.segments) submit_part(segment.begin, segment.end);
  submit_part(plan_.steps.size(), calls.size());
}

void DeviceRun::run_alone(const device::KernelCall& call, const opdef::StepCells& cells) {
  cells_.update(cells);
  stream_.run({.calls = {&call, 1}}, cells_.address());
  stream_.synchronize();
}

}  // namespace onnxgrad::runtime
