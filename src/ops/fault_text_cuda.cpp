#include "ops/fault_text_cuda.h"

#include <cstddef>
#include <cstdint>
#include <utility>

#include "device/step_kernels.h"
#include "ops/kernel_support_cuda.h"

namespace onnxgrad::ops {

using device::cuda::Word;

// Kernels know where it is.
static_assert(offsetof(device::DeviceStepCells, is_refused) == 6 * sizeof(std::uint64_t));

std::string_view fault_text() {
  return R"(
OG_FUNCTION void og_refuse(og_u64* cells, og_i64 record, og_i64 value, og_i64 position) {
  og_u64* const taken = (og_u64*)record;
  volatile og_u64* const refused = cells == 0 ? 0 : cells + 6;
  if (refused != 0) *refused = 1;
  if (atomicCAS(taken, 0ull, 1ull) != 0) return;
  volatile og_u64* const note = taken;
  note[1] = (og_u64)value;
  note[2] = (og_u64)position;
  note[5] = refused == 0 ? 0 : OG_HANDLE(refused);
  note[3] = 1;
  atomicCAS((og_u64*)note[4], 0ull, (og_u64)record);
}
)";
}

void Refusal::append(std::vector<Word>& words) const {
  words.push_back(Word::cells());
  words.push_back(Word::of(*record));
}

Refusal refusal(const opdef::KernelRequest& request, device::cuda::Faults::Raise raise) {
  return {.record = card_of(request)->faults().add(std::move(raise))};
}

}  // namespace onnxgrad::ops
