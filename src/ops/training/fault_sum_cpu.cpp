#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "device/cpu/threads.h"
#include "ir/builder.h"
#include "opdef/guarded_update.h"
#include "opdef/kernel.h"
#include "ops/kernel_support.h"

// onnxgrad.FaultSum (opdef/guarded_update.h) by the bits: a number is not finite if all bits of its
// exponent are set, and one more there then carries into the sign. Each thread looks through a
// part.

namespace onnxgrad::ops::fault_sum_cpu {
namespace {

constexpr std::int64_t kSharedBytes = std::int64_t{1} << 19;  // per thread
constexpr std::int64_t kLineBytes = 64;

struct FaultData {
  std::int64_t count = 0;
  int threads = 1;
};

template <class Bits>
constexpr Bits kSign = Bits{1} << (8 * sizeof(Bits) - 1);

/// kOne: the lowest bit of the exponent.
template <class Bits, Bits kOne>
bool has_fault(const Bits* x, std::int64_t count) {
  constexpr Bits kRest = kSign<Bits> - 1;
  Bits carries = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    carries |= static_cast<Bits>((x[i] & kRest) + kOne);
  }
  return (carries & kSign<Bits>) != 0;
}

template <class Bits, Bits kOne>
void run_fault_sum(const void* raw, std::byte* const* args, const opdef::Launch& /*launch*/) {
  const auto& data = *static_cast<const FaultData*>(raw);
  const auto* x = reinterpret_cast<const Bits*>(args[0]);
  // Of each thread, a line of its own.
  auto* faults = reinterpret_cast<std::int64_t*>(args[2]);
  constexpr std::int64_t kStep = kLineBytes / static_cast<std::int64_t>(sizeof(std::int64_t));
  device::share_parts(data.threads, data.threads, [&](std::int64_t part) {
    const std::int64_t first = data.count * part / data.threads;
    const std::int64_t last = data.count * (part + 1) / data.threads;
    faults[part * kStep] = has_fault<Bits, kOne>(x + first, last - first) ? 1 : 0;
  });
  bool is_faulty = false;
  for (std::int64_t part = 0; part < data.threads; ++part) {
    is_faulty = is_faulty || faults[part * kStep] != 0;
  }
  *reinterpret_cast<float*>(args[1]) = is_faulty ? std::numeric_limits<float>::quiet_NaN() : 0.0F;
}

opdef::KernelFn find_kernel(DataType dtype) {
  switch (dtype) {
    case DataType::kFloat16:
      return run_fault_sum<std::uint16_t, 0x0400>;
    case DataType::kBfloat16:
      return run_fault_sum<std::uint16_t, 0x0080>;
    case DataType::kFloat32:
      return run_fault_sum<std::uint32_t, 0x00800000>;
    case DataType::kFloat64:
      return run_fault_sum<std::uint64_t, 0x0010000000000000>;
    default:
      return nullptr;
  }
}

opdef::KernelOffer offer_fault_sum(const opdef::KernelRequest& request) {
  const DataType dtype = request.inputs[0].dtype;
  const opdef::KernelFn fn = find_kernel(dtype);
  if (fn == nullptr) return decline_dtype(request, dtype);
  FaultData data{.count = request.inputs[0].dims.num_elements()};
  data.threads =
      device::useful_threads(data.count * element_bytes(dtype), kSharedBytes, request.threads);
  auto offer = prepared(fn, data, fmt::format("exponents {}", dtype_name(dtype)));
  offer.kernel.scratch_bytes = kLineBytes * data.threads;
  return offer;
}

}  // namespace

void register_fault_sum_cpu(opdef::KernelRegistry& registry) {
  registry.add(ir::kFunctionDomain, opdef::kFaultSum, 0, offer_fault_sum);
}

}  // namespace onnxgrad::ops::fault_sum_cpu
