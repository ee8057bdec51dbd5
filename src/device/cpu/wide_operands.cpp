#include "device/cpu/wide_operands.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "device/cpu/threads.h"

namespace onnxgrad::device {
namespace {

constexpr std::int64_t kSharedNumbers = std::int64_t{1} << 15;  // per thread
constexpr std::int64_t kUnit = 64;                              // of whole cache lines
constexpr std::int64_t kLineBytes = 64;
constexpr std::int64_t kAhead = 16;       // rows: enough time for one to come from memory
constexpr std::int64_t kLineSteps = 256;  // of rows that are transposed: they fit the L1 cache

std::int64_t units(std::int64_t count) { return (count + kUnit - 1) / kUnit; }

void fetch(const std::byte* from, std::int64_t bytes) {
  for (std::int64_t i = 0; i < bytes; i += kLineBytes) __builtin_prefetch(from + i);
}

}  // namespace

WideSource source_of_b(const HalfGemmSpec& spec) {
  if (spec.rounds_b) return {.convert = find_rounding(spec.dtype), .size = sizeof(float)};
  return {.convert = find_conversion(spec.dtype, DataType::kFloat32)};
}

void pack_columns(const WideSource& source, const void* b, std::int64_t first, std::int64_t row,
                  const WidePanel& panel) {
  float* to = panel.to;
  for (std::int64_t k = 0; k < panel.steps; ++k) {
    const std::byte* from = source.at(b, first + k * row);
    fetch(from + kAhead * row * source.size, panel.count * source.size);
    source.convert(to, from, panel.count);
    std::fill(to + panel.count, to + panel.width, 0.0F);
    to += panel.width;
  }
}

void pack_rows(const WideSource& source, const void* b, std::int64_t first, std::int64_t row,
               const WidePanel& panel, const GemmTarget<float>& target, float* lines) {
  for (std::int64_t j = 0; j < panel.width; j += kWideLines) {
    const std::int64_t rows = std::clamp<std::int64_t>(panel.count - j, 0, kWideLines);
    for (std::int64_t k = 0; k < panel.steps; k += kLineSteps) {
      const std::int64_t steps = std::min(kLineSteps, panel.steps - k);
      for (std::int64_t i = 0; i < rows; ++i) {
        const std::byte* from = source.at(b, first + (j + i) * row + k);
        if (k + kLineSteps < panel.steps)
          fetch(from + kLineSteps * source.size, steps * source.size);
        source.convert(lines + i * steps, from, steps);
      }
      std::fill(lines + rows * steps, lines + kWideLines * steps, 0.0F);
      target.transpose(lines, steps, panel.to + k * panel.width + j, panel.width, kWideLines,
                       steps);
    }
  }
}

WideOperands wide_operands(const HalfGemmSpec& spec) {
  WideOperands operands{.a_count = spec.m * spec.k,
                        .b_count = spec.k * spec.n,
                        .a = {.convert = find_conversion(spec.dtype, DataType::kFloat32)},
                        .b = source_of_b(spec)};
  operands.threads =
      useful_threads(operands.a_count + operands.b_count, kSharedNumbers, spec.threads);
  const std::int64_t numbers = (units(operands.a_count) + units(operands.b_count)) * kUnit;
  operands.bytes = numbers * static_cast<std::int64_t>(sizeof(float));
  return operands;
}

void WideOperands::convert(const void*& from_a, const void*& from_b, std::byte* scratch) const {
  const std::int64_t a_units = units(a_count);
  auto* wide_a = reinterpret_cast<float*>(scratch);
  float* wide_b = wide_a + a_units * kUnit;
  const auto convert_part = [](const WideSource& source, const void* from, float* to,
                               std::int64_t first, std::int64_t last) {
    if (first < last) source.convert(to + first, source.at(from, first), last - first);
  };
  share_range(threads, a_units + units(b_count), [&](std::int64_t first, std::int64_t last) {
    const std::int64_t split = std::clamp(a_units, first, last);
    convert_part(a, from_a, wide_a, first * kUnit, std::min(split * kUnit, a_count));
    convert_part(b, from_b, wide_b, (split - a_units) * kUnit,
                 std::min((last - a_units) * kUnit, b_count));
  });
  from_a = wide_a;
  from_b = wide_b;
}

}  // namespace onnxgrad::device
