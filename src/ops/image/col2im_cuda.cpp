#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "ir/builder.h"
#include "ops/index_walk_cuda.h"
#include "ops/nn/window.h"

// Col2Im: each pixel adds up the columns that reach it, tap by tap, as the CPU does; its gradient
// reads them. Columns are [planes, taps, windows].

namespace onnxgrad::ops::col2im_cuda {
namespace {

using device::cuda::TextKernel;
using device::cuda::Word;

constexpr std::size_t kAxes = 4;

// Words: columns, image, planes, pixels, taps, windows, axes, then input, output, kernel, stride,
// dilation and pad of each axis.
constexpr const char* kText = R"(
OG_KERNEL(og_col2im, 31) {
  const og_i64 pixels = a.integer(3), taps = a.integer(4), windows = a.integer(5);
  const int rank = (int)a.integer(6);
  for (og_i64 i = og_first(); i < a.integer(2) * pixels; i += og_stride()) {
    const og_T* const columns = a.pointer<const og_T>(0) + i / pixels * taps * windows;
    og_T sum = 0;
    for (og_i64 tap = 0; tap < taps; ++tap) {
      og_i64 pixel = i % pixels, rest = tap, window = 0, scale = 1;
      bool is_one = true;
      for (int k = rank - 1; k >= 0; --k) {
        const int w = 7 + 6 * k;
        const og_i64 place = pixel % a.integer(w) + a.integer(w + 5) -
                             rest % a.integer(w + 2) * a.integer(w + 4);
        const og_i64 own = place / a.integer(w + 3);
        is_one = is_one && place >= 0 && place % a.integer(w + 3) == 0 && own < a.integer(w + 1);
        window += own * scale;
        scale *= a.integer(w + 1);
        pixel /= a.integer(w);
        rest /= a.integer(w + 2);
      }
      if (is_one) sum = og_plus(sum, columns[tap * windows + window]);
    }
    a.pointer<og_T>(1)[i] = sum;
  }
}

OG_KERNEL(og_im2col, 31) {
  const og_i64 pixels = a.integer(3), taps = a.integer(4), windows = a.integer(5);
  const int rank = (int)a.integer(6);
  for (og_i64 i = og_first(); i < a.integer(2) * taps * windows; i += og_stride()) {
    og_i64 window = i % windows, tap = i / windows % taps, pixel = 0, scale = 1;
    bool is_one = true;
    for (int k = rank - 1; k >= 0; --k) {
      const int w = 7 + 6 * k;
      const og_i64 place = window % a.integer(w + 1) * a.integer(w + 3) +
                           tap % a.integer(w + 2) * a.integer(w + 4) - a.integer(w + 5);
      is_one = is_one && place >= 0 && place < a.integer(w);
      pixel += place * scale;
      scale *= a.integer(w);
      window /= a.integer(w + 1);
      tap /= a.integer(w + 2);
    }
    a.pointer<og_T>(0)[i] =
        is_one ? a.pointer<const og_T>(1)[i / (taps * windows) * pixels + pixel] : (og_T)0;
  }
}
)";

KernelOffer offer(const KernelRequest& request, const Dims& image, const Dims& columns,
                  bool is_grad) {
  const auto sizes = planned_ints(request, 1);
  const auto block = planned_ints(request, 2);
  if (!sizes || !block) {
    return KernelOffer::decline("its shapes are not known before the step runs");
  }
  if (sizes->empty() || sizes->size() > kAxes || block->size() != sizes->size()) {
    return KernelOffer::decline("axes that do not fit");
  }
  const DataType dtype = request.inputs[0].dtype;
  const bool is_bool = dtype == DataType::kBool;
  const std::string type = is_integer(dtype) || is_bool ? "" : walk_type(dtype);
  if (type.empty() && !is_integer(dtype) && !is_bool) return decline_dtype(request, dtype);
  const WindowAttrs attrs = WindowAttrs::read(request.node, sizes->size());
  const auto axes = resolve_window(request.node, attrs, *sizes, *block);
  std::int64_t taps = 1;
  std::int64_t windows = 1;
  for (const WindowAxis& axis : axes) {
    taps *= axis.kernel;
    windows *= axis.output;
  }
  if (columns.rank() != 3 || columns[0] != image[0] || columns[1] != image[1] * taps ||
      columns[2] != windows) {
    return KernelOffer::decline("columns that do not fit");
  }
  const std::int64_t planes = image.product(0, 2);
  const std::int64_t pixels = image.product(2, image.rank());
  std::vector<Word> words{Word::argument(is_grad ? 3 : 0), Word::argument(is_grad ? 0 : 3)};
  for (const std::int64_t number : {planes, pixels, taps, windows, std::ssize(axes)}) {
    words.push_back(Word::of(number));
  }
  for (std::size_t k = 0; k < kAxes; ++k) {
    const WindowAxis axis = k < axes.size() ? axes[k] : WindowAxis{};
    for (const std::int64_t number :
         {axis.input, axis.output, axis.kernel, axis.stride, axis.dilation, axis.pad_begin}) {
      words.push_back(Word::of(number));
    }
  }
  // A sum of bool is true where a term is.
  const std::string text = (type.empty() ? move_text(element_bytes(dtype)) : typed_text(type)) +
                           "OG_FUNCTION og_T og_plus(og_T sum, og_T term) { return (og_T)(sum " +
                           (is_bool ? "|" : "+") + " term); }\n" + kText;
  KernelOffer offer;
  offer.kernel =
      prepared(text_kernel_over(request, planes * (is_grad ? taps * windows : pixels), text,
                                is_grad ? "og_im2col" : "og_col2im", std::move(words)),
               fmt::format("{} taps", taps));
  return offer;
}

KernelOffer offer_col2im(const KernelRequest& request) {
  return offer(request, request.outputs[0].dims, request.inputs[0].dims, false);
}
KernelOffer offer_col2im_grad(const KernelRequest& request) {
  return offer(request, request.inputs[0].dims, request.outputs[0].dims, true);
}

}  // namespace

void register_col2im_cuda(opdef::KernelRegistry& registry) {
  registry.add("", "Col2Im", 0, offer_col2im);
  registry.add(ir::kFunctionDomain, "Col2ImGrad", 0, offer_col2im_grad);
}

}  // namespace onnxgrad::ops::col2im_cuda
