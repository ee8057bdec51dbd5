#include "ops/nn/conv/conv_text_cuda.h"

#include "ops/nn/window_text_cuda.h"

namespace onnxgrad::ops {

std::string conv_prelude_text() {
  return std::string(window_text()) + R"(
struct og_conv {
  og_i64 batch, groups, outs, ins;
  og_axis d, h, w;
  og_i64 input, output, taps;  // products of the axes
};
template <class Words>
OG_FUNCTION og_conv og_conv_of(const Words& a) {
  og_conv c;
  c.batch = a.integer(6);
  c.groups = a.integer(7);
  c.outs = a.integer(8);
  c.ins = a.integer(9);
  c.d = og_axis_at(a, 10);
  c.h = og_axis_at(a, 17);
  c.w = og_axis_at(a, 24);
  c.input = (og_i64)c.d.input * c.h.input * c.w.input;
  c.output = (og_i64)c.d.output * c.h.output * c.w.output;
  c.taps = (og_i64)c.d.kernel * c.h.kernel * c.w.kernel;
  return c;
}
OG_FUNCTION og_place og_split_input(const og_conv& c, og_i64 i) {
  return og_split(i, c.d.input, c.h.input, c.w.input);
}
OG_FUNCTION og_place og_split_output(const og_conv& c, og_i64 i) {
  return og_split(i, c.d.output, c.h.output, c.w.output);
}
OG_FUNCTION og_place og_split_taps(const og_conv& c, og_i64 i) {
  return og_split(i, c.d.kernel, c.h.kernel, c.w.kernel);
}
// The position that a tap of a window reads, in an image of x; -1: padding.
OG_FUNCTION og_i64 og_input_at(const og_conv& c, const og_place& window, const og_place& tap) {
  const int d = window.d * c.d.stride + tap.d * c.d.dilation - c.d.pad;
  const int h = window.h * c.h.stride + tap.h * c.h.dilation - c.h.pad;
  const int w = window.w * c.w.stride + tap.w * c.w.dilation - c.w.pad;
  if (d < 0 || d >= c.d.input || h < 0 || h >= c.h.input || w < 0 || w >= c.w.input) return -1;
  return ((og_i64)d * c.h.input + h) * c.w.input + w;
}
// The window of which a tap reads a position; -1: there is none.
OG_FUNCTION int og_window(const og_axis& axis, int position, int tap) {
  const int start = position + axis.pad - tap * axis.dilation;
  if (start < 0 || start % axis.stride != 0) return -1;
  const int window = start / axis.stride;
  return window < axis.output ? window : -1;
}
OG_FUNCTION og_i64 og_output_at(const og_conv& c, const og_place& position, const og_place& tap) {
  const int d = og_window(c.d, position.d, tap.d);
  const int h = og_window(c.h, position.h, tap.h);
  const int w = og_window(c.w, position.w, tap.w);
  if (d < 0 || h < 0 || w < 0) return -1;
  return ((og_i64)d * c.h.output + h) * c.w.output + w;
}
// Stores a result of the passes 0 and 1, element `at` of channel `channel`.
template <class Words>
OG_FUNCTION void og_finish(const Words& a, og_i64 at, og_i64 channel, og_s value) {
  if (a.integer(3) != 0) value = value + og_get_b(a.template pointer<og_b>(3), channel);
  if (og_pass == 1) {
    og_set_x(a.template pointer<og_x>(0), at, value);
    return;
  }
  if (a.integer(4) != 0) value = value + og_get_r(a.template pointer<og_r>(4), at);
  const og_s low = (og_s)a.real(32), high = (og_s)a.real(33);
  value = value < low ? low : value > high ? high : value;  // NaN stays NaN
  og_set_y(a.template pointer<og_y>(2), at, value);
}
)";
}

std::string conv_tiles_text() {
  return R"(
enum { og_depth = 16, og_per = og_tile / 16, og_lines = 256 / og_tile };
OG_KERNEL(og_tiles, 34) {
  OG_SHARED og_s left[og_depth][og_tile + 1];
  OG_SHARED og_s right[og_depth][og_tile + 1];
  const og_x* const x = a.pointer<og_x>(0);
  const og_w* const w = a.pointer<og_w>(1);
  const og_y* const y = a.pointer<og_y>(2);
  const og_conv c = og_conv_of(a);
  const og_i64 splits = a.integer(31);
  const og_i64 group = blockIdx.z / splits, split = blockIdx.z % splits;
  const og_i64 rows = og_pass == 1 ? c.ins : c.outs;
  const og_i64 columns =
      og_pass == 0 ? c.batch * c.output : og_pass == 1 ? c.batch * c.input : c.ins * c.taps;
  const og_i64 depth =
      og_pass == 0 ? c.ins * c.taps : og_pass == 1 ? c.outs * c.taps : c.batch * c.output;
  const og_i64 part_of = (depth + splits - 1) / splits;
  const og_i64 end = (split + 1) * part_of < depth ? (split + 1) * part_of : depth;
  const og_i64 first_row = (og_i64)blockIdx.y * og_tile, first_column = (og_i64)blockIdx.x * og_tile;
  const int thread = threadIdx.x;
  const int own_row = thread / 16, own_column = thread % 16;

  // A thread loads one column of the right matrix, and one step of the left one.
  const og_i64 column = first_column + thread % og_tile;
  const bool has_column = column < columns;
  const og_i64 known_column = has_column ? column : 0;
  const og_place at = og_pass == 0   ? og_split_output(c, known_column)
                      : og_pass == 1 ? og_split_input(c, known_column)
                                     : og_split_taps(c, known_column);

  og_s sums[og_per][og_per];
  for (int i = 0; i < og_per; ++i) {
    for (int j = 0; j < og_per; ++j) sums[i][j] = 0;
  }
  for (og_i64 first = split * part_of; first < end; first += og_depth) {
    {
      const og_i64 k = first + thread % og_depth;
      og_i64 step = 0;  // from `row` to the element
      og_i64 stride = 1;
      if (k < end && og_pass == 0) {
        step = group * c.outs * c.ins * c.taps + k;
        stride = c.ins * c.taps;
      } else if (k < end && og_pass == 1) {
        step = (group * c.outs + k / c.taps) * c.ins * c.taps + k % c.taps;
        stride = c.taps;
      } else if (k < end) {
        step = (k / c.output * c.groups + group) * c.outs * c.output + k % c.output;
        stride = c.output;
      }
      for (int i = 0; i < og_per; ++i) {
        const int line = thread / og_depth + i * 16;
        const og_i64 row = first_row + line;
        og_s value = 0;
        if (k < end && row < rows) {
          const og_i64 element = step + row * stride;
          value = og_pass == 2 ? og_get_y(y, element) : og_get_w(w, element);
        }
        left[thread % og_depth][line] = value;
      }
    }
    for (int line = thread / og_tile; line < og_depth; line += og_lines) {
      const og_i64 k = first + line;
      og_s value = 0;
      if (k < end && has_column) {
        if (og_pass == 1) {
          const og_place tap = og_split_taps(c, k);
          const og_i64 element = og_output_at(c, at, tap);
          if (element >= 0) {
            value = og_get_y(
                y, ((at.outer * c.groups + group) * c.outs + tap.outer) * c.output + element);
          }
        } else {
          const og_place other = og_pass == 0 ? og_split_taps(c, k) : og_split_output(c, k);
          const og_place& window = og_pass == 0 ? at : other;
          const og_place& tap = og_pass == 0 ? other : at;
          const og_i64 element = og_input_at(c, window, tap);
          if (element >= 0) {
            value = og_get_x(
                x, ((window.outer * c.groups + group) * c.ins + tap.outer) * c.input + element);
          }
        }
      }
      right[line][thread % og_tile] = value;
    }
    __syncthreads();
    og_s part[og_per][og_per];
    for (int i = 0; i < og_per; ++i) {
      for (int j = 0; j < og_per; ++j) part[i][j] = 0;
    }
    for (int p = 0; p < og_depth; ++p) {
      for (int i = 0; i < og_per; ++i) {
        for (int j = 0; j < og_per; ++j) {
          part[i][j] = og_fma(left[p][own_row + i * 16], right[p][own_column + j * 16], part[i][j]);
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
      const og_i64 row = first_row + own_row + i * 16, to = first_column + own_column + j * 16;
      if (row >= rows || to >= columns) continue;
      if (og_pass == 2) {
        const og_i64 element = (group * c.outs + row) * columns + to;
        if (splits == 1) {
          og_set_w(a.pointer<og_w>(1), element, sums[i][j]);
        } else {
          a.pointer<og_s>(5)[split * c.groups * rows * columns + element] = sums[i][j];
        }
        continue;
      }
      const og_i64 size = og_pass == 0 ? c.output : c.input;
      const og_i64 channel = group * rows + row;
      og_finish(a, (to / size * c.groups * rows + channel) * size + to % size, channel, sums[i][j]);
    }
  }
}
)";
}

std::string conv_sum_text() {
  return R"(
OG_KERNEL(og_sum, 4) {
  const og_s* const partial = a.pointer<og_s>(0);
  const og_i64 weights = a.integer(2);
  for (og_i64 i = og_first(); i < weights; i += og_stride()) {
    og_s sum = 0;
    for (og_i64 split = 0; split < a.integer(3); ++split) sum = sum + partial[split * weights + i];
    og_set_w(a.pointer<og_w>(1), i, sum);
  }
}
)";
}

std::string conv_direct_text() {
  return R"(
OG_KERNEL(og_direct, 34) {
  const og_x* const x = a.pointer<og_x>(0);
  const og_w* const w = a.pointer<og_w>(1);
  const og_y* const y = a.pointer<og_y>(2);
  const og_conv c = og_conv_of(a);
  const og_i64 own = og_pass == 0 ? c.outs : c.ins, others = og_pass == 0 ? c.ins : c.outs;
  const og_i64 size = og_pass == 0 ? c.output : c.input;
  const og_i64 count = c.batch * c.groups * own * size;
  for (og_i64 i = og_first(); i < count; i += og_stride()) {
    const og_i64 plane = i / size, channel = plane % (c.groups * own);
    const og_i64 image = plane / (c.groups * own), group = channel / own;
    const og_place at = og_pass == 0 ? og_split_output(c, i % size) : og_split_input(c, i % size);
    og_s sum = 0;
    for (og_i64 other = 0; other < others; ++other) {
      const og_i64 plane_of = (image * c.groups + group) * others + other;
      const og_i64 weight = (og_pass == 0 ? channel * c.ins + other
                                          : (group * c.outs + other) * c.ins + channel % own) *
                            c.taps;
      og_s part = 0;
      og_place tap;
      tap.outer = 0;
      og_i64 number = 0;
      for (tap.d = 0; tap.d < c.d.kernel; ++tap.d) {
        for (tap.h = 0; tap.h < c.h.kernel; ++tap.h) {
          for (tap.w = 0; tap.w < c.w.kernel; ++tap.w, ++number) {
            const og_i64 element =
                og_pass == 0 ? og_input_at(c, at, tap) : og_output_at(c, at, tap);
            if (element < 0) continue;
            const og_s value = og_pass == 0 ? og_get_x(x, plane_of * c.input + element)
                                            : og_get_y(y, plane_of * c.output + element);
            part = og_fma(og_get_w(w, weight + number), value, part);
          }
        }
      }
      sum = sum + part;
    }
    og_finish(a, i, channel, sum);
  }
}
)";
}

std::string conv_direct_weight_text() {
  return R"(
OG_KERNEL(og_direct_weight, 34) {
  OG_SHARED og_s sums[256];
  const og_x* const x = a.pointer<og_x>(0);
  const og_y* const y = a.pointer<og_y>(2);
  const og_conv c = og_conv_of(a);
  const og_i64 weights = c.groups * c.outs * c.ins * c.taps, depth = c.batch * c.output;
  for (og_i64 i = blockIdx.x; i < weights; i += gridDim.x) {
    const og_place tap = og_split_taps(c, i % c.taps);
    const og_i64 in_channel = i / c.taps % c.ins, channel = i / (c.taps * c.ins);
    const og_i64 group = channel / c.outs;
    og_s sum = 0;
    for (og_i64 k = threadIdx.x; k < depth; k += 256) {
      const og_place window = og_split_output(c, k);
      const og_i64 element = og_input_at(c, window, tap);
      if (element < 0) continue;
      const og_s dy =
          og_get_y(y, (window.outer * c.groups * c.outs + channel) * c.output + k % c.output);
      const og_i64 plane = (window.outer * c.groups + group) * c.ins + in_channel;
      sum = og_fma(dy, og_get_x(x, plane * c.input + element), sum);
    }
    sums[threadIdx.x] = sum;
    __syncthreads();
    for (unsigned half = 128; half > 0; half /= 2) {
      if (threadIdx.x < half) sums[threadIdx.x] = sums[threadIdx.x] + sums[threadIdx.x + half];
      __syncthreads();
    }
    if (threadIdx.x == 0) og_set_w(a.pointer<og_w>(1), i, sums[0]);
    __syncthreads();
  }
}
)";
}

}  // namespace onnxgrad::ops
