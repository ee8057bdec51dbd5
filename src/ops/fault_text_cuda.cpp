#include "ops/fault_text_cuda.h"

#include <utility>

#include "ops/kernel_support_cuda.h"

namespace onnxgrad::ops {

using device::cuda::Word;

std::string_view fault_text() {
  return R"(
OG_FUNCTION void og_refuse(og_u64* board, og_i64 number, og_i64 value, og_i64 position) {
  if (atomicCAS(board, 0ull, (og_u64)number) != 0) return;
  volatile og_u64* const note = board;
  note[1] = (og_u64)value;
  note[2] = (og_u64)position;
  note[3] = 1;
}
)";
}

void Refusal::append(std::vector<Word>& words) const {
  words.push_back(Word::of(board));
  words.push_back(Word::of(*number));
}

Refusal refusal(const opdef::KernelRequest& request, device::cuda::Faults::Raise raise) {
  device::cuda::Faults& faults = card_of(request)->faults();
  return {.number = faults.add(std::move(raise)), .board = faults.address()};
}

}  // namespace onnxgrad::ops
