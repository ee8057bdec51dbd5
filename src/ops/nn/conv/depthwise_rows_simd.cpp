#include <algorithm>

#include "device/cpu/dispatch.h"
#include "device/cpu/simd.h"
#include "ops/nn/conv/depthwise_rows_simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/nn/conv/depthwise_rows_simd.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "device/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onnxgrad::ops::depth::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using device::HWY_NAMESPACE::kMasksAreSafe;
using device::HWY_NAMESPACE::load_first;
using device::HWY_NAMESPACE::max_or_nan;
using device::HWY_NAMESPACE::store_first;

// Maximum number of result rows that are computed together and share the rows of pixels that they
// read.
constexpr int kMostRows = 4;

/// Returns the mask of lanes i with 0 <= first + i < size.
template <class D>
HWY_INLINE hn::Mask<D> inside(D d, std::int64_t first, std::int64_t size) {
  constexpr std::int64_t kLanes = hn::MaxLanes(D());
  const auto lanes_below = [&](std::int64_t count) HWY_ATTR {
    return hn::FirstN(d, static_cast<std::size_t>(std::clamp<std::int64_t>(count, 0, kLanes)));
  };
  return hn::AndNot(lanes_below(-first), lanes_below(size - first));
}

/// Vector of result columns: its loads and its stores.
template <int kKernel, int kStride, class D, class T = hn::TFromD<D>>
struct Column {
  static constexpr std::int64_t kLanes = hn::MaxLanes(D());
  static constexpr int kLoads = kStride == 1 ? kKernel : kKernel + 1;

  HWY_INLINE Column(const PlaneShape& shape, std::int64_t column, std::int64_t results)
      : first((column * kStride) - shape.left), count(results) {
    for (int i = 0; i < kLoads; ++i) {
      const std::int64_t offset = kStride == 1 ? i : (i - i % 2) + (i % 2 * kLanes);
      mask[i] = inside(D(), first + offset, shape.columns);
    }
    stored = hn::FirstN(D(), static_cast<std::size_t>(count));
  }

  /// Loads the pixels of each tap of a row.
  HWY_INLINE void load(const T* row, hn::Vec<D>* taps) const {
    const D d;
    if constexpr (kStride == 1) {
#pragma GCC unroll 8
      for (int c = 0; c < kKernel; ++c) taps[c] = hn::MaskedLoad(mask[c], d, row + c);
    } else {
#pragma GCC unroll 8
      for (int c = 0; c < kKernel; c += 2) {
        const auto low = hn::MaskedLoad(mask[c], d, row + c);
        const auto high = hn::MaskedLoad(mask[c + 1], d, row + c + kLanes);
        taps[c] = hn::ConcatEven(d, high, low);
        if (c + 1 < kKernel) taps[c + 1] = hn::ConcatOdd(d, high, low);
      }
    }
  }

  std::int64_t first;  ///< pixel of the first tap
  std::int64_t count;
  hn::Mask<D> mask[kLoads];
  hn::Mask<D> stored;
};

template <class T>
struct Results {
  T* to = nullptr;
  const T* residual = nullptr;
  T low = 0, high = 0;

  void advance(std::int64_t elements) {
    to += elements;
    if (residual != nullptr) residual += elements;
  }
};

template <class D, class T, class M>
HWY_INLINE void store_result(D d, const PlaneShape& shape, const Results<T>& results, M mask,
                             std::int64_t count, hn::Vec<D> value, std::int64_t row) {
  const std::int64_t at = row * shape.result_columns;
  if (shape.finishes) {
    if (results.residual != nullptr) {
      value = hn::Add(value, load_first(d, mask, results.residual + at, count));
    }
    const auto high = hn::Set(d, results.high);
    value = max_or_nan(hn::Set(d, results.low), value);
    value = hn::IfThenElse(hn::Gt(value, high), high, value);
  }
  store_first(value, d, mask, results.to + at, count);
}

/// Computes kRows rows of a vector of results, the first of which reads from row `top` on. With
/// `kIsEdge`, some rows may be outside the plane, as at its top and bottom.
template <int kKernel, int kStride, int kRows, bool kIsEdge, class C, class D, class T>
HWY_INLINE void row_block(D d, const PlaneShape& shape, const C& column, const T* plane,
                          std::int64_t top, const T* weights, T start, const Results<T>& results) {
  hn::Vec<D> sum[kRows];
#pragma GCC unroll 4
  for (int i = 0; i < kRows; ++i) sum[i] = hn::Set(d, start);
  const T* row = plane + (top * shape.columns) + column.first;
#pragma GCC unroll 16
  for (int r = 0; r < (kRows - 1) * kStride + kKernel; ++r, row += shape.columns) {
    if (kIsEdge && (top + r < 0 || top + r >= shape.rows)) continue;
    hn::Vec<D> taps[kKernel];
    column.load(row, taps);
#pragma GCC unroll 4
    for (int i = 0; i < kRows; ++i) {
      const int t = r - (i * kStride);
      if (t < 0 || t >= kKernel) continue;
#pragma GCC unroll 8
      for (int c = 0; c < kKernel; ++c) {
        sum[i] = hn::MulAdd(taps[c], hn::Set(d, weights[(t * kKernel) + c]), sum[i]);
      }
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < kRows; ++i) {
    store_result(d, shape, results, column.stored, column.count, sum[i], i);
  }
}

/// Computes all rows of one vector of columns.
template <int kKernel, int kStride, class D, class T>
HWY_INLINE void column_results(D d, const PlaneShape& shape,
                               const Column<kKernel, kStride, D>& column, const T* plane,
                               const T* weights, T start, Results<T> results) {
  std::int64_t top = -shape.top;
  std::int64_t rest = shape.result_rows;
  constexpr std::int64_t kSpan = ((kMostRows - std::int64_t{1}) * kStride) + kKernel;
  for (; rest >= kMostRows; rest -= kMostRows, top += std::int64_t{kMostRows} * kStride) {
    if (top >= 0 && top + kSpan <= shape.rows) {
      row_block<kKernel, kStride, kMostRows, false>(d, shape, column, plane, top, weights, start,
                                                    results);
    } else {
      row_block<kKernel, kStride, kMostRows, true>(d, shape, column, plane, top, weights, start,
                                                   results);
    }
    results.advance(kMostRows * shape.result_columns);
  }
  if (rest == 3) {
    row_block<kKernel, kStride, 3, true>(d, shape, column, plane, top, weights, start, results);
  } else if (rest == 2) {
    row_block<kKernel, kStride, 2, true>(d, shape, column, plane, top, weights, start, results);
  } else if (rest == 1) {
    row_block<kKernel, kStride, 1, true>(d, shape, column, plane, top, weights, start, results);
  }
}

/// Computes a vector of columns of some planes.
template <int kKernel, int kStride, class D, class T>
HWY_INLINE void plane_columns(D d, const PlaneShape& shape, const Planes<T>& planes,
                              std::int64_t first, std::int64_t last, std::int64_t at) {
  constexpr std::int64_t kTaps = std::int64_t{kKernel} * kKernel;
  constexpr std::int64_t kLanes = hn::MaxLanes(D());
  const Column<kKernel, kStride, D> column(shape, at, std::min(shape.result_columns - at, kLanes));
  for (std::int64_t i = first; i < last; ++i) {
    T weights[kTaps];
    const T* given = planes.weights + (i * kTaps);
    if (shape.is_turned) {
      std::reverse_copy(given, given + kTaps, weights);
    } else {
      std::copy_n(given, kTaps, weights);
    }
    Results<T> results{.to = planes.to + at,
                       .residual = planes.residual == nullptr ? nullptr : planes.residual + at,
                       .low = static_cast<T>(shape.low),
                       .high = static_cast<T>(shape.high)};
    results.advance(i * shape.result_size());
    column_results<kKernel, kStride>(d, shape, column, planes.from + (i * shape.size()), weights,
                                     planes.bias == nullptr ? T(0) : planes.bias[i], results);
  }
}

/// Computes full vectors of columns, then one of half the size if that suffices.
template <int kKernel, int kStride, class T>
void plane_results(const PlaneShape& shape, const Planes<T>& planes) {
  using Whole = hn::ScalableTag<T>;
  using Half = hn::CappedTag<T, (hn::MaxLanes(Whole()) + 1) / 2>;
  constexpr std::int64_t kLanes = hn::MaxLanes(Whole());
  constexpr std::int64_t kHalf = hn::MaxLanes(Half());
  // Planes wider than a vector are computed one after another, for the cache.
  const std::int64_t step = shape.result_columns > kLanes ? 1 : planes.count;
  for (std::int64_t first = 0; first < planes.count; first += step) {
    for (std::int64_t j = 0; j < shape.result_columns; j += kLanes) {
      if (shape.result_columns - j <= kHalf) {
        plane_columns<kKernel, kStride>(Half(), shape, planes, first, first + step, j);
      } else {
        plane_columns<kKernel, kStride>(Whole(), shape, planes, first, first + step, j);
      }
    }
  }
}

template <class T>
HWY_INLINE void convolve(const PlaneShape& shape, const Planes<T>& planes) {
  if constexpr (kMasksAreSafe) {
    const bool one = shape.stride == 1;
    if (shape.kernel == 3)
      return one ? plane_results<3, 1>(shape, planes) : plane_results<3, 2>(shape, planes);
    return one ? plane_results<5, 1>(shape, planes) : plane_results<5, 2>(shape, planes);
  }
}

void float_planes(const PlaneShape& shape, const Planes<float>& planes) { convolve(shape, planes); }
void double_planes(const PlaneShape& shape, const Planes<double>& planes) {
  convolve(shape, planes);
}
bool masks_are_safe() { return kMasksAreSafe; }

}  // namespace onnxgrad::ops::depth::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace onnxgrad::ops::depth {

HWY_EXPORT(float_planes);
HWY_EXPORT(double_planes);
HWY_EXPORT(masks_are_safe);

bool has_plane_rows(device::Isa isa) {
  return device::chosen(HWY_DISPATCH_TABLE(masks_are_safe), isa)();
}

template <>
void convolve_planes(device::Isa isa, const PlaneShape& shape, const Planes<float>& planes) {
  device::chosen(HWY_DISPATCH_TABLE(float_planes), isa)(shape, planes);
}

template <>
void convolve_planes(device::Isa isa, const PlaneShape& shape, const Planes<double>& planes) {
  device::chosen(HWY_DISPATCH_TABLE(double_planes), isa)(shape, planes);
}

}  // namespace onnxgrad::ops::depth
#endif  // HWY_ONCE
