// Series of steps of a region on a device other than the host: see device_series.h.

#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "device/host_threads.h"
#include "runtime/device_series.h"
#include "runtime/region.h"
#include "runtime/resident_rows.h"

namespace onnxgrad::runtime {

device::Address Region::output_address(std::size_t i) const {
  if (compiled_.tail) return current_tail_->output_address(i);
  return resolve(compiled_.plan.outputs[i].location);
}

// The memory of a feed that the series fills; kNull: nothing here reads it.
device::Address Region::use_slot(std::size_t feed) {
  if (!reads(feed)) return device::Address::kNull;
  on_device_->release(feed, /*is_kept=*/true);
  set_feed(feed, on_device_->slot(feed));
  return feeds_[feed].address;
}

void Region::set_series_form(const StepSeries& series) {
  DeviceSeries::Form form{.batch_rows = series.batch_rows,
                          .is_whole = on_device_->is_recordable() && !compiled_.tail &&
                                      block_slots_.empty() && !context_.profiler.is_on()};
  if (series.resident != nullptr) {
    form.order = series.resident->order();
    form.order_bytes = series.resident->order_bytes();
    form.memory.push_back(series.resident->order_memory());
    for (const ResidentRows::Resident& column : series.resident->columns()) {
      const device::Address to = use_slot(column.input);
      if (to == device::Address::kNull) continue;
      form.memory.emplace_back(column.memory);
      form.gathered.push_back({.from = column.memory.address,
                               .to = to,
                               .bytes = column.memory.bytes,
                               .row_bytes = column.row_bytes});
    }
  } else {
    for (const StepSeries::Input& input : series.inputs) use_slot(input.number);
  }
  if (!series.scalar.values.empty()) {
    const device::Address to = use_slot(series.scalar.number);
    if (to != device::Address::kNull) {
      form.taken = DeviceSeries::Scalar{.at = to, .dtype = series.scalar.dtype};
    }
  }
  for (const std::size_t result : series.results) {
    // That of a tail is known when it has run.
    form.kept.push_back(compiled_.tail ? DeviceSeries::Scalar{}
                                       : DeviceSeries::Scalar{.at = output_address(result),
                                                              .dtype = output_desc(result).dtype});
  }
  for (const Feed& feed : feeds_) form.of_plan.push_back(feed.address);
  form.of_plan.push_back(arena_.address);
  form.memory.emplace_back(arena_);
  const std::size_t steps = num_kernels();
  series_->set_form(std::move(form), series.steps, on_device_->work(calls_, 0, steps),
                    on_device_->work(calls_, steps, calls_.size()));
}

// One step, with the plan as its own run() submits it.
void Region::run_in_pieces(const StepSeries& series) {
  series_->submit_begin();
  run_plan();
  if (compiled_.tail) run_tail();
  std::vector<DeviceSeries::Scalar> kept;
  for (const std::size_t result : series.results) {
    kept.push_back({.at = output_address(result), .dtype = output_desc(result).dtype});
  }
  series_->submit_end(kept);
}

void Region::run_steps_on_device(const StepSeries& series) {
  const bool is_whole = series_->is_whole();
  if (is_whole) on_device_->copy_feeds();  // those that are the same in all steps
  if (is_whole && series.resident != nullptr) {
    series_->submit(series.steps);
    context_.cells.step += series.steps;
    return;
  }
  std::vector<FeedSlots::Feed> feeds;
  for (const StepSeries::Input& input : series.inputs) {
    const bool is_read = reads(input.number);
    feeds.push_back({.at = is_read ? feeds_[input.number].address : device::Address::kNull,
                     .bytes = is_read ? compiled_.plan.feed_bytes[input.number] : 0});
  }
  if (series.staged != nullptr) {
    series_->slots().make_room(feeds);
    series_->slots().copy_ahead(*series.staged, 0, feeds);
  }
  for (std::size_t step = 0; step < series.steps; ++step) {
    if (series.staged != nullptr) {
      series_->slots().bring(step, feeds);
    } else if (series.resident == nullptr) {
      const std::int64_t row = series.first_rows[step];
      for (std::size_t i = 0; i < feeds.size(); ++i) {
        if (feeds[i].at == device::Address::kNull) continue;
        const StepSeries::Input& input = series.inputs[i];
        stream().copy_in(feeds[i].at, input.data + row * input.row_bytes, feeds[i].bytes);
      }
    }
    is_whole ? series_->submit(1) : run_in_pieces(series);
    ++context_.cells.step;
    const std::size_t next = step + 1;
    if (series.staged != nullptr && next < series.steps) {
      series_->slots().copy_ahead(*series.staged, next, feeds);
    }
  }
}

namespace {

// Binds the number that a series took from its table to the host's again.
class ScalarBinder {
 public:
  ScalarBinder(DeviceRun& run, const StepSeries::Scalar* scalar) : run_(run), scalar_(scalar) {}
  ~ScalarBinder() {
    if (scalar_ != nullptr) run_.bind(scalar_->number, scalar_->bound);
  }
  ScalarBinder(const ScalarBinder&) = delete;
  ScalarBinder& operator=(const ScalarBinder&) = delete;

 private:
  DeviceRun& run_;
  const StepSeries::Scalar* scalar_;
};

}  // namespace

// Work after a step that failed was not done: the device has counted the steps before it.
void Region::count_complete_steps() {
  series_->abandon();
  for (int attempt = 0; attempt < 2; ++attempt) {
    try {
      context_.cells.step = context_.device_cells->read().step;
      return;
    } catch (...) {  // NOLINT(bugprone-empty-catch): the first error is thrown
    }
  }
}

std::size_t Region::run_series_on_device(const StepSeries& series, std::span<double> results) {
  check_arena();
  if (compiled_.plan.threads > 1) device::start_threads(compiled_.plan.threads);
  if (!series_) {
    series_ =
        std::make_unique<DeviceSeries>(context_.engine.device, stream(), *context_.device_cells);
  }
  context_.state.changes += series.steps;
  set_series_form(series);
  const bool takes_scalar = !series.scalar.values.empty() && reads(series.scalar.number);
  const ScalarBinder binder(*on_device_, takes_scalar ? &series.scalar : nullptr);
  try {
    series_->begin(series, context_.cells);
    run_steps_on_device(series);
    series_->read();
  } catch (const DeviceError& error) {
    count_complete_steps();
    throw series_->placed(error);
  } catch (...) {
    count_complete_steps();
    throw;
  }
  auto kept = results.begin();
  for (std::size_t step = 0; step < series.steps; ++step) {
    for (std::size_t i = 0; i < series.results.size(); ++i) *kept++ = series_->result(step, i);
    if (series.ends_at_fault && !std::isfinite(series_->result(step, 0))) return step + 1;
  }
  return series.steps;
}

}  // namespace onnxgrad::runtime
