#include "device/cpu/gemm_split_operand.h"

#include <algorithm>
#include <bit>

namespace onnxgrad::device {
namespace {

// Size of a piece of a matrix whose conversion fills `lines`: pieces of long rows.
constexpr std::int64_t kColumnsOfPiece = 128;
constexpr std::int64_t kStepsOfPiece = SplitOperand::kLines / kColumnsOfPiece;

/// Whether `value` is infinite or rounds to an infinite bfloat16; false for NaN, whose parts are
/// NaN.
bool rounds_to_infinity(float value) {
  constexpr std::uint32_t kNoSign = 0x7FFFFFFF;
  constexpr std::uint32_t kLeast = 0x7F7F8000;
  constexpr std::uint32_t kInfinity = 0x7F800000;
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value) & kNoSign;
  return bits >= kLeast && bits <= kInfinity;
}

}  // namespace

void SplitOperand::convert(const Range& range, std::ptrdiff_t line_row) const {
  source.block(
      lines, line_row,
      {matrix, index(range.first, range.step), row, are_steps_adjacent ? range.count : range.steps,
       are_steps_adjacent ? range.steps : range.count});
}

SplitOperand::Numbers SplitOperand::numbers(const Range& range) const {
  const float* from = lines;
  std::ptrdiff_t line = are_steps_adjacent ? kNumberSteps : kSplitBlock;
  if (source) {
    convert(range, line);
  } else {
    from = static_cast<const float*>(matrix) + index(range.first, range.step);
    line = row;
  }
  return are_steps_adjacent ? Numbers{from, line, 1} : Numbers{from, 1, line};
}

bool SplitOperand::pack_groups(const Range& range, std::byte* to, std::ptrdiff_t group) const {
  SplitSource packed{.row = row,
                     .count = range.count,
                     .steps = range.steps,
                     .to = to,
                     .group = group,
                     .parts = parts};
  if (!source) {
    packed.from = static_cast<const float*>(matrix) + index(range.first, range.step);
    return pack_fn(packed);
  }
  const std::int64_t most = are_steps_adjacent ? kSplitBlock : kColumnsOfPiece;
  const std::int64_t most_steps = are_steps_adjacent ? kNumberSteps : kStepsOfPiece;
  packed.from = lines;
  packed.row = are_steps_adjacent ? most_steps : most;
  bool is_good = true;
  for (std::int64_t i = 0; i < range.count; i += most) {
    packed.count = std::min(most, range.count - i);
    for (std::int64_t k = 0; k < range.steps; k += most_steps) {
      packed.steps = std::min(most_steps, range.steps - k);
      convert({range.first + i, packed.count, range.step + k, packed.steps}, packed.row);
      packed.to = to + i / kSplitGroup * group + k / kSplitSteps * split_slice(parts);
      is_good &= pack_fn(packed);
    }
  }
  return is_good;
}

void SplitOperand::pack(const Range& range, std::byte* to, std::ptrdiff_t group) const {
  const std::int64_t groups = ceil_div(range.count, kSplitGroup);
  const bool is_good = pack_groups(range, to, group);
  for (std::int64_t g = 0; g < groups; ++g) {
    Range of_group = range;
    of_group.first += g * kSplitGroup;
    of_group.count = std::min(kSplitGroup, range.count - g * kSplitGroup);
    to[(g + 1) * group - 1] = std::byte{!is_good && has_infinity(of_group)};
  }
}

bool SplitOperand::has_infinity(const Range& range) const {
  for (std::int64_t k = 0; k < range.steps; k += kNumberSteps) {
    const std::int64_t steps = std::min(kNumberSteps, range.steps - k);
    const Numbers found = numbers({range.first, range.count, range.step + k, steps});
    for (std::int64_t i = 0; i < range.count; ++i) {
      for (std::int64_t s = 0; s < steps; ++s) {
        if (rounds_to_infinity(found.from[i * found.row + s * found.step])) return true;
      }
    }
  }
  return false;
}

}  // namespace onnxgrad::device
