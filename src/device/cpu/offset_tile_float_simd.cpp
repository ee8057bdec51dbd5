#include "device/cpu/dispatch.h"
#include "device/cpu/offset_tile.h"
#include "device/cpu/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/offset_tile_float_simd.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "device/cpu/offset_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onnxgrad::device::HWY_NAMESPACE {

const OffsetTarget<float>* float_offset_target() {
  static const OffsetTarget<float> target = make_target<float>();
  return &target;
}

}  // namespace onnxgrad::device::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace onnxgrad::device {

HWY_EXPORT(float_offset_target);

template <>
const OffsetTarget<float>& offset_target<float>(Isa isa) {
  return *chosen(HWY_DISPATCH_TABLE(float_offset_target), isa)();
}

}  // namespace onnxgrad::device
#endif  // HWY_ONCE
