#include "device/cpu/f16_gemm_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>

#include "base/check.h"

// Choice of the implementation of a 16-bit GEMM, and sizes of its blocks.

namespace onnxgrad::device {
namespace {

using f16_gemm::F16Plan;
using f16_gemm::kBPanelColumns;
using f16_gemm::kLanes;

constexpr std::int64_t kBlockK = 768;
constexpr std::int64_t kBlockN = 256;
constexpr std::int64_t kBlockM = 192;
constexpr std::int64_t kBlockBytes =
    640LL * 1024;  // bytes of a packed operand: about half of an L2 cache
constexpr std::int64_t kMostConsumed =
    4096;  // size of k at which packed B panels fill the L2 cache
constexpr std::int64_t kLeastConsumed = 512;
constexpr std::int64_t kBytes = 2;        // of an element
constexpr double kSharedFlops = 1 << 20;  // as in gemm.cpp

void run_nothing(const void* /*data*/, const GemmOperands& /*operands*/) {}

F16GemmChoice choose(const F16GemmSpec& spec) {
  if (spec.choice != F16GemmChoice::kBest) return spec.choice;
  const bool is_bfloat16 = spec.dtype == DataType::kBfloat16;
  constexpr std::int64_t kAmxRows = 16;  // fewer leave most of a tile empty
  if (is_bfloat16 && has_f16_gemm(F16GemmChoice::kAmx, spec.cpu) && spec.m >= kAmxRows &&
      spec.n >= kLanes && spec.k >= 2 * kAmxVnni) {
    return F16GemmChoice::kAmx;
  }
  return is_bfloat16 && has_f16_gemm(F16GemmChoice::kVnni, spec.cpu) ? F16GemmChoice::kVnni
                                                                     : F16GemmChoice::kWidened;
}

/// Whether a GEMM with a consumer and a small k is widened, which passes longer rows of C.
bool has_consumer_rows(const F16GemmSpec& spec) {
  return spec.has_consumer && spec.choice == F16GemmChoice::kBest && spec.k < kLeastConsumed &&
         f16_gemm::is_widened_in_parts(spec);
}

bool is_widened(const F16GemmSpec& spec) {
  return choose(spec) == F16GemmChoice::kWidened || has_consumer_rows(spec);
}

}  // namespace

bool has_f16_gemm(F16GemmChoice choice, const CpuOptions& cpu) {
  if (choice == F16GemmChoice::kVnni) {
    return cpu_has_bf16_dot() && gemm_target<float>(cpu.isa).lanes == kLanes;
  }
  if (choice == F16GemmChoice::kAmx) return cpu.amx != nullptr;
  return true;
}

bool can_have_consumer(const F16GemmSpec& spec) {
  if (is_widened(spec)) return f16_gemm::can_have_consumer_widened(spec);
  // For a small k, to read a matrix shaped like C B panel by B panel takes longer than to multiply.
  return spec.k >= kLeastConsumed && spec.k <= kMostConsumed;
}

F16GemmSpec f16_gemm_spec(const GemmSpec& gemm) {
  return {.dtype = gemm.dtype,
          .m = gemm.m,
          .n = gemm.n,
          .k = gemm.k,
          .transpose_a = gemm.transpose_a,
          .transpose_b = gemm.transpose_b,
          .a_row_length = gemm.a_row_length,
          .start = gemm.start,
          .alpha = gemm.alpha,
          .relu = gemm.relu,
          .threads = gemm.threads,
          .cpu = gemm.cpu};
}

PreparedGemm prepare_f16_gemm(const F16GemmSpec& given) {
  ONNXGRAD_ASSERT(is_f16(given.dtype) && given.m >= 0 && given.n >= 0 && given.k >= 0);
  ONNXGRAD_ASSERT(!given.has_consumer ||
                  (can_have_consumer(given) && given.start == GemmStart::kZero && !given.relu &&
                   !is_f16(given.c_dtype)));
  F16Plan plan;
  plan.spec = given;
  F16GemmSpec& spec = plan.spec;
  const double flops =
      2.0 * static_cast<double>(spec.m) * static_cast<double>(spec.n) * static_cast<double>(spec.k);
  if (flops < kSharedFlops) spec.threads = 1;
  if (is_widened(spec)) return f16_gemm::prepare_widened(spec);
  plan.target = &gemm_target<float>(spec.cpu.isa);
  plan.narrow = find_conversion(spec.cpu.isa, DataType::kFloat32, spec.dtype);
  plan.a_row = spec.a_row_length > 0 ? spec.a_row_length : spec.transpose_a ? spec.m : spec.k;
  plan.is_amx = choose(spec) == F16GemmChoice::kAmx;
  const std::int64_t unit_k = plan.is_amx ? 2 * kAmxVnni : 2;
  plan.packs_a = spec.transpose_a || spec.k % unit_k != 0;
  const bool is_whole = is_f16(spec.c_dtype) || spec.has_consumer;
  const std::int64_t blocks = is_whole ? 1 : std::max<std::int64_t>(ceil_div(spec.k, kBlockK), 1);
  plan.block_k = std::max(round_up(ceil_div(spec.k, blocks), unit_k), unit_k);
  const auto fitting = [&](std::int64_t most, std::int64_t unit) {
    return std::clamp(kBlockBytes / (plan.block_k * kBytes) / unit * unit, unit, most);
  };
  plan.block_n = round_up(std::min(spec.n, fitting(kBlockN, kVnniMaxVectors * kLanes)), kLanes);
  plan.consumer_rows = plan.is_amx ? 64 : 48;
  const std::int64_t most_rows = fitting(kBlockM, plan.consumer_rows);
  const std::int64_t row_blocks = std::max<std::int64_t>(ceil_div(spec.m, most_rows), 1);
  plan.block_m =
      row_blocks == 1 ? spec.m : round_up(ceil_div(spec.m, row_blocks), plan.consumer_rows);
  PreparedGemm prepared;
  if (spec.m == 0 || spec.n == 0) {
    prepared.fn = run_nothing;
  } else {
    prepared = f16_gemm::drive(plan);
  }
  prepared.label =
      fmt::format("{} {} {}x{}x{}", dtype_name(spec.dtype),
                  plan.is_amx ? "tiles AMX" : "VNNI AVX512-BF16", spec.m, spec.n, spec.k);
  return prepared;
}

}  // namespace onnxgrad::device
