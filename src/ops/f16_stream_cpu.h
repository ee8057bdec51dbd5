#ifndef ONNXGRAD_OPS_F16_STREAM_CPU_H_
#define ONNXGRAD_OPS_F16_STREAM_CPU_H_

#include <cstddef>
#include <cstdint>

#include "device/cpu/convert.h"
#include "ops/kernel_support.h"

namespace onnxgrad::ops {

/// Operand or result of a kernel that computes in float32: either float32 itself, used in place, or
/// f16/bf16, converted chunk by chunk in a buffer that stays in the cache.
struct F16Stream {
  int arg = -1;                         ///< -1: absent
  std::int64_t bytes = 4;               ///< per element
  device::ConvertFn convert = nullptr;  ///< nullptr: the operand is float32

  static F16Stream operand(device::Isa isa, int arg, DataType dtype) {
    if (!is_f16(dtype)) return {.arg = arg};
    return {arg, 2, device::find_conversion(isa, dtype, DataType::kFloat32)};
  }
  static F16Stream result(device::Isa isa, int arg, DataType dtype) {
    if (!is_f16(dtype)) return {.arg = arg};
    return {arg, 2, device::find_conversion(isa, DataType::kFloat32, dtype)};
  }

  bool is_f16() const { return convert != nullptr; }
  bool is_absent(KernelArgs args) const { return arg < 0 || args[arg] == nullptr; }

  /// Returns `count` elements of an operand from `at` on as float32, possibly in `buffer`.
  const float* load(KernelArgs args, std::int64_t at, std::int64_t count, float* buffer) const {
    const std::byte* from = args[arg] + at * bytes;
    if (!is_f16()) return reinterpret_cast<const float*>(from);
    convert(buffer, from, count);
    return buffer;
  }

  /// Returns where to compute the elements of a result from `at` on; call finish() afterwards.
  float* place(KernelArgs args, std::int64_t at, float* buffer) const {
    return is_f16() ? buffer : args.at<float>(arg) + at;
  }
  void finish(KernelArgs args, std::int64_t at, std::int64_t count, const float* placed) const {
    if (is_f16()) convert(args[arg] + at * bytes, placed, count);
  }

 private:
  static bool is_f16(DataType dtype) { return onnxgrad::is_f16(dtype); }
};

}  // namespace onnxgrad::ops

#endif  // ONNXGRAD_OPS_F16_STREAM_CPU_H_
