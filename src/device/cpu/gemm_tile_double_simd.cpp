#include "device/cpu/dispatch.h"
#include "device/cpu/gemm_tile.h"
#include "device/cpu/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/gemm_tile_double_simd.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "device/cpu/gemm_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onnxgrad::device::HWY_NAMESPACE {

const GemmTarget<double>* double_target() {
  static const GemmTarget<double> target = make_target<double>();
  return &target;
}

}  // namespace onnxgrad::device::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace onnxgrad::device {

HWY_EXPORT(double_target);

template <>
const GemmTarget<double>& gemm_target<double>(Isa isa) {
  return *chosen(HWY_DISPATCH_TABLE(double_target), isa)();
}

}  // namespace onnxgrad::device
#endif  // HWY_ONCE
