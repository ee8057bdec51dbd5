// Loops over tiles for instructions given as function objects on vectors; included once per
// instruction set. An instruction is `struct { template <class D, class V> V operator()(D d, V a, V
// b) const; }`.
#if defined(ONNXGRAD_DEVICE_CPU_TILE_LOOPS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONNXGRAD_DEVICE_CPU_TILE_LOOPS_INL_H_
#undef ONNXGRAD_DEVICE_CPU_TILE_LOOPS_INL_H_
#else
#define ONNXGRAD_DEVICE_CPU_TILE_LOOPS_INL_H_
#endif

#include "device/cpu/simd-inl.h"
#include "device/cpu/tile_ops.h"

HWY_BEFORE_NAMESPACE();
namespace onnxgrad::device::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// An operand as the loop sees it: a run of elements, or one element in all lanes.
template <class T, bool kScalar>
struct TileOperand {
  using D = hn::ScalableTag<T>;
  using V = hn::Vec<D>;

  explicit TileOperand(const void* from) : from_(static_cast<const T*>(from)) {
    if constexpr (kScalar) value_ = hn::Set(D(), *from_);
  }
  HWY_INLINE V load(std::int64_t i) const {
    if constexpr (kScalar) return value_;
    return hn::LoadU(D(), from_ + i);
  }
  template <class M>
  HWY_INLINE V load_rest(std::int64_t i, M mask, std::int64_t count) const {
    if constexpr (kScalar) return value_;
    return load_first(D(), mask, from_ + i, count);
  }

 private:
  const T* from_;
  V value_ = hn::Undefined(D());
};

/// Calls f(i) for full vectors and f_rest(i, mask, count) for the remainder, and stores the
/// results.
template <class T, class F, class R>
HWY_INLINE void for_each_vector(void* to, std::int64_t n, bool pad, F f, R f_rest) {
  const hn::ScalableTag<T> d;
  constexpr std::int64_t kLanes = hn::MaxLanes(d);
  T* out = static_cast<T*>(to);
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) hn::StoreU(f(i), d, out + i);
  if (i == n) return;
  const std::int64_t count = n - i;
  const auto mask = hn::FirstN(d, static_cast<std::size_t>(count));
  const auto value = f_rest(i, mask, count);
  if (pad) {
    hn::StoreU(value, d, out + i);
  } else {
    store_first(value, d, mask, out + i, count);
  }
}

template <class T, class Op>
void unary_tile(void* to, const void* a, const void* /*b*/, const void* /*c*/, std::int64_t n,
                bool pad) {
  const hn::ScalableTag<T> d;
  const TileOperand<T, false> first(a);
  const Op op;
  for_each_vector<T>(
      to, n, pad, [&](std::int64_t i) { return op(d, first.load(i)); },
      [&](std::int64_t i, auto mask, std::int64_t count) {
        return op(d, first.load_rest(i, mask, count));
      });
}

template <class T, class Op, bool kScalarA, bool kScalarB>
void binary_tile(void* to, const void* a, const void* b, const void* /*c*/, std::int64_t n,
                 bool pad) {
  const hn::ScalableTag<T> d;
  const TileOperand<T, kScalarA> first(a);
  const TileOperand<T, kScalarB> second(b);
  const Op op;
  for_each_vector<T>(
      to, n, pad, [&](std::int64_t i) { return op(d, first.load(i), second.load(i)); },
      [&](std::int64_t i, auto mask, std::int64_t count) {
        return op(d, first.load_rest(i, mask, count), second.load_rest(i, mask, count));
      });
}

template <class T, class Op, bool kScalarB, bool kScalarC>
void ternary_tile(void* to, const void* a, const void* b, const void* c, std::int64_t n, bool pad) {
  const hn::ScalableTag<T> d;
  const TileOperand<T, false> first(a);
  const TileOperand<T, kScalarB> second(b);
  const TileOperand<T, kScalarC> third(c);
  const Op op;
  for_each_vector<T>(
      to, n, pad,
      [&](std::int64_t i) { return op(d, first.load(i), second.load(i), third.load(i)); },
      [&](std::int64_t i, auto mask, std::int64_t count) {
        return op(d, first.load_rest(i, mask, count), second.load_rest(i, mask, count),
                  third.load_rest(i, mask, count));
      });
}

template <class T, class Op>
void add_unary(TileTable& table, TileOp op) {
  table.at(op) = unary_tile<T, Op>;
}

template <class T, class Op>
void add_binary(TileTable& table, TileOp op) {
  table.at(op, kAllVectors) = binary_tile<T, Op, false, false>;
  table.at(op, kLastScalar) = binary_tile<T, Op, false, true>;
  table.at(op, kFirstScalar) = binary_tile<T, Op, true, false>;
}

template <class T, class Op>
void add_ternary(TileTable& table, TileOp op) {
  table.at(op, kAllVectors) = ternary_tile<T, Op, false, false>;
  table.at(op, kLastScalar) = ternary_tile<T, Op, false, true>;
  table.at(op, kFirstScalar) = ternary_tile<T, Op, true, false>;
  table.at(op, kBothScalar) = ternary_tile<T, Op, true, true>;
}

/// Calls `f` on each lane, for functions without a vector version.
template <class D, class V, class F>
HWY_INLINE V per_lane(D d, V v, F f) {
  using T = hn::TFromD<D>;
  HWY_ALIGN T lanes[hn::MaxLanes(D())];
  hn::Store(v, d, lanes);
  for (T& lane : lanes) lane = f(lane);
  return hn::Load(d, lanes);
}

template <class D, class V, class F>
HWY_INLINE V per_lane(D d, V a, V b, F f) {
  using T = hn::TFromD<D>;
  HWY_ALIGN T first[hn::MaxLanes(D())];
  HWY_ALIGN T second[hn::MaxLanes(D())];
  hn::Store(a, d, first);
  hn::Store(b, d, second);
  for (std::size_t i = 0; i < hn::MaxLanes(D()); ++i) first[i] = f(first[i], second[i]);
  return hn::Load(d, first);
}

/// 1 where the mask is set, else 0.
template <class D, class M>
HWY_INLINE hn::Vec<D> one_or_zero(D d, M mask) {
  return hn::IfThenElseZero(mask, hn::Set(d, hn::TFromD<D>(1)));
}

}  // namespace onnxgrad::device::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
