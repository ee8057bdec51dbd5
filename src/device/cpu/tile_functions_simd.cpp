#include <cmath>
#include <cstdint>

#include "device/cpu/dispatch.h"
#include "device/cpu/simd.h"
#include "device/cpu/tile_ops.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/tile_functions_simd.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "device/cpu/f16-inl.h"
#include "device/cpu/tile_functions-inl.h"
#include "device/cpu/tile_loops-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onnxgrad::device::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

struct ExpOp {
  template <class D, class V>
  HWY_INLINE V operator()(D d, V x) const {
    return exp_of(d, x);
  }
};

struct LogOp {
  template <class D, class V>
  HWY_INLINE V operator()(D d, V x) const {
    return log_of(d, x);
  }
};

struct TanhOp {
  template <class D, class V>
  HWY_INLINE V operator()(D d, V x) const {
    return hn::Tanh(d, x);
  }
};

struct SigmoidOp {
  template <class D, class V>
  HWY_INLINE V operator()(D d, V x) const {
    return sigmoid_of(d, x);
  }
};

struct SoftplusOp {
  template <class D, class V>
  HWY_INLINE V operator()(D d, V x) const {
    return softplus_of(d, x);
  }
};

struct ErfOp {
  template <class D, class V>
  HWY_INLINE V operator()(D d, V x) const {
    return erf_of(d, x);
  }
};

struct SinOp {
  template <class D, class V>
  HWY_INLINE V operator()(D d, V x) const {
    using T = hn::TFromD<D>;
    if (HWY_LIKELY(is_small_angle(d, x))) return hn::Sin(d, x);
    return per_lane(d, x, [](T v) { return std::sin(v); });
  }
};

struct CosOp {
  template <class D, class V>
  HWY_INLINE V operator()(D d, V x) const {
    using T = hn::TFromD<D>;
    if (HWY_LIKELY(is_small_angle(d, x))) return hn::Cos(d, x);
    return per_lane(d, x, [](T v) { return std::cos(v); });
  }
};

template <class Format>
struct ToF16Op {
  template <class D, class V>
  HWY_INLINE V operator()(D d, V x) const {
    return round_to_f16<Format>(d, x);
  }
};

// Functions that no hot loop has needed yet call the C library, lane by lane.
#define ONNXGRAD_LANE_OP(Name, function)                           \
  struct Name {                                                    \
    template <class D, class V>                                    \
    HWY_INLINE V operator()(D d, V x) const {                      \
      using T = hn::TFromD<D>;                                     \
      return per_lane(d, x, [](T v) { return std::function(v); }); \
    }                                                              \
  }
ONNXGRAD_LANE_OP(TanOp, tan);
ONNXGRAD_LANE_OP(AsinOp, asin);
ONNXGRAD_LANE_OP(AcosOp, acos);
ONNXGRAD_LANE_OP(AtanOp, atan);
ONNXGRAD_LANE_OP(SinhOp, sinh);
ONNXGRAD_LANE_OP(CoshOp, cosh);
ONNXGRAD_LANE_OP(AsinhOp, asinh);
ONNXGRAD_LANE_OP(AcoshOp, acosh);
ONNXGRAD_LANE_OP(AtanhOp, atanh);
#undef ONNXGRAD_LANE_OP

struct PowOp {
  template <class D, class V>
  HWY_INLINE V operator()(D d, V a, V b) const {
    using T = hn::TFromD<D>;
    return per_lane(d, a, b, [](T x, T y) { return std::pow(x, y); });
  }
};

/// Remainder with the sign of the dividend, as in C's fmod.
struct FmodOp {
  template <class D, class V>
  HWY_INLINE V operator()(D d, V a, V b) const {
    using T = hn::TFromD<D>;
    return per_lane(d, a, b, [](T x, T y) { return std::fmod(x, y); });
  }
};

/// Remainder with the sign of the divisor, as in Python's %.
struct ModOp {
  template <class D, class V>
  HWY_INLINE V operator()(D d, V a, V b) const {
    using T = hn::TFromD<D>;
    return per_lane(d, a, b, [](T x, T y) {
      const T rest = std::fmod(x, y);
      return rest != 0 && (rest < 0) != (y < 0) ? rest + y : rest;
    });
  }
};

template <class T>
void fill_functions_of(TileTable& table) {
  using opdef::ExprOp;
  add_binary<T, PowOp>(table, tile_op(ExprOp::kPow));
  add_binary<T, ModOp>(table, tile_op(ExprOp::kMod));
  add_binary<T, FmodOp>(table, tile_op(ExprOp::kFmod));
  add_unary<T, ExpOp>(table, tile_op(ExprOp::kExp));
  add_unary<T, LogOp>(table, tile_op(ExprOp::kLog));
  add_unary<T, TanhOp>(table, tile_op(ExprOp::kTanh));
  add_unary<T, SigmoidOp>(table, tile_op(ExprOp::kSigmoid));
  add_unary<T, SoftplusOp>(table, tile_op(ExprOp::kSoftplus));
  add_unary<T, ErfOp>(table, tile_op(ExprOp::kErf));
  add_unary<T, SinOp>(table, tile_op(ExprOp::kSin));
  add_unary<T, CosOp>(table, tile_op(ExprOp::kCos));
  add_unary<T, ToF16Op<Float16Format>>(table, tile_op(ExprOp::kToFloat16));
  add_unary<T, ToF16Op<Bfloat16Format>>(table, tile_op(ExprOp::kToBfloat16));
  add_unary<T, TanOp>(table, tile_op(ExprOp::kTan));
  add_unary<T, AsinOp>(table, tile_op(ExprOp::kAsin));
  add_unary<T, AcosOp>(table, tile_op(ExprOp::kAcos));
  add_unary<T, AtanOp>(table, tile_op(ExprOp::kAtan));
  add_unary<T, SinhOp>(table, tile_op(ExprOp::kSinh));
  add_unary<T, CoshOp>(table, tile_op(ExprOp::kCosh));
  add_unary<T, AsinhOp>(table, tile_op(ExprOp::kAsinh));
  add_unary<T, AcoshOp>(table, tile_op(ExprOp::kAcosh));
  add_unary<T, AtanhOp>(table, tile_op(ExprOp::kAtanh));
}

void fill_float_functions(TileTable& table) { fill_functions_of<float>(table); }
void fill_double_functions(TileTable& table) { fill_functions_of<double>(table); }

}  // namespace onnxgrad::device::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace onnxgrad::device {

HWY_EXPORT(fill_float_functions);
HWY_EXPORT(fill_double_functions);

void fill_functions(Isa isa, TileTable& table, DataType compute) {
  if (compute == DataType::kFloat32) {
    chosen(HWY_DISPATCH_TABLE(fill_float_functions), isa)(table);
  } else {
    chosen(HWY_DISPATCH_TABLE(fill_double_functions), isa)(table);
  }
}

}  // namespace onnxgrad::device
#endif  // HWY_ONCE
