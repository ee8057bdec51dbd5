#include <fmt/format.h>

#include "ops/math/product_cuda.h"

namespace onnxgrad::ops {
namespace {

// A block of 256 threads computes a tile from tiles of the factors in shared memory. 16 steps of
// the sum are added up before they join it, so that errors do not grow with k.
constexpr const char* kMain = R"(
  OG_SHARED og_s left[og_depth][og_tile + 1];
  OG_SHARED og_s right[og_depth][og_tile + 1];
  const og_i64 m = a.integer(3), n = a.integer(4), k = a.integer(5);
  const og_i64 a_row = a.integer(6), a_column = a.integer(7);
  const og_i64 b_row = a.integer(8), b_column = a.integer(9);
  const int thread = threadIdx.x;
  const int own_row = thread / 16, own_column = thread % 16;
  const og_i64 first_row = (og_i64)blockIdx.x * og_tile;
  const og_i64 first_column = (og_i64)blockIdx.y * og_tile;
  for (og_i64 matrix = blockIdx.z; matrix < a.integer(10); matrix += gridDim.z) {
    const og_i64 inner = matrix % a.integer(12), rest = matrix / a.integer(12);
    const og_i64 middle = rest % a.integer(11), outer = rest / a.integer(11);
    const og_a* const x = a.pointer<og_a>(0) + outer * a.integer(13) + middle * a.integer(14) +
                          inner * a.integer(15);
    const og_b* const y = a.pointer<og_b>(1) + outer * a.integer(16) + middle * a.integer(17) +
                          inner * a.integer(18);
    og_s sums[og_per][og_per];
    for (int i = 0; i < og_per; ++i) {
      for (int j = 0; j < og_per; ++j) sums[i][j] = 0;
    }
    for (og_i64 first = 0; first < k; first += og_depth) {
      // Neighbouring threads read neighbouring elements.
      for (int i = 0; i < og_per; ++i) {
        const int line = a_column == 1 ? thread / og_depth + i * 16 : thread % og_tile;
        const int step = a_column == 1 ? thread % og_depth : thread / og_tile + i * og_lines;
        const bool is_in = first_row + line < m && first + step < k;
        left[step][line] =
            is_in ? og_get_a(x, (first_row + line) * a_row + (first + step) * a_column) : (og_s)0;
      }
      for (int i = 0; i < og_per; ++i) {
        const int line = b_column == 1 ? thread % og_tile : thread / og_depth + i * 16;
        const int step = b_column == 1 ? thread / og_tile + i * og_lines : thread % og_depth;
        const bool is_in = first_column + line < n && first + step < k;
        right[step][line] =
            is_in ? og_get_b(y, (first + step) * b_row + (first_column + line) * b_column)
                  : (og_s)0;
      }
      __syncthreads();
      og_s part[og_per][og_per];
      for (int i = 0; i < og_per; ++i) {
        for (int j = 0; j < og_per; ++j) part[i][j] = 0;
      }
      for (int p = 0; p < og_depth; ++p) {
        for (int i = 0; i < og_per; ++i) {
          for (int j = 0; j < og_per; ++j) {
            part[i][j] = og_mul_add(left[p][own_row + i * 16], right[p][own_column + j * 16],
                                    part[i][j]);
          }
        }
      }
      for (int i = 0; i < og_per; ++i) {
        for (int j = 0; j < og_per; ++j) sums[i][j] = sums[i][j] + part[i][j];
      }
      __syncthreads();
    }
    for (int i = 0; i < og_per; ++i) {
      for (int j = 0; j < og_per; ++j) {
        const og_i64 row = first_row + own_row + i * 16;
        const og_i64 column = first_column + own_column + j * 16;
        if (row >= m || column >= n) continue;
        const og_i64 at = (matrix * m + row) * n + column;
        og_set_p(a.pointer<og_p>(2), at, sums[i][j]);
)";

}  // namespace

std::string product_tiles_text(std::size_t operands, std::size_t results) {
  std::string text = R"(
enum { og_depth = 16, og_per = og_tile / 16, og_lines = 256 / og_tile };
OG_FUNCTION float og_mul_add(float a, float b, float sum) { return og_fma(a, b, sum); }
OG_FUNCTION double og_mul_add(double a, double b, double sum) { return og_fma(a, b, sum); }
OG_FUNCTION og_u64 og_mul_add(og_u64 a, og_u64 b, og_u64 sum) { return a * b + sum; }
)";
  const auto first = static_cast<std::size_t>(kProductWords);
  text += fmt::format("OG_KERNEL(og_main, {}) {{\n", first + operands + results);
  if (results > 0) {
    text += fmt::format("  const void* in[{}];\n  void* out[{}];\n  in[0] = a.pointer<void>(2);\n",
                        operands, results);
    for (std::size_t i = 1; i < operands; ++i) {
      text += fmt::format("  in[{}] = a.pointer<void>({});\n", i, first + i);
    }
    for (std::size_t i = 0; i < results; ++i) {
      text += fmt::format("  out[{}] = a.pointer<void>({});\n", i, first + operands + i);
    }
  }
  text += kMain;
  if (results > 0) text += "        og_element(in, out, at);\n";
  return text + "      }\n    }\n  }\n}\n";
}

std::string column_sums_text() {
  return R"(
OG_KERNEL(og_columns, 5) {
  OG_SHARED double sums[8][33];
  const og_c* const c = a.pointer<og_c>(0);
  double* const to = a.pointer<double>(1);
  const og_i64 rows = a.integer(2), columns = a.integer(3), parts = a.integer(4);
  const og_i64 part_of = (rows + parts - 1) / parts;
  const og_i64 end = (blockIdx.y + 1) * part_of < rows ? (blockIdx.y + 1) * part_of : rows;
  const unsigned line = threadIdx.x / 32, lane = threadIdx.x % 32;
  const og_i64 column = (og_i64)blockIdx.x * 32 + lane;
  double sum = 0;
  for (og_i64 row = blockIdx.y * part_of + line; row < end && column < columns; row += 8) {
    sum = sum + (double)og_get_c(c, row * columns + column);
  }
  sums[line][lane] = sum;
  __syncthreads();
  if (line == 0 && column < columns) {
    for (int i = 1; i < 8; ++i) sum = sum + sums[i][lane];
    to[blockIdx.y * columns + column] = sum;
  }
  __syncthreads();
}
OG_KERNEL(og_parts, 4) {
  const double* const parts = a.pointer<double>(0);
  const og_i64 columns = a.integer(2);
  for (og_i64 i = og_first(); i < columns; i += og_stride()) {
    double sum = 0;
    for (og_i64 part = 0; part < a.integer(3); ++part) sum = sum + parts[part * columns + i];
    og_set_r(a.pointer<og_r>(1), i, (og_s)sum);
  }
}
)";
}

}  // namespace onnxgrad::ops
