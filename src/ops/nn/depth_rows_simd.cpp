#include <algorithm>

#include "device/cpu/simd.h"
#include "ops/nn/depth_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/nn/depth_rows_simd.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "device/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onnxgrad::ops::depth::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using device::HWY_NAMESPACE::load_first;
using device::HWY_NAMESPACE::max_or_nan;
using device::HWY_NAMESPACE::store_first;

// Rows of results that are computed together: they share the rows of the copy that they read.
constexpr int kMostRows = 4;

/// `count` elements, at most a vector, then zeros.
template <class D, class T>
HWY_INLINE hn::Vec<D> load_some(D d, const T* from, std::int64_t count) {
  if (count >= static_cast<std::int64_t>(hn::MaxLanes(d))) return hn::LoadU(d, from);
  if (count <= 0) return hn::Zero(d);
  return load_first(d, hn::FirstN(d, static_cast<std::size_t>(count)), from, count);
}

/// One row. Vectors end with zeros, in what is padding or is written next.
template <class T>
HWY_INLINE void copy_row(const PlaneRows& p, const T* from, T* to) {
  const hn::ScalableTag<T> d;
  constexpr std::int64_t kLanes = hn::MaxLanes(d);
  if (p.phases == 1) {
    for (std::int64_t i = 0; i < p.columns; i += kLanes) {
      hn::StoreU(load_some(d, from + i, p.columns - i), d, to + p.left + i);
    }
    return;
  }
  for (std::int64_t phase = 0; phase < 2; ++phase) {
    std::int64_t i = (phase + p.left) % 2;
    T* next = to + phase * p.phase_columns + (p.left + i) / 2;
    for (; i < p.columns; i += 2 * kLanes, next += kLanes) {
      const auto low = load_some(d, from + i, p.columns - i);
      const auto high = load_some(d, from + i + kLanes, p.columns - i - kLanes);
      hn::StoreU(hn::ConcatEven(d, high, low), d, next);
    }
  }
}

template <class T>
HWY_INLINE void copy_plane(const PlaneRows& p, const T* from, T* copy) {
  for (std::int64_t s = 0; s < p.slices; ++s) {
    const T* row = from + p.from_first + s * p.from_slice;
    T* to = copy + p.copy_first + s * p.copy_slice;
    for (std::int64_t r = 0; r < p.rows; ++r, row += p.from_row, to += p.copy_row) {
      copy_row(p, row, to);
    }
  }
}

/// Where the results of one vector of columns go.
template <class T>
struct Target {
  T* to = nullptr;
  const T* residual = nullptr;
  std::int64_t count = 0;  ///< columns
  T low = 0, high = 0;
};

template <class D, class T>
HWY_INLINE void store_result(D d, const PlaneRows& p, const Target<T>& target, hn::Vec<D> value,
                             std::int64_t row) {
  const auto mask = hn::FirstN(d, static_cast<std::size_t>(target.count));
  const bool is_whole = target.count == static_cast<std::int64_t>(hn::MaxLanes(d));
  const std::int64_t at = row * p.result_columns;
  if (p.finishes) {
    if (target.residual != nullptr) {
      const T* more = target.residual + at;
      value =
          hn::Add(value, is_whole ? hn::LoadU(d, more) : load_first(d, mask, more, target.count));
    }
    const auto high = hn::Set(d, target.high);
    value = max_or_nan(hn::Set(d, target.low), value);
    value = hn::IfThenElse(hn::Gt(value, high), high, value);
  }
  if (is_whole) {
    hn::StoreU(value, d, target.to + at);
  } else {
    store_first(value, d, mask, target.to + at, target.count);
  }
}

/// kRows rows of one vector of results, `kStep` rows of the copy apart; taps are kSquare rows of
/// kSquare.
template <int kSquare, int kStep, int kRows, class D, class T>
HWY_INLINE void square_block(D d, const PlaneRows& p, const T* from, const T* weights, T start,
                             const Target<T>& target) {
  hn::Vec<D> sum[kRows];
#pragma GCC unroll 4
  for (int i = 0; i < kRows; ++i) sum[i] = hn::Set(d, start);
#pragma GCC unroll 16
  for (int r = 0; r < (kRows - 1) * kStep + kSquare; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < kSquare; ++c) {
      const auto value = hn::LoadU(d, from + p.offsets[c]);
#pragma GCC unroll 4
      for (int i = 0; i < kRows; ++i) {
        const int t = r - i * kStep;
        if (t < 0 || t >= kSquare) continue;
        sum[i] = hn::MulAdd(value, hn::Set(d, weights[t * kSquare + c]), sum[i]);
      }
    }
    from += p.copy_row;
  }
#pragma GCC unroll 4
  for (int i = 0; i < kRows; ++i) store_result(d, p, target, sum[i], i);
}

/// Any taps.
template <int kRows, class D, class T>
HWY_INLINE void tap_block(D d, const PlaneRows& p, const T* from, const T* weights, T start,
                          const Target<T>& target) {
  hn::Vec<D> sum[kRows];
#pragma GCC unroll 4
  for (int i = 0; i < kRows; ++i) sum[i] = hn::Set(d, start);
  for (std::int64_t t = 0; t < p.taps; ++t) {
    const auto weight = hn::Set(d, weights[t]);
    const T* tap = from + p.offsets[t];
#pragma GCC unroll 4
    for (int i = 0; i < kRows; ++i) {
      sum[i] = hn::MulAdd(hn::LoadU(d, tap + i * p.row_step), weight, sum[i]);
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < kRows; ++i) store_result(d, p, target, sum[i], i);
}

template <int kSquare, int kStep, int kRows, class D, class T>
HWY_INLINE void any_block(D d, const PlaneRows& p, const T* from, const T* weights, T start,
                          const Target<T>& target) {
  if constexpr (kSquare > 0) {
    square_block<kSquare, kStep, kRows>(d, p, from, weights, start, target);
  } else {
    tap_block<kRows>(d, p, from, weights, start, target);
  }
}

/// kRows rows: vectors, then one of half the size if that is enough.
template <int kSquare, int kStep, int kRows, class T>
HWY_INLINE void row_block(const PlaneRows& p, const T* from, const T* weights, T start,
                          Target<T> target) {
  const hn::ScalableTag<T> d;
  const hn::CappedTag<T, (hn::MaxLanes(d) + 1) / 2> half;
  constexpr std::int64_t kLanes = hn::MaxLanes(d);
  constexpr std::int64_t kHalf = hn::MaxLanes(half);
  for (std::int64_t j = 0; j < p.result_columns;) {
    const std::int64_t rest = p.result_columns - j;
    const bool is_half = rest <= kHalf;
    target.count = std::min(rest, is_half ? kHalf : kLanes);
    if (is_half) {
      any_block<kSquare, kStep, kRows>(half, p, from + j, weights, start, target);
    } else {
      any_block<kSquare, kStep, kRows>(d, p, from + j, weights, start, target);
    }
    j += target.count;
    target.to += target.count;
    if (target.residual != nullptr) target.residual += target.count;
  }
}

template <int kSquare, int kStep, class T>
void plane_results(const PlaneRows& p, const T* copy, const T* weights, T start, Target<T> target) {
  for (std::int64_t s = 0; s < p.result_slices; ++s) {
    const T* from = copy + s * p.slice_step;
    const auto advance = [&](std::int64_t rows) {
      from += rows * p.row_step;
      target.to += rows * p.result_columns;
      if (target.residual != nullptr) target.residual += rows * p.result_columns;
    };
    std::int64_t rest = p.result_rows;
    for (; rest >= kMostRows; rest -= kMostRows) {
      row_block<kSquare, kStep, kMostRows>(p, from, weights, start, target);
      advance(kMostRows);
    }
    if (rest == 3) row_block<kSquare, kStep, 3>(p, from, weights, start, target);
    if (rest == 2) row_block<kSquare, kStep, 2>(p, from, weights, start, target);
    if (rest == 1) row_block<kSquare, kStep, 1>(p, from, weights, start, target);
    advance(rest);
  }
}

template <class T>
using PlaneFn = void (*)(const PlaneRows& p, const T* copy, const T* weights, T start,
                         Target<T> target);

template <class T>
PlaneFn<T> plane_function(const PlaneRows& p) {
  const bool one = p.row_step == p.copy_row;
  const bool two = p.row_step == 2 * p.copy_row;
  if (p.square == 3 && one) return plane_results<3, 1, T>;
  if (p.square == 3 && two) return plane_results<3, 2, T>;
  if (p.square == 5 && one) return plane_results<5, 1, T>;
  return plane_results<0, 0, T>;
}

template <class T>
HWY_INLINE void convolve(const PlaneRows& p, const Planes<T>& planes) {
  constexpr std::int64_t kLargestSquare = 25;
  const PlaneFn<T> results = plane_function<T>(p);
  const std::int64_t size = p.result_slices * p.result_rows * p.result_columns;
  T turned[kLargestSquare];
  for (std::int64_t first = 0; first < planes.count; first += planes.copies) {
    // Several planes, so that what a copy stores is in the cache before it is read.
    const std::int64_t last = std::min(first + planes.copies, planes.count);
    for (std::int64_t i = first; i < last; ++i) {
      copy_plane(p, planes.from + i * p.from_plane, planes.copy + (i - first) * p.copy_plane);
    }
    for (std::int64_t i = first; i < last; ++i) {
      const T* weights = planes.weights + i * p.taps;
      if (p.is_turned) {
        std::reverse_copy(weights, weights + p.taps, turned);
        weights = turned;
      }
      Target<T> target{
          .to = planes.to + i * size, .low = static_cast<T>(p.low), .high = static_cast<T>(p.high)};
      if (planes.residual != nullptr) target.residual = planes.residual + i * size;
      results(p, planes.copy + (i - first) * p.copy_plane, weights,
              planes.bias == nullptr ? T(0) : planes.bias[i], target);
    }
  }
}

void float_planes(const PlaneRows& p, const Planes<float>& planes) { convolve(p, planes); }
void double_planes(const PlaneRows& p, const Planes<double>& planes) { convolve(p, planes); }

}  // namespace onnxgrad::ops::depth::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace onnxgrad::ops::depth {

HWY_EXPORT(float_planes);
HWY_EXPORT(double_planes);

template <>
void convolve_planes(const PlaneRows& rows, const Planes<float>& planes) {
  HWY_DYNAMIC_DISPATCH(float_planes)(rows, planes);
}

template <>
void convolve_planes(const PlaneRows& rows, const Planes<double>& planes) {
  HWY_DYNAMIC_DISPATCH(double_planes)(rows, planes);
}

}  // namespace onnxgrad::ops::depth
#endif  // HWY_ONCE
