#include <cstdint>

#include "device/cpu/dispatch.h"
#include "device/cpu/simd.h"
#include "ops/fused/attention_rows_simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/fused/attention_rows_simd.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "device/cpu/simd-inl.h"
#include "device/cpu/tile_functions-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onnxgrad::ops::attention_rows::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
namespace dn = onnxgrad::device::HWY_NAMESPACE;

template <class T>
using Tag = hn::ScalableTag<T>;

template <class T>
using Vector = hn::Vec<Tag<T>>;

template <class T>
inline constexpr std::int64_t kLanes = hn::MaxLanes(Tag<T>());

// Calls f for whole vectors, then for the first lanes of one.
template <class T>
struct Whole {
  HWY_INLINE Vector<T> load(const T* from) const { return hn::LoadU(Tag<T>(), from); }
  HWY_INLINE void store(Vector<T> v, T* to) const { hn::StoreU(v, Tag<T>(), to); }
  HWY_INLINE Vector<T> fill_rest(Vector<T> v, T /*rest*/) const { return v; }
};

template <class T>
struct First {
  hn::Mask<Tag<T>> mask;
  std::int64_t count;
  HWY_INLINE Vector<T> load(const T* from) const {
    return dn::load_first(Tag<T>(), mask, from, count);
  }
  HWY_INLINE void store(Vector<T> v, T* to) const { dn::store_first(v, Tag<T>(), mask, to, count); }
  HWY_INLINE Vector<T> fill_rest(Vector<T> v, T rest) const {
    return hn::IfThenElse(mask, v, hn::Set(Tag<T>(), rest));
  }
};

template <class T, class F>
HWY_INLINE void visit(std::int64_t count, const F& f) {
  std::int64_t i = 0;
  for (; i + kLanes<T> <= count; i += kLanes<T>) f(i, Whole<T>());
  if (i == count) return;
  f(i, First<T>{hn::FirstN(Tag<T>(), static_cast<std::size_t>(count - i)), count - i});
}

template <class T>
HWY_INLINE void add_mask_to(T* x, T scale, const T* mask, std::int64_t step, std::int64_t count) {
  const Tag<T> d;
  const Vector<T> factor = hn::Set(d, scale);
  const Vector<T> only = hn::Set(d, *mask);
  visit<T>(count, [&](std::int64_t i, auto part) HWY_ATTR {
    const Vector<T> term = step == 0 ? only : part.load(mask + i);
    part.store(hn::MulAdd(factor, part.load(x + i), term), x + i);
  });
}

template <class T>
HWY_INLINE RowStats<T> exponentials_of(T* x, T scale, std::int64_t count) {
  const Tag<T> d;
  const Vector<T> factor = hn::Set(d, scale);
  const T lowest = hn::GetLane(hn::Neg(hn::Inf(d)));
  Vector<T> most = hn::Set(d, lowest);
  visit<T>(count, [&](std::int64_t i, auto part) HWY_ATTR {
    const Vector<T> scaled = hn::Mul(factor, part.load(x + i));
    most = hn::Max(most, part.fill_rest(scaled, lowest));
  });
  const T largest = hn::GetLane(hn::MaxOfLanes(d, most));
  const Vector<T> shift = hn::Set(d, largest);
  Vector<T> sum = hn::Zero(d);
  visit<T>(count, [&](std::int64_t i, auto part) HWY_ATTR {
    const Vector<T> e = dn::exp_below_88(d, hn::MulSub(factor, part.load(x + i), shift));
    part.store(e, x + i);
    sum = hn::Add(sum, part.fill_rest(e, T(0)));
  });
  return {largest, T(1) / hn::GetLane(hn::SumOfLanes(d, sum))};
}

template <class T>
HWY_INLINE void gradient_of(const RowGradient<T>& row, std::int64_t count) {
  const Tag<T> d;
  const Vector<T> scale = hn::Set(d, row.scale);
  const Vector<T> factor = hn::Set(d, row.factor);
  const Vector<T> largest = hn::Set(d, row.stats.largest);
  const Vector<T> inverse = hn::Set(d, row.stats.inverse);
  const Vector<T> along = hn::Set(d, row.along);
  visit<T>(count, [&](std::int64_t i, auto part) HWY_ATTR {
    Vector<T> p;
    if (row.p != nullptr) {
      p = part.load(row.p + i);
    } else {
      const Vector<T> e = dn::exp_below_88(d, hn::MulSub(scale, part.load(row.x + i), largest));
      p = hn::Mul(e, inverse);
    }
    Vector<T> dp = part.load(row.dx + i);
    Vector<T> kept = p;
    if (row.keep != nullptr) {
      const Vector<T> keep = part.load(row.keep + i);
      dp = hn::Mul(dp, keep);
      kept = hn::Mul(p, keep);
    }
    const Vector<T> ds = hn::Mul(p, hn::Sub(dp, along));
    part.store(kept, row.x + i);
    part.store(hn::Mul(ds, factor), row.dx + i);
    if (row.dscore != nullptr) part.store(ds, row.dscore + i);
  });
}

template <class T>
HWY_INLINE void multiply_by(T* x, const T* keep, std::int64_t count) {
  visit<T>(count, [&](std::int64_t i, auto part) HWY_ATTR {
    part.store(hn::Mul(part.load(x + i), part.load(keep + i)), x + i);
  });
}

template <class T>
HWY_INLINE void scale_by(T* x, T factor, std::int64_t count) {
  const Vector<T> factors = hn::Set(Tag<T>(), factor);
  visit<T>(count, [&](std::int64_t i, auto part)
                      HWY_ATTR { part.store(hn::Mul(part.load(x + i), factors), x + i); });
}

template <class T>
HWY_INLINE T dot_of(const T* a, const T* b, std::int64_t count) {
  const Tag<T> d;
  Vector<T> sum = hn::Zero(d);
  visit<T>(count, [&](std::int64_t i, auto part) HWY_ATTR {
    sum = hn::MulAdd(part.fill_rest(part.load(a + i), T(0)), part.fill_rest(part.load(b + i), T(0)),
                     sum);
  });
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

HWY_ATTR void add_mask_float(float* x, float scale, const float* mask, std::int64_t step,
                             std::int64_t count) {
  add_mask_to(x, scale, mask, step, count);
}
HWY_ATTR void add_mask_double(double* x, double scale, const double* mask, std::int64_t step,
                              std::int64_t count) {
  add_mask_to(x, scale, mask, step, count);
}
HWY_ATTR RowStats<float> exponentials_float(float* x, float scale, std::int64_t count) {
  return exponentials_of(x, scale, count);
}
HWY_ATTR RowStats<double> exponentials_double(double* x, double scale, std::int64_t count) {
  return exponentials_of(x, scale, count);
}
HWY_ATTR void gradient_float(const RowGradient<float>& row, std::int64_t count) {
  gradient_of(row, count);
}
HWY_ATTR void gradient_double(const RowGradient<double>& row, std::int64_t count) {
  gradient_of(row, count);
}
HWY_ATTR void multiply_float(float* x, const float* keep, std::int64_t count) {
  multiply_by(x, keep, count);
}
HWY_ATTR void multiply_double(double* x, const double* keep, std::int64_t count) {
  multiply_by(x, keep, count);
}
HWY_ATTR void scale_float(float* x, float factor, std::int64_t count) {
  scale_by(x, factor, count);
}
HWY_ATTR void scale_double(double* x, double factor, std::int64_t count) {
  scale_by(x, factor, count);
}
HWY_ATTR float dot_float(const float* a, const float* b, std::int64_t count) {
  return dot_of(a, b, count);
}
HWY_ATTR double dot_double(const double* a, const double* b, std::int64_t count) {
  return dot_of(a, b, count);
}

}  // namespace onnxgrad::ops::attention_rows::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace onnxgrad::ops::attention_rows {

HWY_EXPORT(add_mask_float);
HWY_EXPORT(add_mask_double);
HWY_EXPORT(exponentials_float);
HWY_EXPORT(exponentials_double);
HWY_EXPORT(gradient_float);
HWY_EXPORT(gradient_double);
HWY_EXPORT(multiply_float);
HWY_EXPORT(multiply_double);
HWY_EXPORT(scale_float);
HWY_EXPORT(scale_double);
HWY_EXPORT(dot_float);
HWY_EXPORT(dot_double);

void add_mask(device::Isa isa, float* x, float scale, const float* mask, std::int64_t step,
              std::int64_t count) {
  device::chosen(HWY_DISPATCH_TABLE(add_mask_float), isa)(x, scale, mask, step, count);
}
void add_mask(device::Isa isa, double* x, double scale, const double* mask, std::int64_t step,
              std::int64_t count) {
  device::chosen(HWY_DISPATCH_TABLE(add_mask_double), isa)(x, scale, mask, step, count);
}
RowStats<float> exponentials(device::Isa isa, float* x, float scale, std::int64_t count) {
  return device::chosen(HWY_DISPATCH_TABLE(exponentials_float), isa)(x, scale, count);
}
RowStats<double> exponentials(device::Isa isa, double* x, double scale, std::int64_t count) {
  return device::chosen(HWY_DISPATCH_TABLE(exponentials_double), isa)(x, scale, count);
}
void gradient(device::Isa isa, const RowGradient<float>& row, std::int64_t count) {
  device::chosen(HWY_DISPATCH_TABLE(gradient_float), isa)(row, count);
}
void gradient(device::Isa isa, const RowGradient<double>& row, std::int64_t count) {
  device::chosen(HWY_DISPATCH_TABLE(gradient_double), isa)(row, count);
}
void multiply(device::Isa isa, float* x, const float* keep, std::int64_t count) {
  device::chosen(HWY_DISPATCH_TABLE(multiply_float), isa)(x, keep, count);
}
void multiply(device::Isa isa, double* x, const double* keep, std::int64_t count) {
  device::chosen(HWY_DISPATCH_TABLE(multiply_double), isa)(x, keep, count);
}
void scale(device::Isa isa, float* x, float factor, std::int64_t count) {
  device::chosen(HWY_DISPATCH_TABLE(scale_float), isa)(x, factor, count);
}
void scale(device::Isa isa, double* x, double factor, std::int64_t count) {
  device::chosen(HWY_DISPATCH_TABLE(scale_double), isa)(x, factor, count);
}
float dot(device::Isa isa, const float* a, const float* b, std::int64_t count) {
  return device::chosen(HWY_DISPATCH_TABLE(dot_float), isa)(a, b, count);
}
double dot(device::Isa isa, const double* a, const double* b, std::int64_t count) {
  return device::chosen(HWY_DISPATCH_TABLE(dot_double), isa)(a, b, count);
}

}  // namespace onnxgrad::ops::attention_rows
#endif  // HWY_ONCE
