#include "device/cpu/dispatch.h"
#include "device/cpu/offset_tile.h"
#include "device/cpu/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/offset_tile_double_simd.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "device/cpu/offset_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onnxgrad::device::HWY_NAMESPACE {

const OffsetTarget<double>* double_offset_target() {
  static const OffsetTarget<double> target = make_target<double>();
  return &target;
}

}  // namespace onnxgrad::device::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace onnxgrad::device {

HWY_EXPORT(double_offset_target);

template <>
const OffsetTarget<double>& offset_target<double>(Isa isa) {
  return *chosen(HWY_DISPATCH_TABLE(double_offset_target), isa)();
}

}  // namespace onnxgrad::device
#endif  // HWY_ONCE
