#ifndef ONNXGRAD_DEVICE_CPU_F16_GEMM_PLAN_H_
#define ONNXGRAD_DEVICE_CPU_F16_GEMM_PLAN_H_

#include <cstdint>

#include "device/cpu/convert.h"
#include "device/cpu/f16_gemm.h"
#include "device/cpu/f16_gemm_vnni.h"
#include "device/cpu/gemm_plan.h"
#include "device/cpu/gemm_tile.h"
#include "device/cpu/scratch_layout.h"

// The plan of a 16-bit GEMM: prepare_f16_gemm (f16_gemm_plan.cpp) makes it, f16_gemm.cpp runs it.

namespace onnxgrad::device::f16_gemm {

inline constexpr std::int64_t kLanes = kVnniLanes;
inline constexpr std::int64_t kBPanelColumns = kVnniMaxVectors * kLanes;

/// Sizes and choices of a kVnni or kAmx GEMM.
struct F16Plan {
  F16GemmSpec spec;
  const GemmTarget<float>* target = nullptr;
  bool packs_a = false;
  bool is_amx = false;
  std::int64_t consumer_rows = 0;  ///< a multiple of the rows of the widest tiles
  std::int64_t a_row = 0;          ///< row stride of A in memory, in elements
  std::int64_t block_k = 0, block_n = 0, block_m = 0;
  ScratchArray<std::byte> line = {};
  ScratchArray<float> sums = {};
  ConvertFn narrow = nullptr;
};

/// Prepares F16GemmChoice::kWidened, a GEMM in float32 (f16_gemm_widened.cpp).
PreparedGemm prepare_widened(const F16GemmSpec& spec);
bool can_have_consumer_widened(const F16GemmSpec& spec);
/// Whether the widened GEMM is a split GEMM (gemm_split.h).
bool is_widened_in_parts(const F16GemmSpec& spec);

/// Completes the plan of a kVnni or kAmx GEMM: all fields but the label.
PreparedGemm drive(F16Plan plan);

}  // namespace onnxgrad::device::f16_gemm

#endif  // ONNXGRAD_DEVICE_CPU_F16_GEMM_PLAN_H_
