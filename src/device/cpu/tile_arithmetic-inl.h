// Arithmetic on tiles, for all instruction sets; see gemm_tile-inl.h.
#if defined(ONNXGRAD_DEVICE_CPU_TILE_ARITHMETIC_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONNXGRAD_DEVICE_CPU_TILE_ARITHMETIC_INL_H_
#undef ONNXGRAD_DEVICE_CPU_TILE_ARITHMETIC_INL_H_
#else
#define ONNXGRAD_DEVICE_CPU_TILE_ARITHMETIC_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>

#include "device/cpu/tile_loops-inl.h"
#include "device/cpu/tile_ops.h"

HWY_BEFORE_NAMESPACE();
namespace onnxgrad::device::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// NOLINTBEGIN(readability-named-parameter): each instruction is its one line.
struct AddOp {
  template <class D, class V>
  HWY_INLINE V operator()(D, V a, V b) const {
    return hn::Add(a, b);
  }
};
struct SubOp {
  template <class D, class V>
  HWY_INLINE V operator()(D, V a, V b) const {
    return hn::Sub(a, b);
  }
};
struct MulOp {
  template <class D, class V>
  HWY_INLINE V operator()(D, V a, V b) const {
    return hn::Mul(a, b);
  }
};
struct DivOp {
  template <class D, class V>
  HWY_INLINE V operator()(D, V a, V b) const {
    return hn::Div(a, b);
  }
};
struct CopyOp {
  template <class D, class V>
  HWY_INLINE V operator()(D, V a) const {
    return a;
  }
};
struct NegOp {
  template <class D, class V>
  HWY_INLINE V operator()(D, V a) const {
    return hn::Neg(a);
  }
};
struct AbsOp {
  template <class D, class V>
  HWY_INLINE V operator()(D, V a) const {
    return hn::Abs(a);
  }
};
struct SqrtOp {
  template <class D, class V>
  HWY_INLINE V operator()(D, V a) const {
    return hn::Sqrt(a);
  }
};
struct FloorOp {
  template <class D, class V>
  HWY_INLINE V operator()(D, V a) const {
    return hn::Floor(a);
  }
};
struct CeilOp {
  template <class D, class V>
  HWY_INLINE V operator()(D, V a) const {
    return hn::Ceil(a);
  }
};
struct RoundOp {
  template <class D, class V>
  HWY_INLINE V operator()(D, V a) const {
    return hn::Round(a);
  }
};
struct FmaOp {
  template <class D, class V>
  HWY_INLINE V operator()(D, V a, V b, V c) const {
    return hn::MulAdd(a, b, c);
  }
};
struct MulSubOp {
  template <class D, class V>
  HWY_INLINE V operator()(D, V a, V b, V c) const {
    return hn::MulSub(a, b, c);
  }
};
struct NegMulAddOp {
  template <class D, class V>
  HWY_INLINE V operator()(D, V a, V b, V c) const {
    return hn::NegMulAdd(a, b, c);
  }
};
struct EqualOp {
  template <class D, class V>
  HWY_INLINE V operator()(D d, V a, V b) const {
    return one_or_zero(d, hn::Eq(a, b));
  }
};
struct GreaterOp {
  template <class D, class V>
  HWY_INLINE V operator()(D d, V a, V b) const {
    return one_or_zero(d, hn::Gt(a, b));
  }
};
struct GreaterEqualOp {
  template <class D, class V>
  HWY_INLINE V operator()(D d, V a, V b) const {
    return one_or_zero(d, hn::Ge(a, b));
  }
};
struct LessOp {
  template <class D, class V>
  HWY_INLINE V operator()(D d, V a, V b) const {
    return one_or_zero(d, hn::Lt(a, b));
  }
};
struct LessEqualOp {
  template <class D, class V>
  HWY_INLINE V operator()(D d, V a, V b) const {
    return one_or_zero(d, hn::Le(a, b));
  }
};
struct IsNanOp {
  template <class D, class V>
  HWY_INLINE V operator()(D d, V a) const {
    return one_or_zero(d, hn::IsNaN(a));
  }
};
struct IsInfOp {
  template <class D, class V>
  HWY_INLINE V operator()(D d, V a) const {
    return one_or_zero(d, hn::IsInf(a));
  }
};
// NOLINTEND(readability-named-parameter)

/// Maximum; NaN if either operand is NaN, as in NumPy.
struct MaxOp {
  template <class D, class V>
  HWY_INLINE V operator()(D, V a, V b) const {
    const V larger = hn::IfThenElse(hn::Gt(a, b), a, b);  // b if either is NaN
    return hn::IfThenElse(hn::IsNaN(a), a, larger);
  }
};

struct MinOp {
  template <class D, class V>
  HWY_INLINE V operator()(D, V a, V b) const {
    const V smaller = hn::IfThenElse(hn::Lt(a, b), a, b);
    return hn::IfThenElse(hn::IsNaN(a), a, smaller);
  }
};

struct ReluOp {
  template <class D, class V>
  HWY_INLINE V operator()(D d, V a) const {
    return max_or_nan(hn::Zero(d), a);
  }
};

struct ReciprocalOp {
  template <class D, class V>
  HWY_INLINE V operator()(D d, V a) const {
    return hn::Div(hn::Set(d, hn::TFromD<D>(1)), a);
  }
};

/// Sign: -1, 0 or 1; NaN for NaN.
struct SignOp {
  template <class D, class V>
  HWY_INLINE V operator()(D d, V a) const {
    const V one = hn::CopySign(hn::Set(d, hn::TFromD<D>(1)), a);
    return hn::IfThenElse(hn::Eq(a, a), hn::IfThenElseZero(hn::Ne(a, hn::Zero(d)), one), a);
  }
};

struct NotOp {
  template <class D, class V>
  HWY_INLINE V operator()(D d, V a) const {
    return one_or_zero(d, hn::Eq(a, hn::Zero(d)));
  }
};

struct AndOp {
  template <class D, class V>
  HWY_INLINE V operator()(D d, V a, V b) const {
    return one_or_zero(d, hn::And(hn::Ne(a, hn::Zero(d)), hn::Ne(b, hn::Zero(d))));
  }
};

struct OrOp {
  template <class D, class V>
  HWY_INLINE V operator()(D d, V a, V b) const {
    return one_or_zero(d, hn::Or(hn::Ne(a, hn::Zero(d)), hn::Ne(b, hn::Zero(d))));
  }
};

struct XorOp {
  template <class D, class V>
  HWY_INLINE V operator()(D d, V a, V b) const {
    return one_or_zero(d, hn::Xor(hn::Ne(a, hn::Zero(d)), hn::Ne(b, hn::Zero(d))));
  }
};

struct SelectOp {
  template <class D, class V>
  HWY_INLINE V operator()(D d, V a, V b, V c) const {
    return hn::IfThenElse(hn::Ne(a, hn::Zero(d)), b, c);
  }
};

struct MulGreaterOp {
  template <class D, class V>
  HWY_INLINE V operator()(D d, V a, V b, V c) const {
    return hn::Mul(a, one_or_zero(d, hn::Gt(b, c)));
  }
};

struct AddReluOp {
  template <class D, class V>
  HWY_INLINE V operator()(D d, V a, V b) const {
    return max_or_nan(hn::Zero(d), hn::Add(a, b));
  }
};

template <class T>
void fill_tile(void* to, const void* a, const void* /*b*/, const void* /*c*/, std::int64_t n,
               bool pad) {
  const TileOperand<T, true> value(a);
  for_each_vector<T>(
      to, n, pad, [&](std::int64_t i) { return value.load(i); },
      [&](std::int64_t i, auto mask, std::int64_t count) {
        return value.load_rest(i, mask, count);
      });
}

template <class T, Fold kFold>
struct Folding {
  using D = hn::ScalableTag<T>;
  using V = hn::Vec<D>;
  static constexpr std::int64_t kLanes = hn::MaxLanes(D());

  static HWY_INLINE V combine(V a, V b) {
    if constexpr (kFold == Fold::kSum) return hn::Add(a, b);
    if constexpr (kFold == Fold::kMax) return MaxOp()(D(), a, b);
    return MinOp()(D(), a, b);
  }

  static HWY_INLINE V identity() {
    const D d;
    if constexpr (kFold == Fold::kSum) return hn::Zero(d);
    const V infinity = hn::Inf(d);
    return kFold == Fold::kMax ? hn::Neg(infinity) : infinity;
  }

  /// Reduces a vector to one element: its two halves are combined until one lane is left, since
  /// lane after lane would be one long chain of dependent operations.
  static HWY_INLINE T across(V v) {
    const D d;
    if constexpr (kFold == Fold::kSum) return hn::GetLane(hn::SumOfLanes(d, v));
    HWY_ALIGN T lanes[kLanes];
    hn::Store(v, d, lanes);
    T result = lanes[0];
    for (std::int64_t i = 1; i < kLanes; ++i) {
      const bool better = kFold == Fold::kMax ? lanes[i] > result : lanes[i] < result;
      if (better || lanes[i] != lanes[i]) result = lanes[i];
      if (result != result) break;
    }
    return result;
  }

  static HWY_INLINE V load_rest(const T* x, std::int64_t count) {
    const D d;
    const auto mask = hn::FirstN(d, static_cast<std::size_t>(count));
    return hn::IfThenElse(mask, load_first(d, mask, x, count), identity());
  }

  static T fold_one(const T* x, std::int64_t n) {
    const D d;
    std::int64_t i = 0;
    V total = identity();
    if (n >= 4 * kLanes) {
      V sum[4] = {total, total, total, total};
      for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
#pragma GCC unroll 4
        for (int v = 0; v < 4; ++v) sum[v] = combine(sum[v], hn::LoadU(d, x + i + v * kLanes));
      }
      total = combine(combine(sum[0], sum[1]), combine(sum[2], sum[3]));
    }
    for (; i + kLanes <= n; i += kLanes) total = combine(total, hn::LoadU(d, x + i));
    if (i < n) total = combine(total, load_rest(x + i, n - i));
    return across(total);
  }

  static void columns(const void* x, std::int64_t rows, std::int64_t columns,
                      std::ptrdiff_t row_step, void* to) {
    const T* from = static_cast<const T*>(x);
    T* out = static_cast<T*>(to);
    for (std::int64_t r = 0; r < rows; ++r) out[r] = fold_one(from + r * row_step, columns);
  }

  static HWY_INLINE V fold_down(const T* x, std::int64_t rows, std::ptrdiff_t row_step) {
    const D d;
    V even = identity();
    V odd = even;
    std::int64_t r = 0;
    for (; r + 2 <= rows; r += 2) {
      even = combine(even, hn::LoadU(d, x));
      odd = combine(odd, hn::LoadU(d, x + row_step));
      x += 2 * row_step;
    }
    if (r < rows) even = combine(even, hn::LoadU(d, x));
    return combine(even, odd);
  }

  static void rows(const void* x, std::int64_t rows, std::int64_t columns, std::ptrdiff_t row_step,
                   void* to) {
    const D d;
    const T* from = static_cast<const T*>(x);
    T* out = static_cast<T*>(to);
    std::int64_t j = 0;
    for (; j + kLanes <= columns; j += kLanes) {
      hn::StoreU(fold_down(from + j, rows, row_step), d, out + j);
    }
    if (j == columns) return;
    const std::int64_t count = columns - j;
    const auto mask = hn::FirstN(d, static_cast<std::size_t>(count));
    V even = identity();
    V odd = even;
    for (std::int64_t r = 0; r + 1 < rows; r += 2) {
      even = combine(even, load_first(d, mask, from + r * row_step + j, count));
      odd = combine(odd, load_first(d, mask, from + (r + 1) * row_step + j, count));
    }
    if (rows % 2 != 0) {
      even = combine(even, load_first(d, mask, from + (rows - 1) * row_step + j, count));
    }
    store_first(combine(even, odd), d, mask, out + j, count);
  }
};

template <class T, Fold kFold>
void add_fold(TileTable& table) {
  table.fold_columns[static_cast<std::size_t>(kFold)] = Folding<T, kFold>::columns;
  table.fold_rows[static_cast<std::size_t>(kFold)] = Folding<T, kFold>::rows;
}

template <class T>
void fill(TileTable& table) {
  using opdef::ExprOp;
  add_binary<T, AddOp>(table, tile_op(ExprOp::kAdd));
  add_binary<T, SubOp>(table, tile_op(ExprOp::kSub));
  add_binary<T, MulOp>(table, tile_op(ExprOp::kMul));
  add_binary<T, DivOp>(table, tile_op(ExprOp::kDiv));
  add_binary<T, MinOp>(table, tile_op(ExprOp::kMin));
  add_binary<T, MaxOp>(table, tile_op(ExprOp::kMax));
  add_binary<T, EqualOp>(table, tile_op(ExprOp::kEqual));
  add_binary<T, GreaterOp>(table, tile_op(ExprOp::kGreater));
  add_binary<T, GreaterEqualOp>(table, tile_op(ExprOp::kGreaterEqual));
  add_binary<T, LessOp>(table, tile_op(ExprOp::kLess));
  add_binary<T, LessEqualOp>(table, tile_op(ExprOp::kLessEqual));
  add_binary<T, AndOp>(table, tile_op(ExprOp::kAnd));
  add_binary<T, OrOp>(table, tile_op(ExprOp::kOr));
  add_binary<T, XorOp>(table, tile_op(ExprOp::kXor));
  add_unary<T, NegOp>(table, tile_op(ExprOp::kNeg));
  add_unary<T, AbsOp>(table, tile_op(ExprOp::kAbs));
  add_unary<T, SignOp>(table, tile_op(ExprOp::kSign));
  add_unary<T, SqrtOp>(table, tile_op(ExprOp::kSqrt));
  add_unary<T, ReciprocalOp>(table, tile_op(ExprOp::kReciprocal));
  add_unary<T, FloorOp>(table, tile_op(ExprOp::kFloor));
  add_unary<T, CeilOp>(table, tile_op(ExprOp::kCeil));
  add_unary<T, RoundOp>(table, tile_op(ExprOp::kRound));
  add_unary<T, NotOp>(table, tile_op(ExprOp::kNot));
  add_unary<T, IsNanOp>(table, tile_op(ExprOp::kIsNan));
  add_unary<T, IsInfOp>(table, tile_op(ExprOp::kIsInf));
  add_unary<T, ReluOp>(table, tile_op(ExprOp::kRelu));
  add_ternary<T, SelectOp>(table, tile_op(ExprOp::kSelect));
  add_ternary<T, FmaOp>(table, tile_op(ExprOp::kFma));
  add_ternary<T, MulSubOp>(table, TileOp::kMulSub);
  add_ternary<T, NegMulAddOp>(table, TileOp::kNegMulAdd);
  add_ternary<T, MulGreaterOp>(table, TileOp::kMulGreater);
  add_binary<T, AddReluOp>(table, TileOp::kAddRelu);
  add_unary<T, CopyOp>(table, TileOp::kCopy);
  table.at(TileOp::kFill) = fill_tile<T>;
  add_fold<T, Fold::kSum>(table);
  add_fold<T, Fold::kMax>(table);
  add_fold<T, Fold::kMin>(table);
}

}  // namespace onnxgrad::device::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // ONNXGRAD_DEVICE_CPU_TILE_ARITHMETIC_INL_H_
