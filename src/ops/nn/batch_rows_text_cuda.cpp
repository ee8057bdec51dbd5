#include "ops/nn/batch_rows_text_cuda.h"

#include <string>

namespace onnxgrad::ops {
namespace {

constexpr const char* kRows = R"(
struct og_rows { og_i64 begin, end; };
OG_FUNCTION og_rows og_rows_of_block(og_i64 rows) {
  const og_i64 part = (rows + gridDim.y - 1) / gridDim.y;
  const og_i64 begin = blockIdx.y * part;
  return {begin, begin + part < rows ? begin + part : rows};
}
// Sums of the columns [first, first + blockDim.x) over the parts.
OG_FUNCTION double og_combined(const double* parts, og_i64 count, og_i64 channels, og_i64 c) {
  double sum = 0;
  if (c < channels) {
    for (og_i64 part = threadIdx.y; part < count; part += blockDim.y) {
      sum += parts[2 * part * channels + c];
    }
  }
  return og_fold_rows<og_sum>(sum);
}
// Squares are taken of the distance from the first row, which is written behind the parts.
OG_FUNCTION void og_moments_of_rows(const og_x* x, double* moments, og_i64 channels, og_i64 rows) {
  const og_rows own = og_rows_of_block(rows);
  for (og_i64 first = (og_i64)blockIdx.x * blockDim.x; first < channels; first += og_columns()) {
    const og_i64 c = first + threadIdx.x;
    const bool is_in = c < channels && rows > 0;
    const double shift = is_in ? (double)og_get(x[c]) : 0;
    double sum = 0, squares = 0;
    for (og_i64 r = own.begin + threadIdx.y; is_in && r < own.end; r += blockDim.y) {
      const double value = (double)og_get(x[r * channels + c]) - shift;
      sum += value;
      squares += value * value;
    }
    sum = og_fold_rows<og_sum>(sum);
    squares = og_fold_rows<og_sum>(squares);
    if (threadIdx.y != 0 || c >= channels) continue;
    moments[2 * (og_i64)blockIdx.y * channels + c] = sum;
    moments[(2 * (og_i64)blockIdx.y + 1) * channels + c] = squares;
    if (blockIdx.y == 0) moments[2 * (og_i64)gridDim.y * channels + c] = shift;
  }
}
OG_FUNCTION og_statistics og_combined_moments(const double* moments, og_i64 parts,
                                              og_i64 channels, og_i64 rows, og_i64 c) {
  const double mean = og_combined(moments, parts, channels, c) / (double)rows;
  const double square = og_combined(moments + channels, parts, channels, c) / (double)rows;
  if (c >= channels || rows == 0) return {0, 0};
  const double variance = square - mean * mean;
  return {moments[2 * parts * channels + c] + mean, variance > 0 ? variance : 0};
}
)";

constexpr const char* kForwardRows = R"(
OG_KERNEL(og_row_moments, 24) {
  og_moments_of_rows(a.pointer<og_x>(0), a.pointer<double>(22), a.integer(11), a.integer(14));
}

OG_KERNEL(og_row_main, 24) {
  const og_x* const x = a.pointer<og_x>(0);
  const og_x* const residual = a.pointer<og_x>(5);
  og_x* const y = a.pointer<og_x>(6);
  const og_i64 channels = a.integer(11), rows = a.integer(14);
  const og_rows own = og_rows_of_block(rows);
  for (og_i64 first = (og_i64)blockIdx.x * blockDim.x; first < channels; first += og_columns()) {
    const og_i64 c = first + threadIdx.x;
    const bool is_in = c < channels;
    og_statistics s = {0, 0};
    if (a.integer(21) != 0) {
      s = og_combined_moments(a.pointer<double>(22), a.integer(23), channels, rows, c);
    } else if (is_in) {
      s = {(double)a.pointer<og_s>(3)[c], (double)a.pointer<og_s>(4)[c]};
    }
    const double inverse = 1 / sqrt(s.variance + a.real(17));
    if (blockIdx.y == 0 && threadIdx.y == 0 && is_in) {
      for (int k = 0; k < 2; ++k) {
        og_s* const running = a.pointer<og_s>(7 + k);
        if (running == 0) continue;
        const double old = (double)a.pointer<og_s>(3 + k)[c];
        const double current = k == 0 ? s.mean : s.variance;
        running[c] = (og_s)(old * a.real(18) + current * (1 - a.real(18)));
      }
      if (a.pointer<float>(9) != 0) a.pointer<float>(9)[c] = (float)s.mean;
      if (a.pointer<float>(10) != 0) a.pointer<float>(10)[c] = (float)inverse;
    }
    if (y == 0 || !is_in) continue;
    const og_t mean = (og_t)s.mean;
    const double scale = (double)a.pointer<og_c>(1)[c];
    const og_t slope = og_saves ? (og_t)scale * (og_t)inverse : (og_t)(scale * inverse);
    const og_t bias = (og_t)a.pointer<og_c>(2)[c];
    for (og_i64 r = own.begin + threadIdx.y; r < own.end; r += blockDim.y) {
      const og_i64 i = r * channels + c;
      og_t value = ((og_t)og_get(x[i]) - mean) * slope + bias;
      if (residual != 0) value += (og_t)og_get(residual[i]);
      og_set(y, i, og_restrict(a, 19, value));
    }
  }
}
)";

constexpr const char* kGradientRows = R"(
OG_KERNEL(og_row_moments, 25) {
  og_moments_of_rows(a.pointer<og_x>(1), a.pointer<double>(23), a.integer(12), a.integer(15));
}

struct og_channel { double mean, inverse; og_t slope, bias; };
template <class W>
OG_FUNCTION og_channel og_channel_of(const W& a, og_i64 c) {
  const og_i64 channels = a.integer(12);
  og_channel own = {0, 0, 0, 0};
  if (og_saves) {
    if (c >= channels) return own;
    own.mean = (double)a.template pointer<float>(4)[c];
    own.inverse = (double)a.template pointer<float>(5)[c];
    own.bias = (og_t)a.template pointer<og_c>(3)[c];
  } else {
    const og_statistics s = og_combined_moments(a.template pointer<double>(23), a.integer(24),
                                                channels, a.integer(15), c);
    own.mean = s.mean;
    own.inverse = 1 / sqrt(s.variance + a.real(18));
    if (c >= channels) return own;
  }
  own.slope = (og_t)(double)a.template pointer<og_c>(2)[c] * (og_t)own.inverse;
  return own;
}

OG_KERNEL(og_row_sums, 25) {
  const og_x* const x = a.pointer<og_x>(1);
  double* const sums = a.pointer<double>(22);
  const og_i64 channels = a.integer(12);
  const og_rows own = og_rows_of_block(a.integer(15));
  for (og_i64 first = (og_i64)blockIdx.x * blockDim.x; first < channels; first += og_columns()) {
    const og_i64 c = first + threadIdx.x;
    const og_channel channel = og_channel_of(a, c);
    double sum = 0, dot = 0;
    for (og_i64 r = own.begin + threadIdx.y; c < channels && r < own.end; r += blockDim.y) {
      const og_i64 i = r * channels + c;
      const og_t g = og_cotangent(a, i, (og_t)channel.mean, channel.slope, channel.bias);
      sum += (double)g;
      dot += (double)g * ((double)og_get(x[i]) - channel.mean);
    }
    sum = og_fold_rows<og_sum>(sum);
    dot = og_fold_rows<og_sum>(dot);
    if (threadIdx.y != 0 || c >= channels) continue;
    sums[2 * (og_i64)blockIdx.y * channels + c] = sum;
    sums[(2 * (og_i64)blockIdx.y + 1) * channels + c] = dot;
  }
}

OG_KERNEL(og_row_main, 25) {
  const og_x* const x = a.pointer<og_x>(1);
  og_g* const dx = a.pointer<og_g>(8);
  og_g* const stored = a.pointer<og_g>(11);
  const double* const sums = a.pointer<double>(22);
  const og_i64 channels = a.integer(12), rows = a.integer(15);
  const og_rows own = og_rows_of_block(rows);
  for (og_i64 first = (og_i64)blockIdx.x * blockDim.x; first < channels; first += og_columns()) {
    const og_i64 c = first + threadIdx.x;
    const og_channel channel = og_channel_of(a, c);
    const double sum = og_combined(sums, a.integer(24), channels, c);
    const double dot = og_combined(sums + channels, a.integer(24), channels, c) * channel.inverse;
    if (c >= channels) continue;
    if (blockIdx.y == 0 && threadIdx.y == 0) {
      if (a.pointer<og_c>(9) != 0) a.pointer<og_c>(9)[c] = (og_c)dot;
      if (a.pointer<og_c>(10) != 0) a.pointer<og_c>(10)[c] = (og_c)sum;
    }
    const double f = (double)a.pointer<og_c>(2)[c] * channel.inverse;
    const og_t on_g = (og_t)f, on_x = (og_t)(-f * channel.inverse * dot / (double)rows);
    const og_t shift = (og_t)(-f * sum / (double)rows);
    for (og_i64 r = own.begin + threadIdx.y; r < own.end; r += blockDim.y) {
      const og_i64 i = r * channels + c;
      const og_t g = og_cotangent(a, i, (og_t)channel.mean, channel.slope, channel.bias);
      const og_t centred = (og_t)((double)og_get(x[i]) - channel.mean);
      if (stored != 0) og_set(stored, i, g);
      if (dx != 0) og_set(dx, i, on_g * g + on_x * centred + shift);
    }
  }
}
)";

}  // namespace

std::string_view batch_rows_forward_text() {
  static const std::string text = std::string(kRows) + kForwardRows;
  return text;
}

std::string_view batch_rows_gradient_text() {
  static const std::string text = std::string(kRows) + kGradientRows;
  return text;
}

}  // namespace onnxgrad::ops
