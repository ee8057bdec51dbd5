#include "ops/index_walk_cuda.h"

// A block for each line of a dense axis, a thread for each line of others.

namespace onnxgrad::ops::arg_extremum_cuda {
namespace {

using device::cuda::TextKernel;
using device::cuda::Word;

// A line that begins with NaN has its extremum there; later ones never win.
constexpr const char* kArg = R"(
OG_FUNCTION bool og_beats(og_T candidate, og_i64 at, og_T best, og_i64 best_at, bool is_max,
                          bool takes_last) {
  if (at < 0 || candidate != candidate) return false;
  if (best_at < 0) return true;
  if (candidate == best) return takes_last ? at > best_at : at < best_at;
  return is_max ? candidate > best : candidate < best;
}

OG_KERNEL(og_arg, 7) {
  const og_T* const x = a.pointer<const og_T>(0);
  og_i64* const y = a.pointer<og_i64>(1);
  const og_i64 length = a.integer(3);
  const og_i64 inner = a.integer(4);
  for (og_i64 i = og_first(); i < a.integer(2); i += og_stride()) {
    const og_T* const line = x + i / inner * length * inner + i % inner;
    og_i64 best = line[0] != line[0] ? 0 : -1;
    for (og_i64 k = 0; k < length && line[0] == line[0]; ++k) {
      if (og_beats(line[k * inner], k, line[(best < 0 ? 0 : best) * inner], best,
                   a.integer(5) != 0, a.integer(6) != 0)) {
        best = k;
      }
    }
    y[i] = best;
  }
}

OG_KERNEL(og_arg_line, 7) {
  const og_T* const x = a.pointer<const og_T>(0);
  og_i64* const y = a.pointer<og_i64>(1);
  const og_i64 length = a.integer(3);
  const bool is_max = a.integer(5) != 0;
  const bool takes_last = a.integer(6) != 0;
  OG_SHARED og_i64 places[256];
  const int lane = (int)threadIdx.x;
  for (og_i64 row = blockIdx.x; row < a.integer(2); row += gridDim.x) {
    const og_T* const line = x + row * length;
    og_i64 best = -1;
    for (og_i64 k = lane; k < length; k += 256) {
      if (og_beats(line[k], k, line[best < 0 ? 0 : best], best, is_max, takes_last)) best = k;
    }
    places[lane] = best;
    __syncthreads();
    for (int half = 128; half > 0; half /= 2) {
      if (lane < half) {
        const og_i64 own = places[lane];
        const og_i64 other = places[lane + half];
        if (og_beats(line[other < 0 ? 0 : other], other, line[own < 0 ? 0 : own], own, is_max,
                     takes_last)) {
          places[lane] = other;
        }
      }
      __syncthreads();
    }
    if (lane == 0) y[row] = line[0] != line[0] ? 0 : places[0];
    __syncthreads();
  }
}
)";

template <bool kIsMax>
KernelOffer offer_arg(const KernelRequest& request) {
  const Dims& dims = request.inputs[0].dims;
  const auto axis =
      static_cast<std::size_t>(normalize_axis(request.node.int_attribute("axis"), dims.rank()));
  const std::string type = text_type(request.inputs[0].dtype);
  if (type.empty()) return decline_dtype(request, request.inputs[0].dtype);
  const std::int64_t inner = dims.product(axis + 1, dims.rank());
  const std::int64_t lines = dims.product(0, axis) * inner;
  if (dims[axis] == 0 && lines > 0) return KernelOffer::decline("an empty axis");
  constexpr std::int64_t kLong = 64;
  const bool by_blocks = inner == 1 && dims[axis] >= kLong;
  TextKernel kernel = text_kernel_over(
      request, by_blocks ? 256 * lines : lines, typed_text(type) + kArg,
      by_blocks ? "og_arg_line" : "og_arg",
      {Word::argument(0), Word::argument(1), Word::of(lines), Word::of(dims[axis]), Word::of(inner),
       Word::of(std::int64_t{kIsMax}), Word::of(request.node.int_attribute("select_last_index"))});
  KernelOffer offer;
  offer.kernel = prepared(std::move(kernel), by_blocks ? "a block a line" : "a thread a line");
  return offer;
}

}  // namespace

void register_arg_extremum_cuda(opdef::KernelRegistry& registry) {
  registry.add("", "ArgMax", 0, offer_arg<true>);
  registry.add("", "ArgMin", 0, offer_arg<false>);
}

}  // namespace onnxgrad::ops::arg_extremum_cuda
