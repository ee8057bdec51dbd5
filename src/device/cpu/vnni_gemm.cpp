#include "device/cpu/vnni_gemm.h"

#include <algorithm>

#include "device/cpu/amx_target.h"
#include "device/cpu/f16_gemm_vnni.h"
#include "device/cpu/gemm_plan.h"

namespace onnxgrad::device {
namespace {

constexpr std::int64_t kBPanelColumns = kVnniMaxVectors * kVnniLanes;

/// Calls f(first column, columns, width in memory) for each panel.
template <class F>
void for_each_b_panel(std::int64_t columns, const F& f) {
  for (std::int64_t j = 0; j < columns; j += kBPanelColumns) {
    const std::int64_t count = std::min(kBPanelColumns, columns - j);
    f(j, count, round_up(count, kVnniLanes));
  }
}

}  // namespace

std::int64_t VnniGemm::padded(std::int64_t steps) { return round_up(steps, 2 * kAmxVnni); }

std::int64_t VnniGemm::packed_size() const {
  return round_up(columns, kVnniLanes) * padded(steps) / 2;
}

std::int64_t VnniGemm::line_size() const { return kVnniLanes * padded(steps) / 2; }

void VnniGemm::pack_rows(const std::uint16_t* b, std::ptrdiff_t row, std::uint32_t* packed) const {
  const std::int64_t pairs = padded(steps) / 2;
  for_each_b_panel(columns, [&](std::int64_t j, std::int64_t count, std::int64_t width) {
    std::uint32_t* to = packed + j * pairs;
    pack_vnni(b + j, row, steps, count, to, width);
    std::fill(to + (steps + 1) / 2 * width, to + pairs * width, 0U);
  });
}

void VnniGemm::pack_columns(const std::uint16_t* b, std::ptrdiff_t row, std::uint32_t* packed,
                            std::uint32_t* lines) const {
  const std::int64_t pairs = padded(steps) / 2;
  for_each_b_panel(columns, [&](std::int64_t first, std::int64_t count, std::int64_t width) {
    device::pack_vnni_columns(isa, b + first * row, row, steps, pairs, count, width,
                              packed + first * pairs, reinterpret_cast<std::uint16_t*>(lines));
  });
}

void VnniGemm::run(const Operands& operands) const {
  const std::int64_t pairs = padded(steps) / 2;
  for_each_b_panel(columns, [&](std::int64_t j, std::int64_t /*count*/, std::int64_t width) {
    if (j >= operands.columns) return;
    VnniPanel panel{.a = reinterpret_cast<const std::byte*>(operands.a),
                    .a_row = operands.a_row * 2,
                    .a_step = 4,
                    .b = operands.packed + j * pairs,
                    .rows = operands.rows,
                    .pairs = padded(operands.steps) / 2,
                    .vectors = static_cast<int>(width / kVnniLanes),
                    .columns = std::min(width, operands.columns - j),
                    .end = {.c = operands.c + j, .c_row = operands.c_row}};
    if (operands.adds) {
      panel.end.start = panel.end.c;
      panel.end.start_row = panel.end.c_row;
    }
    amx->run_b_panel(panel);
  });
}

void pack_vnni_columns(Isa isa, const void* from, std::ptrdiff_t row, std::int64_t steps,
                       std::int64_t pairs, std::int64_t count, std::int64_t width,
                       std::uint32_t* to, std::uint16_t* lines, ConvertFn narrow) {
  // Transposes move bits only, of pairs of elements.
  const GemmTarget<float>& target = gemm_target<float>(isa);
  auto* const out = reinterpret_cast<float*>(to);
  const std::int64_t own = ceil_div(steps, 2);
  std::fill(to + own * width, to + pairs * width, 0U);
  if (narrow == nullptr && row % 2 == 0 && steps % 2 == 0) {
    target.transpose(static_cast<const float*>(from), row / 2, out, width, count, own);
  } else {
    for (std::int64_t j = 0; j < count; j += kVnniLanes) {
      const std::int64_t rows = std::min<std::int64_t>(count - j, kVnniLanes);
      if (narrow == nullptr) {
        pad_rows(static_cast<const std::uint16_t*>(from) + j * row, row, rows, steps, 2 * own,
                 lines);
      }
      for (std::int64_t i = 0; narrow != nullptr && i < rows; ++i) {
        narrow(lines + i * 2 * own, static_cast<const float*>(from) + (j + i) * row, steps);
        if (steps < 2 * own) lines[i * 2 * own + steps] = 0;
      }
      target.transpose(reinterpret_cast<const float*>(lines), own, out + j, width, rows, own);
    }
  }
  for (std::int64_t p = 0; count < width && p < own; ++p) {
    std::fill(to + p * width + count, to + (p + 1) * width, 0U);
  }
}

void pad_rows(const std::uint16_t* from, std::ptrdiff_t row, std::int64_t rows, std::int64_t steps,
              std::int64_t length, std::uint16_t* to) {
  for (std::int64_t i = 0; i < rows; ++i) {
    std::copy_n(from + i * row, steps, to + i * length);
    std::fill(to + i * length + steps, to + (i + 1) * length, std::uint16_t{0});
  }
}

void pad_columns(Isa isa, const std::uint16_t* from, std::ptrdiff_t row, std::int64_t rows,
                 std::int64_t steps, std::uint16_t* to, std::uint32_t* lines) {
  const GemmTarget<float>& target = gemm_target<float>(isa);
  const std::int64_t length = round_up(rows, kVnniLanes);
  const std::int64_t pairs = VnniGemm::padded(steps) / 2;
  for (std::int64_t p = 0; p < pairs; p += kVnniLanes) {
    const std::int64_t taken = std::min(steps - 2 * p, 2 * kVnniLanes);
    pack_vnni(from + 2 * p * row, row, taken, rows, lines, length);
    std::fill(lines + (taken + 1) / 2 * length, lines + kVnniLanes * length, 0U);
    // A transpose moves bits only.
    target.transpose(reinterpret_cast<const float*>(lines), length,
                     reinterpret_cast<float*>(to) + p, pairs, kVnniLanes, rows);
  }
}

}  // namespace onnxgrad::device
