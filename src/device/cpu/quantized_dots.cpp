#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "device/cpu/gemm.h"
#include "device/cpu/quantized_matrix.h"
#include "device/cpu/threads.h"

// C = A W' for few rows of A, or A W for one: to pack panels of W would take longer than to
// multiply them. Threads split the rows or columns of W that are columns of C.

namespace onnxgrad::device {
namespace {

constexpr std::int64_t kMostRows = 8;     // of A
constexpr std::int64_t kRowsAtOnce = 32;  // of W, whose sums are on the stack
constexpr std::int64_t kFewestRows = 8;   // of W that share scales, for sums of rows
constexpr std::int64_t kSharedElements = std::int64_t{1} << 15;

float addend(GemmStart kind, const void* from, std::int64_t at, std::int64_t column) {
  if (kind == GemmStart::kZero) return 0;
  return static_cast<const float*>(from)[kind == GemmStart::kMatrix ? at : column];
}

void finish(const GemmSpec& spec, const GemmOperands& operands, std::int64_t row,
            std::int64_t column, float sum) {
  const std::int64_t at = row * spec.n + column;
  float c = static_cast<float>(spec.alpha * operands.factor) * sum;
  c += addend(spec.start, operands.start, at, column);
  for (std::size_t i = 0; i < kGemmMoreAddends && spec.more[i] != GemmStart::kZero; ++i) {
    c += addend(spec.more[i], operands.more[i], at, column);
  }
  if (spec.relu && c < 0) c = 0;
  static_cast<float*>(operands.c)[at] = c;
}

void run_dots(const void* data, const GemmOperands& operands) {
  const auto& spec = *static_cast<const GemmSpec*>(data);
  const std::int64_t units = base::ceil_div(spec.n, kRowsAtOnce);
  on_threads(spec.threads, chunks_of(spec.threads, units), [&](const Chunk& chunk) {
    std::array<float, kRowsAtOnce * kMostRows> sums;
    const std::int64_t end = std::min(chunk.last(units) * kRowsAtOnce, spec.n);
    for (std::int64_t r = chunk.first(units) * kRowsAtOnce; r < end; r += kRowsAtOnce) {
      const std::int64_t count = std::min(kRowsAtOnce, end - r);
      run_quantized_dots(spec.cpu.isa, {.matrix = static_cast<const QuantizedMatrix*>(operands.b),
                                        .a = static_cast<const float*>(operands.a),
                                        .m = spec.m,
                                        .first = r,
                                        .count = count,
                                        .sums = sums.data()});
      for (std::int64_t j = 0; j < count; ++j) {
        for (std::int64_t i = 0; i < spec.m; ++i) {
          finish(spec, operands, i, r + j, sums[static_cast<std::size_t>(j * spec.m + i)]);
        }
      }
    }
  });
}

void run_row_sums(const void* data, const GemmOperands& operands) {
  const auto& spec = *static_cast<const GemmSpec*>(data);
  constexpr std::int64_t kMost = QuantizedRowSums::kMostColumns;
  const std::int64_t units = base::ceil_div(spec.n, kMost);
  on_threads(spec.threads, chunks_of(spec.threads, units), [&](const Chunk& chunk) {
    std::array<float, kMost> sums;
    const std::int64_t end = std::min(chunk.last(units) * kMost, spec.n);
    for (std::int64_t c = chunk.first(units) * kMost; c < end; c += kMost) {
      const std::int64_t count = std::min(kMost, end - c);
      run_quantized_row_sums(spec.cpu.isa,
                             {.matrix = static_cast<const QuantizedMatrix*>(operands.b),
                              .a = static_cast<const float*>(operands.a),
                              .k = spec.k,
                              .first = c,
                              .count = count,
                              .sums = sums.data()});
      for (std::int64_t j = 0; j < count; ++j) {
        finish(spec, operands, 0, c + j, sums[static_cast<std::size_t>(j)]);
      }
    }
  });
}

}  // namespace

bool suits_quantized_dots(const GemmSpec& spec, const QuantizedMatrix& matrix) {
  const bool is_plain = !spec.transpose_a && !spec.a_source && spec.b_source.convert == nullptr &&
                        !spec.is_scaled && !spec.sums_columns && !spec.has_consumer;
  if (!is_plain || spec.m < 1) return false;
  return spec.transpose_b ? spec.m <= kMostRows : spec.m == 1 && matrix.row_block >= kFewestRows;
}

PreparedGemm prepare_quantized_dots(const GemmSpec& spec) {
  auto kept = std::make_shared<GemmSpec>(spec);
  if (spec.n * spec.k < kSharedElements) kept->threads = 1;
  return {.fn = spec.transpose_b ? run_dots : run_row_sums,
          .data = std::move(kept),
          .scratch_bytes = 0,
          .label = fmt::format("{} {}x{}x{}", spec.transpose_b ? "dots" : "sums of rows", spec.m,
                               spec.n, spec.k)};
}

}  // namespace onnxgrad::device
