#include "ops/nn/conv/conv_source_cpu.h"

#include <algorithm>

#include "base/rounding.h"
#include "device/cpu/gemm_tile.h"

namespace onnxgrad::ops {
namespace {

// Elements after a copy, so that full vectors can be read and written at its end.
constexpr std::int64_t kSlack = 64;
constexpr std::int64_t kLineElements = 16;

}  // namespace

AxisPhase forward_phase(const WindowAxis& axis) {
  AxisPhase phase{.count = axis.output, .source_step = axis.stride};
  for (std::int64_t j = 0; j < axis.kernel; ++j) {
    phase.taps.push_back({.tap = j, .offset = j * axis.dilation - axis.pad_begin});
  }
  return phase;
}

std::vector<AxisPhase> backward_phases(const WindowAxis& axis) {
  std::vector<AxisPhase> phases;
  for (std::int64_t first = 0; first < std::min(axis.stride, axis.input); ++first) {
    AxisPhase phase{.first = first,
                    .step = axis.stride,
                    .count = base::ceil_div(axis.input - first, axis.stride)};
    for (std::int64_t j = 0; j < axis.kernel; ++j) {
      const std::int64_t distance = first + axis.pad_begin - j * axis.dilation;
      if (distance % axis.stride != 0) continue;
      phase.taps.push_back({.tap = j, .offset = distance / axis.stride});
    }
    phases.push_back(std::move(phase));
  }
  return phases;
}

std::vector<AxisPhases> phases_of(const ConvOperands& task) {
  constexpr std::int64_t kMostPhases = 64;
  std::array<std::vector<AxisPhase>, 3> axes;
  std::int64_t count = 1;
  for (std::size_t i = 0; i < 3; ++i) {
    const WindowAxis& axis = task.shape.axes[i];
    const bool backward = task.pass == ConvOperands::Pass::kBackwardData;
    if (backward) count *= std::min({axis.stride, axis.input, kMostPhases + 1});
    if (count > kMostPhases) return {};
    axes[i] = backward ? backward_phases(axis) : std::vector{forward_phase(axis)};
  }
  std::vector<AxisPhases> phases;
  for (const AxisPhase& d : axes[0]) {
    for (const AxisPhase& h : axes[1]) {
      for (const AxisPhase& w : axes[2]) phases.push_back({d, h, w});
    }
  }
  return phases;
}

void SourceAxis::cover(const AxisPhase& phase) {
  for (const AxisTap& tap : phase.taps) {
    const std::int64_t last = tap.offset + phase.source_step * (phase.count - 1);
    if (low == high) {
      low = tap.offset;
      high = last + 1;
    }
    low = std::min(low, tap.offset);
    high = std::max(high, last + 1);
  }
}

ConvSource::ConvSource(const std::array<SourceAxis, 3>& axes, bool must_copy,
                       std::int64_t column_step)
    : axes_(axes), column_step_(column_step) {
  copies_ = must_copy || column_step > 1;
  for (const SourceAxis& axis : axes) copies_ = copies_ || !axis.is_inside();
  const auto extent = [&](std::size_t i) { return copies_ ? axes[i].padded() : axes[i].size; };
  columns_ = base::ceil_div(extent(2), column_step);
  strides_ = {extent(1) * columns_ * column_step, columns_ * column_step, 1};
  plane_ = extent(0) * strides_[0];
  if (!copies_) return;
  if (plane_ % kAliasingElements == 0) plane_ += kLineElements;
  const std::size_t linear = column_step > 1 ? 2 : 3;  // axes whose positions are not sorted
  for (std::size_t i = 0; i < linear; ++i) origin_ -= axes[i].low * strides_[i];
}

std::int64_t ConvSource::copy_elements(std::int64_t channels) const {
  return copies_ ? channels * plane_ + kSlack : 0;
}

template <class T>
void ConvSource::clear(std::int64_t channels, T* copy) const {
  std::fill_n(copy, copy_elements(channels), T(0));
}

template <class T>
void ConvSource::copy(device::Isa isa, const T* from, std::int64_t channels, T* to) const {
  const auto begin = [&](std::size_t i) { return std::max<std::int64_t>(axes_[i].low, 0); };
  const auto count = [&](std::size_t i) {
    return std::max<std::int64_t>(std::min(axes_[i].high, axes_[i].size) - begin(i), 0);
  };
  const std::int64_t rows = count(1);
  const std::int64_t columns = count(2);
  if (rows == 0 || columns == 0) return;
  // Rows are written up to a full vector, with zeros: the elements after a row are padding or are
  // written next.
  const auto copy_rows = device::gemm_target<T>(isa).copy;
  const auto copy_sorted = [&](const T* source, std::int64_t d, T* plane) {
    for (std::int64_t h = begin(1); h < begin(1) + rows; ++h, source += axes_[2].size) {
      for (std::int64_t i = 0; i < std::min(column_step_, columns); ++i) {
        T* next = plane + offset(d, h, begin(2) + i);
        for (std::int64_t w = i; w < columns; w += column_step_) *next++ = source[w];
      }
    }
  };
  for (std::int64_t c = 0; c < channels; ++c) {
    for (std::int64_t d = begin(0); d < begin(0) + count(0); ++d) {
      const T* source = from + ((c * axes_[0].size + d) * axes_[1].size + begin(1)) * axes_[2].size;
      if (column_step_ > 1) {
        copy_sorted(source + begin(2), d, to + c * plane_);
        continue;
      }
      copy_rows(source + begin(2), axes_[2].size, to + c * plane_ + offset(d, begin(1), begin(2)),
                strides_[1], rows, columns);
    }
  }
}

template void ConvSource::clear(std::int64_t, float*) const;
template void ConvSource::clear(std::int64_t, double*) const;
template void ConvSource::copy(device::Isa, const float*, std::int64_t, float*) const;
template void ConvSource::copy(device::Isa, const double*, std::int64_t, double*) const;

}  // namespace onnxgrad::ops
