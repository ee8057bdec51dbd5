#include "ops/fused/linear_step_simd.h"

#include <cstdint>

#include "device/cpu/dispatch.h"
#include "device/cpu/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/fused/linear_step_simd.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "device/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onnxgrad::ops::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
namespace dn = onnxgrad::device::HWY_NAMESPACE;

template <class T>
using StepTag = hn::ScalableTag<T>;

// Rows of a few features are not vectorized: everything is in registers, and rows overlap.
template <class T, int kFeatures>
HWY_ATTR typename LinearStepCall<T>::Sums few_features(const LinearStepCall<T>& call) {
  T weight[kFeatures];
  T sums[kFeatures];
  for (int k = 0; k < kFeatures; ++k) {
    weight[k] = call.weight[k];
    sums[k] = 0;
  }
  typename LinearStepCall<T>::Sums result;
  const T* x = call.x;
  for (std::int64_t row = 0; row < call.rows; ++row, x += kFeatures) {
    T z = call.target_factor * call.target[row] + call.offset;
    for (int k = 0; k < kFeatures; ++k) z += x[k] * weight[k];
    for (int k = 0; k < kFeatures; ++k) sums[k] += x[k] * z;
    result.values += z;
    result.squares += z * z;
  }
  for (int k = 0; k < kFeatures; ++k) {
    call.new_weight[k] = weight[k] + call.weight_step * sums[k];
  }
  return result;
}

// Calls f(k, load, store) for the vectors of a row; load(p) and store(v, p) are masked at its end.
template <class T, class F>
HWY_INLINE void visit_features(std::int64_t features, F f) {
  const StepTag<T> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t k = 0;
  for (; k + lanes <= features; k += lanes) {
    f(
        k, [&](const T* p) HWY_ATTR { return hn::LoadU(d, p); },
        [&](auto v, T* p) HWY_ATTR { hn::StoreU(v, d, p); });
  }
  if (k == features) return;
  const std::int64_t count = features - k;
  const auto mask = hn::FirstN(d, static_cast<std::size_t>(count));
  f(
      k, [&](const T* p) HWY_ATTR { return dn::load_first(d, mask, p, count); },
      [&](auto v, T* p) HWY_ATTR { dn::store_first(v, d, mask, p, count); });
}

template <class T>
HWY_INLINE T dot(const T* x, const T* weight, std::int64_t features) {
  const StepTag<T> d;
  auto even = hn::Zero(d);
  auto odd = hn::Zero(d);
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t k = 0;
  for (; k + 2 * lanes <= features; k += 2 * lanes) {
    even = hn::MulAdd(hn::LoadU(d, x + k), hn::LoadU(d, weight + k), even);
    odd = hn::MulAdd(hn::LoadU(d, x + k + lanes), hn::LoadU(d, weight + k + lanes), odd);
  }
  visit_features<T>(features - k, [&](std::int64_t at, auto load, auto /*store*/) HWY_ATTR {
    even = hn::MulAdd(load(x + k + at), load(weight + k + at), even);
  });
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(even, odd)));
}

template <class T>
HWY_ATTR typename LinearStepCall<T>::Sums many_features(const LinearStepCall<T>& call) {
  const StepTag<T> d;
  const std::int64_t last = call.rows - 1;
  const auto step = hn::Set(d, call.weight_step);
  typename LinearStepCall<T>::Sums result;
  const T* x = call.x;
  for (std::int64_t row = 0; row <= last; ++row, x += call.features) {
    const T z =
        dot(x, call.weight, call.features) + call.target_factor * call.target[row] + call.offset;
    result.values += z;
    result.squares += z * z;
    const auto slope = hn::Set(d, z);
    visit_features<T>(call.features, [&](std::int64_t k, auto load, auto store) HWY_ATTR {
      const auto product = hn::Mul(load(x + k), slope);
      const auto sum = row == 0 ? product : hn::Add(product, load(call.sums + k));
      if (row < last) {
        store(sum, call.sums + k);
      } else {
        store(hn::MulAdd(step, sum, load(call.weight + k)), call.new_weight + k);
      }
    });
  }
  return result;
}

template <class T>
LinearStepFn<T> choose_step(std::int64_t features) {
  switch (features) {
    case 1:
      return few_features<T, 1>;
    case 2:
      return few_features<T, 2>;
    case 3:
      return few_features<T, 3>;
    case 4:
      return few_features<T, 4>;
    case 5:
      return few_features<T, 5>;
    case 6:
      return few_features<T, 6>;
    case 7:
      return few_features<T, 7>;
    case 8:
      return few_features<T, 8>;
    default:
      return many_features<T>;
  }
}

LinearStepFn<float> choose_float(std::int64_t features) { return choose_step<float>(features); }
LinearStepFn<double> choose_double(std::int64_t features) { return choose_step<double>(features); }

}  // namespace onnxgrad::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace onnxgrad::ops {

HWY_EXPORT(choose_float);
HWY_EXPORT(choose_double);

LinearStepFn<float> linear_step_float(device::Isa isa, std::int64_t features) {
  return device::chosen(HWY_DISPATCH_TABLE(choose_float), isa)(features);
}
LinearStepFn<double> linear_step_double(device::Isa isa, std::int64_t features) {
  return device::chosen(HWY_DISPATCH_TABLE(choose_double), isa)(features);
}

}  // namespace onnxgrad::ops
#endif  // HWY_ONCE
