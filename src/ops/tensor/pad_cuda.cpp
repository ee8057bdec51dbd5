#include <algorithm>

#include "ops/index_walk_cuda.h"

namespace onnxgrad::ops::pad_cuda {
namespace {

using device::cuda::Word;

constexpr std::size_t kAxes = 8;

// Words of an axis, the innermost first: sizes of output and input, the pad before, the stride.
constexpr const char* kPad = R"(
OG_KERNEL(og_pad, 38) {
  const og_T* const x = a.pointer<const og_T>(0);
  const og_T* const value = a.pointer<const og_T>(1);
  og_T* const y = a.pointer<og_T>(2);
  const og_i64 mode = a.integer(4);
  const int rank = (int)a.integer(5);
  for (og_i64 index = og_first(); index < a.integer(3); index += og_stride()) {
    og_i64 rest = index;
    og_i64 from = 0;
    bool is_inside = true;
    for (int k = 0; k < rank; ++k) {
      const og_i64 size = a.integer(6 + 4 * k);
      const og_i64 dim = a.integer(7 + 4 * k);
      og_i64 i = rest % size - a.integer(8 + 4 * k);
      rest /= size;
      if (mode == 0) {
        is_inside = is_inside && i >= 0 && i < dim;
      } else if (mode == 1) {
        i = i < 0 ? 0 : i >= dim ? dim - 1 : i;
      } else if (mode == 2) {
        i = (i % dim + dim) % dim;
      } else {
        const og_i64 period = dim > 1 ? 2 * (dim - 1) : 1;
        i = (i % period + period) % period;
        if (i >= dim) i = period - i;
      }
      from += i * a.integer(9 + 4 * k);
    }
    y[index] = is_inside ? x[from] : value == nullptr ? (og_T)0 : *value;
  }
}
)";

struct Axis {
  std::int64_t size, dim, before, stride;
};

KernelOffer offer_pad(const KernelRequest& request) {
  const Dims& from = request.inputs[0].dims;
  const Dims& to = request.outputs[0].dims;
  const std::int64_t bytes = element_bytes(request.inputs[0].dtype);
  if (bytes == 0 || bytes > 8) return decline_dtype(request, request.inputs[0].dtype);
  const auto numbers = planned_ints(request, 1);
  auto axes = request.has_input(3) ? planned_ints(request, 3) : std::vector<std::int64_t>{};
  if (!numbers || !axes) return KernelOffer::decline("the pads are not known before the step runs");
  if (!request.has_input(3)) {
    for (std::size_t i = 0; i < from.rank(); ++i) axes->push_back(static_cast<std::int64_t>(i));
  }
  if (numbers->size() != 2 * axes->size()) return KernelOffer::decline("pads do not match axes");
  std::vector<std::int64_t> before(from.rank(), 0);
  std::vector<std::int64_t> after(from.rank(), 0);
  for (std::size_t i = 0; i < axes->size(); ++i) {
    const auto axis = static_cast<std::size_t>(normalize_axis((*axes)[i], from.rank()));
    before[axis] = (*numbers)[i];
    after[axis] = (*numbers)[axes->size() + i];
  }
  const std::string mode = request.node.string_attribute("mode");
  const std::vector<std::int64_t> strides = dense_strides(from.values());
  std::vector<Axis> walked;
  for (std::size_t i = 0; i < from.rank(); ++i) {
    const std::int64_t limit = std::max(from[i], to[i]);
    if (std::max(std::abs(before[i]), std::abs(after[i])) > limit ||
        from[i] + before[i] + after[i] != to[i] ||
        (mode != "constant" && from[i] == 0 && to[i] > 0)) {
      return KernelOffer::decline("pads that do not fit");
    }
    const bool is_whole = before[i] == 0 && after[i] == 0;
    if (is_whole && !walked.empty() && walked.back().before == 0 &&
        walked.back().size == walked.back().dim) {  // one with the axis before
      walked.back() = {.size = walked.back().size * to[i],
                       .dim = walked.back().dim * to[i],
                       .before = 0,
                       .stride = strides[i]};
    } else {
      walked.push_back({.size = to[i], .dim = from[i], .before = before[i], .stride = strides[i]});
    }
  }
  if (walked.size() > kAxes) return KernelOffer::decline("too many axes");
  std::vector<Word> words{Word::argument(0), Word::of(std::int64_t{0}),
                          Word::argument(static_cast<std::int64_t>(request.inputs.size())),
                          Word::of(to.num_elements())};
  if (request.has_input(2)) words[1] = Word::argument(2);
  words.push_back(Word::of(std::int64_t{mode == "constant" ? 0
                                        : mode == "edge"   ? 1
                                        : mode == "wrap"   ? 2
                                                           : 3}));
  words.push_back(Word::of(static_cast<std::int64_t>(walked.size())));
  std::ranges::reverse(walked);
  walked.resize(kAxes, Axis{.size = 1, .dim = 1, .before = 0, .stride = 0});
  for (const auto& [size, dim, pad, stride] : walked) {
    for (const std::int64_t number : {size, dim, pad, stride}) words.push_back(Word::of(number));
  }
  KernelOffer offer;
  offer.kernel = prepared(text_kernel_over(request, to.num_elements(), move_text(bytes) + kPad,
                                           "og_pad", std::move(words)),
                          "mapped copy");
  return offer;
}

}  // namespace

void register_pad_cuda(opdef::KernelRegistry& registry) { registry.add("", "Pad", 0, offer_pad); }

}  // namespace onnxgrad::ops::pad_cuda
