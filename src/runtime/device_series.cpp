#include "runtime/device_series.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "base/check.h"
#include "runtime/resident_rows.h"

namespace onnxgrad::runtime {
namespace {

using device::Address;
using device::kernel_argument;
using device::Operand;
using device::SeriesCells;

constexpr auto kNumberBytes = static_cast<std::int64_t>(sizeof(double));

Operand read_only(std::int64_t bytes) { return {.bytes = bytes, .is_read = true}; }
Operand write_only(std::int64_t bytes) { return {.bytes = bytes, .is_written = true}; }
// An element, and not the others.
Operand read_write(std::int64_t bytes) {
  return {.bytes = bytes, .is_read = true, .is_written = true};
}

std::int64_t scalar_bytes(DataType dtype) { return Dims{}.size_bytes(dtype); }

}  // namespace

FeedSlots::FeedSlots(device::Device& device, device::Stream& steps)
    : device_(device), steps_(steps), copies_(device.make_stream()) {}

void FeedSlots::make_room(std::span<const Feed> feeds) {
  for (Slot& slot : slots_) {
    slot.feeds.resize(std::max(slot.feeds.size(), feeds.size()));
    for (std::size_t i = 0; i < feeds.size(); ++i) {
      if (slot.feeds[i].bytes >= feeds[i].bytes) continue;
      copies_->synchronize();
      steps_.synchronize();
      slot.feeds[i] = device_.allocate(feeds[i].bytes);
    }
  }
}

void FeedSlots::copy_ahead(StagedBatches& batches, std::size_t step, std::span<const Feed> feeds) {
  const std::size_t number = step % slots_.size();
  Slot& slot = slots_[number];
  if (slot.is_copied) slot.is_copied->wait();
  batches.fill(step, number);
  if (slot.is_read) copies_->wait_for(*slot.is_read);
  for (std::size_t i = 0; i < feeds.size(); ++i) {
    if (feeds[i].at == Address::kNull) continue;
    copies_->copy_in_staged(slot.feeds[i].address, batches.rows(i, number), feeds[i].bytes);
  }
  slot.is_copied = copies_->mark(/*is_timed=*/false);
}

void FeedSlots::bring(std::size_t step, std::span<const Feed> feeds) {
  Slot& slot = slots_[step % slots_.size()];
  steps_.wait_for(*slot.is_copied);
  for (std::size_t i = 0; i < feeds.size(); ++i) {
    if (feeds[i].at == Address::kNull) continue;
    steps_.copy(feeds[i].at, slot.feeds[i].address, feeds[i].bytes);
  }
  slot.is_read = steps_.mark(/*is_timed=*/false);
}

// Points of work that failed would fail whatever waits for them.
void FeedSlots::abandon() {
  try {
    copies_->synchronize();
  } catch (...) {  // NOLINT(bugprone-empty-catch): the first error is thrown
  }
  for (Slot& slot : slots_) slot.is_copied = slot.is_read = nullptr;
}

std::int64_t FeedSlots::memory_bytes() const {
  std::int64_t bytes = 0;
  for (const Slot& slot : slots_) {
    for (const device::Buffer& feed : slot.feeds) bytes += device_.charged_bytes(feed);
  }
  return bytes;
}

DeviceSeries::DeviceSeries(device::Device& device, device::Stream& stream, DeviceCells& cells)
    : device_(device),
      stream_(stream),
      cells_(cells),
      unit_(std::max<std::int64_t>(device.alignment(), sizeof(SeriesCells))) {}

FeedSlots& DeviceSeries::slots() {
  if (!slots_) slots_ = std::make_unique<FeedSlots>(device_, stream_);
  return *slots_;
}

Address DeviceSeries::ring(std::size_t i) const {
  return table() + static_cast<std::int64_t>((i + 1) * capacity_) * kNumberBytes;
}

void DeviceSeries::make_room(std::size_t steps, std::size_t results) {
  constexpr std::size_t kLeast = 256;
  if (steps <= capacity_ && results <= rings_) return;
  stream_.synchronize();
  capacity_ = std::max({steps, capacity_, kLeast});
  rings_ = std::max(results, rings_);
  memory_ = {};
  memory_ =
      device_.allocate(unit_ + static_cast<std::int64_t>((1 + rings_) * capacity_) * kNumberBytes);
  read_.resize(rings_ * capacity_);
  has_form_ = false;
}

std::int64_t DeviceSeries::memory_bytes() const {
  return device_.charged_bytes(memory_) + (slots_ ? slots_->memory_bytes() : 0);
}

void DeviceSeries::add(std::string name, opdef::KernelFn fn, const void* data,
                       std::vector<std::byte*> args, std::vector<Operand> operands) {
  names_.push_back(std::move(name));
  const std::vector<std::byte*>& own = args_.emplace_back(std::move(args));
  operands_.emplace_back(own_operands_.emplace_back(std::move(operands)));
  calls_.push_back({.fn = fn, .data = data, .args = own.data(), .num_args = own.size()});
  places_.emplace_back();
}

void DeviceSeries::add_begin() {
  const device::StepKernels& kernels = device_.step_kernels();
  const auto table_bytes = static_cast<std::int64_t>(capacity_) * kNumberBytes;
  std::byte* const cells = kernel_argument(memory_.address);
  if (form_.taken) {
    scalars_.push_back({.dtype = form_.taken->dtype});
    add("take_scalar", kernels.take_scalar, &scalars_.back(),
        {cells, kernel_argument(table()), kernel_argument(form_.taken->at)},
        {read_only(sizeof(SeriesCells)), read_only(table_bytes),
         write_only(scalar_bytes(form_.taken->dtype))});
  }
  for (const Rows& rows : form_.gathered) {
    gathers_.push_back(
        {.row_bytes = rows.row_bytes, .rows = form_.batch_rows, .batch_rows = form_.batch_rows});
    add("gather_rows", kernels.gather_rows, &gathers_.back(),
        {cells, kernel_argument(rows.from), kernel_argument(form_.order), kernel_argument(rows.to)},
        {read_only(sizeof(SeriesCells)), read_only(rows.bytes), read_only(form_.order_bytes),
         write_only(form_.batch_rows * rows.row_bytes)});
  }
  num_begin_ = calls_.size();
}

// The first call of a stream waits for what comes before the plan.
void DeviceSeries::add_plan(const device::Work& steps) {
  std::map<int, bool> has_begun{{0, true}};
  for (std::size_t i = 0; i < steps.calls.size(); ++i) {
    device::CallPlace place = steps.places.empty() ? device::CallPlace{} : steps.places[i];
    for (std::uint32_t& awaited : place.waits) awaited += static_cast<std::uint32_t>(num_begin_);
    if (!std::exchange(has_begun[place.stream], true) && num_begin_ > 0) {
      place.waits.push_back(static_cast<std::uint32_t>(num_begin_ - 1));
      places_[num_begin_ - 1].is_awaited = true;
    }
    calls_.push_back(steps.calls[i]);
    places_.push_back(std::move(place));
    operands_.push_back(steps.operands[i]);
    names_.push_back(steps.names[i]);
  }
}

// The first call after the plan waits for all its streams.
void DeviceSeries::add_end(std::size_t first_of_plan) {
  std::map<int, std::size_t> last;
  for (std::size_t i = first_of_plan; i < places_.size(); ++i) last[places_[i].stream] = i;
  const std::size_t first = calls_.size();
  const device::StepKernels& kernels = device_.step_kernels();
  const auto ring_bytes = static_cast<std::int64_t>(capacity_) * kNumberBytes;
  for (std::size_t i = 0; i < form_.kept.size(); ++i) {
    scalars_.push_back({.dtype = form_.kept[i].dtype});
    add("keep_scalar", kernels.keep_scalar, &scalars_.back(),
        {kernel_argument(memory_.address), kernel_argument(form_.kept[i].at),
         kernel_argument(ring(i))},
        {read_only(sizeof(SeriesCells)), read_only(scalar_bytes(form_.kept[i].dtype)),
         read_write(ring_bytes)});
  }
  add("count_step", kernels.count_step, nullptr, {kernel_argument(cells_.address())},
      {read_write(sizeof(opdef::StepCells))});
  num_end_ = calls_.size() - first;
  for (const auto& [stream, call] : last) {
    if (stream == 0) continue;
    places_[first].waits.push_back(static_cast<std::uint32_t>(call));
    places_[call].is_awaited = true;
  }
}

void DeviceSeries::set_form(Form form, std::size_t steps, const device::Work& plan_steps,
                            const device::Work& plan_copies) {
  make_room(steps, form.kept.size());
  if (has_form_ && form == form_) return;
  form_ = std::move(form);
  has_form_ = true;
  has_run_ = false;
  recording_ = nullptr;
  args_.clear();
  own_operands_.clear();
  calls_.clear();
  places_.clear();
  operands_.clear();
  names_.clear();
  gathers_.clear();
  scalars_.clear();
  gathers_.reserve(form_.gathered.size());  // calls point to them
  scalars_.reserve(form_.kept.size() + 1);
  add_begin();
  if (form_.is_whole) add_plan(plan_steps);
  const std::size_t num_plan = calls_.size() - num_begin_;
  add_end(num_begin_);
  // The host learns from the count which steps have changed the state.
  constexpr auto kIsGuarded = &device::CallPlace::is_guarded;
  places_.back().is_guarded = !form_.is_whole || std::ranges::any_of(places_, kIsGuarded) ||
                              std::ranges::any_of(plan_copies.places, kIsGuarded);
  if (!form_.is_whole || plan_copies.calls.empty()) return;
  // Copies come after all steps and before the results are kept: first of what waits.
  const auto at = static_cast<std::ptrdiff_t>(num_begin_ + num_plan);
  calls_.insert(calls_.begin() + at, plan_copies.calls.begin(), plan_copies.calls.end());
  operands_.insert(operands_.begin() + at, plan_copies.operands.begin(),
                   plan_copies.operands.end());
  names_.insert(names_.begin() + at, plan_copies.names.begin(), plan_copies.names.end());
  device::CallPlace joins = std::exchange(places_[num_begin_ + num_plan], {});
  places_.insert(places_.begin() + at, plan_copies.places.begin(), plan_copies.places.end());
  places_[num_begin_ + num_plan].stream = joins.stream;
  places_[num_begin_ + num_plan].waits = std::move(joins.waits);
}

void DeviceSeries::begin(const StepSeries& series, const opdef::StepCells& cells) {
  const SeriesCells own{.first_step = cells.step, .first_place = series.first_place};
  const std::span<const double> values = series.scalar.values;
  written_.resize(static_cast<std::size_t>(unit_) + values.size_bytes());
  std::memcpy(written_.data(), &own, sizeof own);
  if (!values.empty()) std::memcpy(written_.data() + unit_, values.data(), values.size_bytes());
  stream_.copy_in(memory_.address, written_.data(), std::ssize(written_));
  cells_.update(cells);
  first_step_ = cells.step + 1;
  num_submitted_ = 0;
}

device::Work DeviceSeries::work(std::size_t begin, std::size_t end) const {
  return {.calls = std::span(calls_).subspan(begin, end - begin),
          .places = std::span(places_).subspan(begin, end - begin),
          .operands = std::span(operands_).subspan(begin, end - begin),
          .names = std::span(names_).subspan(begin, end - begin)};
}

// Kernels are recorded when they have run once.
void DeviceSeries::submit(std::size_t steps) {
  ONNXGRAD_ASSERT(form_.is_whole);
  const device::Work all = work(0, calls_.size());
  num_submitted_ += steps;
  for (std::size_t i = 0; i < steps; ++i) cells_.note_counted_step();
  if (!has_run_ && steps > 0) {
    stream_.run(all, cells_.address());
    has_run_ = true;
    --steps;
  }
  if (steps > 0 && recording_ == nullptr && can_record_) {
    recording_ = stream_.record(all, cells_.address());
    can_record_ = recording_ != nullptr;
  }
  if (steps > 0 && recording_ != nullptr) {
    stream_.repeat(*recording_, static_cast<std::int64_t>(steps));
    return;
  }
  for (; steps > 0; --steps) stream_.run(all, cells_.address());
}

void DeviceSeries::submit_begin() {
  if (num_begin_ > 0) stream_.run(work(0, num_begin_), cells_.address());
}

void DeviceSeries::submit_end(std::span<const Scalar> kept) {
  const std::size_t first = calls_.size() - num_end_;
  const std::size_t first_args = args_.size() - num_end_;
  for (std::size_t i = 0; i < kept.size(); ++i) {
    args_[first_args + i][1] = kernel_argument(kept[i].at);
    own_operands_[own_operands_.size() - num_end_ + i][1].bytes = scalar_bytes(kept[i].dtype);
    scalars_[scalars_.size() - kept.size() + i].dtype = kept[i].dtype;
  }
  stream_.run(work(first, calls_.size()), cells_.address());
  cells_.note_counted_step();
  ++num_submitted_;
}

void DeviceSeries::read() {
  if (!form_.kept.empty()) {
    const auto bytes = static_cast<std::int64_t>(form_.kept.size() * capacity_) * kNumberBytes;
    stream_.copy_out(reinterpret_cast<std::byte*>(read_.data()), ring(0), bytes);
  }
  stream_.synchronize();
}

DeviceError DeviceSeries::placed(const DeviceError& error) const {
  Problem problem = error.problem();
  if (num_submitted_ > 0) {
    problem.detail += fmt::format(" It was computing steps {} to {}.", first_step_,
                                  first_step_ + num_submitted_ - 1);
  }
  DeviceError result(std::move(problem));
  return result;
}

void DeviceSeries::abandon() {
  if (slots_) slots_->abandon();
}

}  // namespace onnxgrad::runtime
