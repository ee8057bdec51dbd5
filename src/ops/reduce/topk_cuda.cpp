#include <algorithm>

#include "ops/index_walk_cuda.h"

// The place of an element in the result is the number of those that come before it, by key and
// index; for few results of a long line, a block finds one after the other.

namespace onnxgrad::ops::topk_cuda {
namespace {

using device::cuda::TextKernel;
using device::cuda::Word;

// Keys as on the CPU: larger for larger elements, NaN the largest, one for both zeros.
constexpr const char* kTopK = R"(
OG_FUNCTION og_i64 og_key(double x) {
  const og_i64 largest = 0x7fffffffffffffffll;
  const og_i64 bits = og_bits<og_i64>(x + 0.0);
  return x != x ? largest : bits ^ (bits >> 63 & largest);
}
OG_FUNCTION og_i64 og_key(float x) { return og_key((double)x); }
OG_FUNCTION og_i64 og_key(og_u64 x) { return (og_i64)(x ^ 0x8000000000000000ull); }
OG_FUNCTION og_i64 og_key(og_i64 x) { return x; }
OG_FUNCTION bool og_before(og_i64 key, og_i64 at, og_i64 other, og_i64 other_at) {
  return key != other ? key > other : at < other_at;
}

OG_KERNEL(og_rank, 8) {
  const og_T* const x = a.pointer<const og_T>(0);
  og_T* const values = a.pointer<og_T>(1);
  og_i64* const indices = a.pointer<og_i64>(2);
  const og_i64 length = a.integer(4);
  const og_i64 inner = a.integer(5);
  const og_i64 flip = a.integer(7);
  for (og_i64 i = og_first(); i < a.integer(3); i += og_stride()) {
    const og_i64 outer = i / inner / length;
    const og_i64 place = i / inner % length;
    const og_T* const line = x + outer * length * inner + i % inner;
    const og_i64 key = og_key(OG_WIDE(x[i])) ^ flip;
    og_i64 rank = 0;
    for (og_i64 k = 0; k < length && rank < a.integer(6); ++k) {
      rank += og_before(og_key(OG_WIDE(line[k * inner])) ^ flip, k, key, place) ? 1 : 0;
    }
    if (rank >= a.integer(6)) continue;
    const og_i64 to = (outer * a.integer(6) + rank) * inner + i % inner;
    if (values != nullptr) values[to] = x[i];
    if (indices != nullptr) indices[to] = place;
  }
}

OG_KERNEL(og_best, 8) {
  const og_T* const x = a.pointer<const og_T>(0);
  og_T* const values = a.pointer<og_T>(1);
  og_i64* const indices = a.pointer<og_i64>(2);
  const og_i64 length = a.integer(4);
  const og_i64 inner = a.integer(5);
  const og_i64 flip = a.integer(7);
  OG_SHARED og_i64 keys[256];
  OG_SHARED og_i64 places[256];
  const int lane = (int)threadIdx.x;
  for (og_i64 row = blockIdx.x; row < a.integer(3); row += gridDim.x) {
    const og_T* const line = x + row / inner * length * inner + row % inner;
    og_i64 last = 0;
    og_i64 last_at = -1;
    for (og_i64 rank = 0; rank < a.integer(6); ++rank) {
      og_i64 best = 0;
      og_i64 best_at = -1;
      for (og_i64 k = lane; k < length; k += 256) {
        const og_i64 key = og_key(OG_WIDE(line[k * inner])) ^ flip;
        if (last_at >= 0 && !og_before(last, last_at, key, k)) continue;
        if (best_at < 0 || og_before(key, k, best, best_at)) {
          best = key;
          best_at = k;
        }
      }
      keys[lane] = best;
      places[lane] = best_at;
      __syncthreads();
      for (int half = 128; half > 0; half /= 2) {
        if (lane < half && places[lane + half] >= 0 &&
            (places[lane] < 0 ||
             og_before(keys[lane + half], places[lane + half], keys[lane], places[lane]))) {
          keys[lane] = keys[lane + half];
          places[lane] = places[lane + half];
        }
        __syncthreads();
      }
      last = keys[0];
      last_at = places[0];
      __syncthreads();
      if (lane == 0) {
        const og_i64 to = (row / inner * a.integer(6) + rank) * inner + row % inner;
        if (values != nullptr) values[to] = line[last_at * inner];
        if (indices != nullptr) indices[to] = last_at;
      }
    }
  }
}
)";

// og_T and OG_WIDE, which makes it one of the types that have keys.
std::string type_text(DataType dtype) {
  if (dtype == DataType::kFloat16) return move_text(2) + "#define OG_WIDE(x) og_from_f16(x)\n";
  if (dtype == DataType::kBfloat16) return move_text(2) + "#define OG_WIDE(x) og_from_bf16(x)\n";
  const std::string type = walk_type(dtype);
  if (type.empty()) return {};
  const bool is_wide = dtype == DataType::kUint64 || !is_integer(dtype);
  return typed_text(type) + "#define OG_WIDE(x) " + (is_wide ? "(x)\n" : "((og_i64)(x))\n");
}

KernelOffer offer_topk(const KernelRequest& request) {
  const Dims& dims = request.inputs[0].dims;
  const auto planned = planned_ints(request, 1);
  if (!planned) return KernelOffer::decline("K is not known before the step runs");
  const auto axis =
      static_cast<std::size_t>(normalize_axis(request.node.int_attribute("axis"), dims.rank()));
  const std::int64_t k = planned->size() == 1 ? planned->front() : -1;
  if (k < 0 || k > dims[axis]) return KernelOffer::decline("a K that does not fit");
  const std::string types = type_text(request.inputs[0].dtype);
  if (types.empty()) return decline_dtype(request, request.inputs[0].dtype);
  const std::int64_t inner = dims.product(axis + 1, dims.rank());
  constexpr std::int64_t kThreads = 256;
  const bool by_blocks = k * 8 < dims[axis] && dims[axis] >= kThreads;
  const std::int64_t lines = dims.product(0, axis) * inner;
  const std::int64_t count = k == 0 ? 0 : by_blocks ? lines : dims.num_elements();
  const auto output = [&](std::size_t i) {
    return request.has_output(i) ? Word::argument(2 + static_cast<std::int64_t>(i))
                                 : Word::of(std::int64_t{0});
  };
  KernelOffer offer;
  offer.kernel = prepared(
      text_kernel_over(request, by_blocks ? kThreads * count : count, types + kTopK,
                       by_blocks ? "og_best" : "og_rank",
                       {Word::argument(0), output(0), output(1), Word::of(count),
                        Word::of(dims[axis]), Word::of(inner), Word::of(k),
                        Word::of(request.node.int_attribute("largest") != 0 ? std::int64_t{0}
                                                                            : std::int64_t{-1})}),
      by_blocks ? "the best, one by one" : "ranks");
  return offer;
}

}  // namespace

void register_topk_cuda(opdef::KernelRegistry& registry) {
  registry.add("", "TopK", 0, offer_topk);
}

}  // namespace onnxgrad::ops::topk_cuda
