#include <algorithm>
#include <cstdint>

#include "device/cpu/dispatch.h"
#include "device/cpu/simd.h"
#include "ops/nn/softmax_rows_simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/nn/softmax_rows_simd.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "device/cpu/simd-inl.h"
#include "device/cpu/tile_functions-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onnxgrad::ops::rows::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
namespace dn = onnxgrad::device::HWY_NAMESPACE;

template <class T>
using Tag = hn::ScalableTag<T>;

template <class T>
using Vector = hn::Vec<Tag<T>>;

template <class T>
inline constexpr std::int64_t kLanes = hn::MaxLanes(Tag<T>());

// Calls f(i) for full vectors of a row, then f_rest(i, mask, count) for the remainder.
template <class T, class F, class R>
HWY_INLINE void visit_row(std::int64_t cols, F f, R f_rest) {
  std::int64_t i = 0;
  for (; i + kLanes<T> <= cols; i += kLanes<T>) f(i);
  if (i == cols) return;
  f_rest(i, hn::FirstN(Tag<T>(), static_cast<std::size_t>(cols - i)), cols - i);
}

template <class T>
HWY_INLINE T largest(const T* x, std::int64_t cols) {
  const Tag<T> d;
  const Vector<T> floor = hn::Neg(hn::Inf(d));
  Vector<T> most = floor;
  visit_row<T>(
      cols, [&](std::int64_t i) HWY_ATTR { most = hn::Max(most, hn::LoadU(d, x + i)); },
      [&](std::int64_t i, auto mask, std::int64_t count) HWY_ATTR {
        const auto rest = dn::load_first(d, mask, x + i, count);
        most = hn::Max(most, hn::IfThenElse(mask, rest, floor));
      });
  return hn::GetLane(hn::MaxOfLanes(d, most));
}

// Returns sum(exp(x - shift)); also stores the terms in y if given.
template <class T>
HWY_INLINE T sum_exp(const T* x, T shift, T* y, std::int64_t cols) {
  const Tag<T> d;
  const Vector<T> shifts = hn::Set(d, shift);
  Vector<T> sum = hn::Zero(d);
  visit_row<T>(
      cols,
      [&](std::int64_t i) HWY_ATTR {
        const auto e = dn::exp_of(d, hn::Sub(hn::LoadU(d, x + i), shifts));
        if (y != nullptr) hn::StoreU(e, d, y + i);
        sum = hn::Add(sum, e);
      },
      [&](std::int64_t i, auto mask, std::int64_t count) HWY_ATTR {
        const auto rest = dn::load_first(d, mask, x + i, count);
        const auto e = dn::exp_of(d, hn::Sub(rest, shifts));
        if (y != nullptr) dn::store_first(e, d, mask, y + i, count);
        sum = hn::Add(sum, hn::IfThenElseZero(mask, e));
      });
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

// Computes y = f(x) element by element.
template <class T, class F>
HWY_INLINE void map_row(const T* x, T* y, std::int64_t cols, F f) {
  const Tag<T> d;
  visit_row<T>(
      cols, [&](std::int64_t i) HWY_ATTR { hn::StoreU(f(hn::LoadU(d, x + i)), d, y + i); },
      [&](std::int64_t i, auto mask, std::int64_t count) HWY_ATTR {
        dn::store_first(f(dn::load_first(d, mask, x + i, count)), d, mask, y + i, count);
      });
}

template <class T>
HWY_INLINE void softmax_of(const T* x, T* y, std::int64_t rows, std::int64_t cols) {
  const Tag<T> d;
  for (std::int64_t row = 0; row < rows; ++row, x += cols, y += cols) {
    const T sum = sum_exp(x, largest(x, cols), y, cols);
    const Vector<T> sums = hn::Set(d, sum);
    map_row(y, y, cols, [&](Vector<T> e) HWY_ATTR { return hn::Div(e, sums); });
  }
}

// Calls f(row, log-sum-exp of the row) for all rows, a block at a time, so that one vector
// logarithm serves several rows.
template <class T, class F>
HWY_INLINE void visit_log_sums(const T* x, std::int64_t rows, std::int64_t cols, F f) {
  const Tag<T> d;
  HWY_ALIGN T shifts[kLanes<T>];
  HWY_ALIGN T sums[kLanes<T>];
  for (std::int64_t first = 0; first < rows; first += kLanes<T>) {
    const std::int64_t count = std::min(kLanes<T>, rows - first);
    for (std::int64_t k = 0; k < kLanes<T>; ++k) {
      const T* row = x + (first + k) * cols;
      shifts[k] = k < count ? largest(row, cols) : T(0);
      sums[k] = k < count ? sum_exp<T>(row, shifts[k], nullptr, cols) : T(1);
    }
    hn::Store(hn::Add(hn::Load(d, shifts), dn::log_of(d, hn::Load(d, sums))), d, sums);
    for (std::int64_t k = 0; k < count; ++k) f(first + k, sums[k]);
  }
}

template <class T>
HWY_INLINE void log_softmax_of(const T* x, T* y, std::int64_t rows, std::int64_t cols) {
  const Tag<T> d;
  visit_log_sums(x, rows, cols, [&](std::int64_t row, T sum) HWY_ATTR {
    const Vector<T> sums = hn::Set(d, sum);
    map_row(x + row * cols, y + row * cols, cols,
            [&](Vector<T> v) HWY_ATTR { return hn::Sub(v, sums); });
  });
}

template <class T>
HWY_INLINE void cross_entropy_grad_of(const T* x, const T* all_sums, const std::int64_t* labels,
                                      const T* factors, T* dx, std::int64_t rows,
                                      std::int64_t cols) {
  const Tag<T> d;
  for (std::int64_t row = 0; row < rows; ++row, x += cols, dx += cols) {
    const Vector<T> factor = hn::Set(d, factors[row]);
    const std::int64_t label = labels[row];
    if (label < 0) {
      std::fill_n(dx, cols, T(0));
      continue;
    }
    const T sum = all_sums == nullptr ? T(0) : all_sums[row];
    const Vector<T> sums = hn::Set(d, sum);
    const Vector<T> at_label = hn::Set(d, x[label] - sum);  // read before dx overwrites it
    map_row(x, dx, cols,
            [&](Vector<T> v) HWY_ATTR { return hn::Mul(dn::exp_of(d, hn::Sub(v, sums)), factor); });
    const auto excess = hn::Sub(dn::exp_of(d, at_label), hn::Set(d, T(1)));
    dx[label] = hn::GetLane(hn::Mul(excess, factor));
  }
}

HWY_ATTR void softmax_float(const float* x, float* y, std::int64_t rows, std::int64_t cols) {
  softmax_of(x, y, rows, cols);
}
HWY_ATTR void softmax_double(const double* x, double* y, std::int64_t rows, std::int64_t cols) {
  softmax_of(x, y, rows, cols);
}
HWY_ATTR void log_softmax_float(const float* x, float* y, std::int64_t rows, std::int64_t cols) {
  log_softmax_of(x, y, rows, cols);
}
HWY_ATTR void log_softmax_double(const double* x, double* y, std::int64_t rows, std::int64_t cols) {
  log_softmax_of(x, y, rows, cols);
}
HWY_ATTR void log_sums_float(const float* x, float* sums, std::int64_t rows, std::int64_t cols) {
  visit_log_sums(x, rows, cols, [&](std::int64_t row, float sum) HWY_ATTR { sums[row] = sum; });
}
HWY_ATTR void log_sums_double(const double* x, double* sums, std::int64_t rows, std::int64_t cols) {
  visit_log_sums(x, rows, cols, [&](std::int64_t row, double sum) HWY_ATTR { sums[row] = sum; });
}
HWY_ATTR void grad_float(const float* x, const float* sums, const std::int64_t* labels,
                         const float* factors, float* dx, std::int64_t rows, std::int64_t cols) {
  cross_entropy_grad_of(x, sums, labels, factors, dx, rows, cols);
}
HWY_ATTR void grad_double(const double* x, const double* sums, const std::int64_t* labels,
                          const double* factors, double* dx, std::int64_t rows, std::int64_t cols) {
  cross_entropy_grad_of(x, sums, labels, factors, dx, rows, cols);
}

}  // namespace onnxgrad::ops::rows::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace onnxgrad::ops::rows {

HWY_EXPORT(softmax_float);
HWY_EXPORT(softmax_double);
HWY_EXPORT(log_softmax_float);
HWY_EXPORT(log_softmax_double);
HWY_EXPORT(log_sums_float);
HWY_EXPORT(log_sums_double);
HWY_EXPORT(grad_float);
HWY_EXPORT(grad_double);

void softmax(device::Isa isa, const float* x, float* y, std::int64_t rows, std::int64_t cols) {
  device::chosen(HWY_DISPATCH_TABLE(softmax_float), isa)(x, y, rows, cols);
}
void softmax(device::Isa isa, const double* x, double* y, std::int64_t rows, std::int64_t cols) {
  device::chosen(HWY_DISPATCH_TABLE(softmax_double), isa)(x, y, rows, cols);
}
void log_softmax(device::Isa isa, const float* x, float* y, std::int64_t rows, std::int64_t cols) {
  device::chosen(HWY_DISPATCH_TABLE(log_softmax_float), isa)(x, y, rows, cols);
}
void log_softmax(device::Isa isa, const double* x, double* y, std::int64_t rows,
                 std::int64_t cols) {
  device::chosen(HWY_DISPATCH_TABLE(log_softmax_double), isa)(x, y, rows, cols);
}
void log_sum_exp(device::Isa isa, const float* x, float* sums, std::int64_t rows,
                 std::int64_t cols) {
  device::chosen(HWY_DISPATCH_TABLE(log_sums_float), isa)(x, sums, rows, cols);
}
void log_sum_exp(device::Isa isa, const double* x, double* sums, std::int64_t rows,
                 std::int64_t cols) {
  device::chosen(HWY_DISPATCH_TABLE(log_sums_double), isa)(x, sums, rows, cols);
}
void cross_entropy_grad(device::Isa isa, const float* x, const float* sums,
                        const std::int64_t* labels, const float* factors, float* dx,
                        std::int64_t rows, std::int64_t cols) {
  device::chosen(HWY_DISPATCH_TABLE(grad_float), isa)(x, sums, labels, factors, dx, rows, cols);
}
void cross_entropy_grad(device::Isa isa, const double* x, const double* sums,
                        const std::int64_t* labels, const double* factors, double* dx,
                        std::int64_t rows, std::int64_t cols) {
  device::chosen(HWY_DISPATCH_TABLE(grad_double), isa)(x, sums, labels, factors, dx, rows, cols);
}

}  // namespace onnxgrad::ops::rows
#endif  // HWY_ONCE
