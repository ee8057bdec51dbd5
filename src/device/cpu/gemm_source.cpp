#include "device/cpu/gemm_source.h"

#include <algorithm>

#include "device/cpu/gemm_tile.h"
#include "device/isa.h"

namespace onnxgrad::device {

GemmSource source_of_f16(Isa isa, DataType half, bool rounds) {
  return {.convert = find_widening(isa, half, rounds),
          .size = rounds ? 4 : 2,
          .parts = half == DataType::kBfloat16 ? 1 : 2};
}

void transpose_source(const GemmSource& source, const SourceBlock& block, std::int64_t width,
                      const GemmTarget<float>& target, float* to, std::ptrdiff_t to_row,
                      float* lines) {
  for (std::int64_t i = 0; i < width; i += kSourceLines) {
    const std::int64_t count = std::min(kSourceLines, width - i);
    const std::int64_t rows = std::clamp<std::int64_t>(block.rows - i, 0, count);
    for (std::int64_t j = 0; j < block.columns; j += kSourceSteps) {
      const std::int64_t columns = std::min(kSourceSteps, block.columns - j);
      source.block(lines, kSourceSteps,
                   {block.matrix, block.first + i * block.row + j, block.row, rows, columns});
      std::fill(lines + rows * kSourceSteps, lines + count * kSourceSteps, 0.0F);
      target.transpose(lines, kSourceSteps, to + j * to_row + i, to_row, count, columns);
    }
  }
}

}  // namespace onnxgrad::device
