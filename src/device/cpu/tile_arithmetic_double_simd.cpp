#include "device/cpu/dispatch.h"
#include "device/cpu/simd.h"
#include "device/cpu/tile_ops.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/tile_arithmetic_double_simd.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "device/cpu/tile_arithmetic-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onnxgrad::device::HWY_NAMESPACE {

void fill_double(TileTable& table) { fill<double>(table); }

}  // namespace onnxgrad::device::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace onnxgrad::device {

HWY_EXPORT(fill_double);

void fill_double_arithmetic(Isa isa, TileTable& table) {
  chosen(HWY_DISPATCH_TABLE(fill_double), isa)(table);
}

}  // namespace onnxgrad::device
#endif  // HWY_ONCE
