#include "ops/index_walk_cuda.h"
#include "ops/tensor/reverse_sequence_error.h"

// The data is [d0, d1, block]: time and batch are the first two axes, in either order.

namespace onnxgrad::ops::reverse_sequence_cuda {
namespace {

using device::cuda::TextKernel;
using device::cuda::Word;

// Words: x, lengths, y; elements, size of axis 1, elements of a block, whether time is axis 0,
// times; where lengths are refused.
constexpr const char* kText = R"(
OG_KERNEL(og_reverse, 10) {
  const og_T* const x = a.pointer<const og_T>(0);
  const og_i64 inner = a.integer(4), block = a.integer(5), times = a.integer(7);
  const bool is_time_first = a.integer(6) != 0;
  for (og_i64 i = og_first(); i < a.integer(3); i += og_stride()) {
    const og_i64 place = i / block;
    const og_i64 outer = place / inner, row = place % inner;
    const og_i64 t = is_time_first ? outer : row, b = is_time_first ? row : outer;
    const og_i64 length = a.pointer<const og_i64>(1)[b];
    og_i64 from = t;
    if (length < 0 || length > times) {
      og_refuse(a.pointer<og_u64>(8), a.integer(9), length, b);
    } else if (t < length) {
      from = length - 1 - t;
    }
    const og_i64 moved = is_time_first ? from * inner + row : outer * inner + from;
    a.pointer<og_T>(2)[i] = x[moved * block + i % block];
  }
}
)";

KernelOffer offer_reverse(const KernelRequest& request) {
  const Dims& dims = request.inputs[0].dims;
  const std::int64_t bytes = element_bytes(request.inputs[0].dtype);
  if (bytes == 0) return decline_dtype(request, request.inputs[0].dtype);
  const auto time = static_cast<std::size_t>(request.node.int_attribute("time_axis"));
  const auto batch = static_cast<std::size_t>(request.node.int_attribute("batch_axis"));
  if (dims.rank() < 2 || time == batch || request.inputs[1].dims != Dims{dims[batch]}) {
    return KernelOffer::decline("lengths that do not fit");
  }
  const std::int64_t block_bytes = dims.product(2, dims.rank()) * bytes;
  const std::int64_t unit = unit_of(block_bytes);
  const std::int64_t times = dims[time];
  const std::int64_t count = dims.num_elements() * bytes / unit;
  const Refusal lengths =
      refusal(request, [times, node = request.node.describe()](std::int64_t length, std::int64_t) {
        throw_sequence_length(length, times, node);
      });
  std::vector<Word> words{Word::argument(0), Word::argument(1), Word::argument(2), Word::of(count),
                          Word::of(dims[1])};
  words.push_back(Word::of(block_bytes / unit));
  words.push_back(Word::of(std::int64_t{time == 0}));
  words.push_back(Word::of(times));
  lengths.append(words);
  TextKernel kernel =
      text_kernel_over(request, count, move_text(unit) + kText, "og_reverse", std::move(words));
  kernel.keeps = lengths.record;
  KernelOffer offer;
  offer.kernel = prepared(std::move(kernel), "reversal");
  note_index_check(request, offer, 1, {times + 1}, /*from_zero=*/true);
  return offer;
}

}  // namespace

void register_reverse_sequence_cuda(opdef::KernelRegistry& registry) {
  registry.add("", "ReverseSequence", 0, offer_reverse);
}

}  // namespace onnxgrad::ops::reverse_sequence_cuda
