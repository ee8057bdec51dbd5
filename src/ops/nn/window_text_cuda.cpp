#include "ops/nn/window_text_cuda.h"

namespace onnxgrad::ops {

using device::cuda::Word;

std::string_view window_text() {
  return R"(
struct og_axis {
  int input, output, kernel, stride, dilation, pad, pad_end;
};
template <class Words>
OG_FUNCTION og_axis og_axis_at(const Words& a, int first) {
  og_axis axis;
  axis.input = (int)a.integer(first);
  axis.output = (int)a.integer(first + 1);
  axis.kernel = (int)a.integer(first + 2);
  axis.stride = (int)a.integer(first + 3);
  axis.dilation = (int)a.integer(first + 4);
  axis.pad = (int)a.integer(first + 5);
  axis.pad_end = (int)a.integer(first + 6);
  return axis;
}

struct og_place {
  og_i64 outer;
  int d, h, w;
};
// Divisions of 32 bits are several times faster.
OG_FUNCTION og_place og_split(og_i64 index, int d, int h, int w) {
  og_place at;
  if ((og_u64)index >> 32 == 0) {
    og_u32 i = (og_u32)index;
    at.w = (int)(i % (og_u32)w);
    i /= (og_u32)w;
    at.h = (int)(i % (og_u32)h);
    i /= (og_u32)h;
    at.d = (int)(i % (og_u32)d);
    at.outer = i / (og_u32)d;
    return at;
  }
  at.w = (int)(index % w);
  index /= w;
  at.h = (int)(index % h);
  index /= h;
  at.d = (int)(index % d);
  at.outer = index / d;
  return at;
}
)";
}

void append_window(std::vector<Word>& words, const WindowAxis& axis) {
  for (const std::int64_t number : {axis.input, axis.output, axis.kernel, axis.stride,
                                    axis.dilation, axis.pad_begin, axis.pad_end}) {
    words.push_back(Word::of(number));
  }
}

}  // namespace onnxgrad::ops
