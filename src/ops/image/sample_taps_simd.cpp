#include "ops/image/sample_taps_simd.h"

#include <cstdint>

#include "device/cpu/dispatch.h"
#include "device/cpu/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/image/sample_taps_simd.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace onnxgrad::ops::sample::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class T>
using Tag = hn::ScalableTag<T>;
template <class T>
using Vector = hn::Vec<Tag<T>>;
template <class T>
using Places = hn::Rebind<std::int32_t, Tag<T>>;
template <class T>
inline constexpr std::int64_t kLanes = hn::MaxLanes(Tag<T>());

template <class T>
HWY_INLINE Vector<T> set(T value) {
  return hn::Set(Tag<T>(), value);
}

// Clamps x to [low, high]; NaN becomes `low`.
template <class T>
HWY_INLINE Vector<T> clamped(Vector<T> x, Vector<T> low, Vector<T> high) {
#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR
  return hn::Min(hn::Max(x, low), high);  // maxps returns its second operand if either is NaN
#else
  return hn::Min(hn::IfThenElse(hn::Gt(x, low), x, low), high);
#endif
}

// Converts whole numbers in the range of int32.
template <class T>
HWY_INLINE void store_places(Vector<T> x, std::int32_t* to) {
  if constexpr (sizeof(T) == 4) {
    hn::StoreU(hn::ConvertTo(Places<T>(), x), Places<T>(), to);
  } else {
    hn::StoreU(hn::DemoteTo(Places<T>(), x), Places<T>(), to);
  }
}

// Axis as floating-point values, and whether coordinates beyond the border are mapped back. With
// cubic interpolation and padding "border" only the taps are, as in PyTorch and onnxruntime.
template <class T>
struct Range {
  explicit Range(const Axis& of)
      : axis(of),  // a copy: stores do not change it
        last(static_cast<T>(of.size - 1)),
        scale(static_cast<T>(of.align_corners ? of.size - 1 : of.size) / T(2)),
        low(of.align_corners ? T(0) : T(-0.5)),
        high(of.align_corners ? last : last + T(0.5)) {}

  Axis axis;
  T last;
  T scale;
  T low;
  T high;

  // Reflects x at `low` and `high` until it lies between them; `sign` flips with each reflection.
  HWY_INLINE Vector<T> reflected(Vector<T> x, Vector<T>& sign) const {
    const auto range = set<T>(high - low);
    const auto distance = hn::Sub(x, set<T>(low));
    const auto size = hn::Abs(distance);
    const auto zero = hn::Zero(Tag<T>());
    auto turns = zero;
    auto rest = zero;
    if (high > low) {
      turns = hn::Floor(hn::Div(size, range));
      rest = hn::NegMulAdd(turns, range, size);
    }
    const auto half = hn::Mul(turns, set<T>(T(0.5)));
    const auto is_back = hn::Ne(half, hn::Floor(half));
    const auto is_negative = hn::Lt(distance, zero);
    sign = hn::IfThenElse(hn::Xor(is_back, is_negative), hn::Neg(sign), sign);
    return hn::IfThenElse(is_back, hn::Sub(set<T>(high), rest), hn::Add(set<T>(low), rest));
  }

  HWY_INLINE hn::Mask<Tag<T>> is_between(Vector<T> x, T least, T most) const {
    return hn::And(hn::Ge(x, set<T>(least)), hn::Le(x, set<T>(most)));
  }

  // Returns the positions of points on the axis; `slope` receives their derivatives.
  HWY_INLINE Vector<T> position(Vector<T> grid, Vector<T>& slope) const {
    const Tag<T> d;
    slope = set<T>(scale);
    auto x = hn::MulAdd(grid, slope, set<T>(last / T(2)));
    if (axis.mode == Mode::kNearest) x = hn::Round(x);
    const auto is_inside = is_between(x, low, high);
    if (axis.padding == Padding::kBorder && axis.mode != Mode::kCubic) {
      x = hn::IfThenElse(is_inside, x, clamped<T>(x, hn::Zero(d), set<T>(last)));
      slope = hn::IfThenElseZero(is_inside, slope);
    } else if (axis.padding == Padding::kReflection && !hn::AllTrue(d, is_inside)) {
      auto sign = slope;
      const auto mirrored = clamped<T>(reflected(x, sign), set<T>(low), set<T>(high));
      x = hn::IfThenElse(is_inside, x, mirrored);
      slope = hn::IfThenElse(is_inside, slope, sign);
    }
    // Positions farther outside read the same elements, and the clamped values fit an index.
    return clamped<T>(x, set<T>(T(-4)), set<T>(last + T(4)));
  }

  // Returns the index that a tap at the whole number x reads; without padding, weights are 0
  // outside.
  HWY_INLINE Vector<T> place(Vector<T> x, Vector<T>& weight, Vector<T>& slope) const {
    const Tag<T> d;
    const auto zero = hn::Zero(d);
    if (axis.padding == Padding::kBorder) return clamped<T>(x, zero, set<T>(last));
    const auto is_inside = is_between(x, T(0), last);
    if (axis.padding == Padding::kZeros) {
      weight = hn::IfThenElseZero(is_inside, weight);
      slope = hn::IfThenElseZero(is_inside, slope);
      return hn::IfThenElseZero(is_inside, x);
    }
    if (hn::AllTrue(d, is_inside)) return x;
    auto unused = zero;
    const auto mirrored = clamped<T>(hn::Round(reflected(x, unused)), zero, set<T>(last));
    return hn::IfThenElse(is_inside, x, mirrored);
  }
};

// Cubic weight at a distance below 1, or between 1 and 2, and its derivative: Keys, Cubic
// convolution interpolation for digital image processing, 1981, with a = -0.75.
template <class T>
HWY_INLINE Vector<T> cubic_weight(bool is_near, Vector<T> d) {
  if (is_near) {
    const auto inner = hn::MulAdd(set<T>(T(1.25)), d, set<T>(T(-2.25)));
    return hn::MulAdd(hn::Mul(inner, d), d, set<T>(T(1)));
  }
  auto far = hn::MulAdd(set<T>(T(-0.75)), d, set<T>(T(3.75)));
  far = hn::MulAdd(far, d, set<T>(T(-6)));
  return hn::MulAdd(far, d, set<T>(T(3)));
}
template <class T>
HWY_INLINE Vector<T> cubic_slope(bool is_near, Vector<T> d) {
  if (is_near) return hn::Mul(hn::MulAdd(set<T>(T(3.75)), d, set<T>(T(-4.5))), d);
  const auto far = hn::MulAdd(set<T>(T(-2.25)), d, set<T>(T(7.5)));
  return hn::MulAdd(far, d, set<T>(T(-6)));
}

// Computes tap k of points whose integer and fractional parts are `first` and `fraction`.
template <Mode kMode, class T>
HWY_INLINE void store_tap(const Range<T>& range, std::int64_t k, Vector<T> first,
                          Vector<T> fraction, Vector<T> moves, std::int32_t* indices, T* weights,
                          T* slopes) {
  const Tag<T> d;
  auto at = first;
  auto weight = set<T>(T(1));
  auto slope = hn::Zero(d);
  if constexpr (kMode == Mode::kLinear) {
    weight = k == 0 ? hn::Sub(weight, fraction) : fraction;
    slope = k == 0 ? hn::Neg(moves) : moves;
    at = hn::Add(at, set<T>(static_cast<T>(k)));
  } else if constexpr (kMode == Mode::kCubic) {
    const auto sign = set<T>(k < 2 ? T(1) : T(-1));
    const auto distance = hn::Mul(sign, hn::Sub(fraction, set<T>(static_cast<T>(k - 1))));
    weight = cubic_weight<T>(k == 1 || k == 2, distance);
    slope = hn::Mul(hn::Mul(sign, cubic_slope<T>(k == 1 || k == 2, distance)), moves);
    at = hn::Add(at, set<T>(static_cast<T>(k - 1)));
  }
  store_places<T>(range.place(at, weight, slope), indices);
  hn::StoreU(weight, d, weights);
  if (slopes != nullptr) hn::StoreU(slope, d, slopes);
}

template <Mode kMode, class T>
HWY_INLINE void find_of(const Range<T>& range, const T* grid, std::int64_t count,
                        std::int64_t stride, std::int32_t* indices, T* weights, T* slopes) {
  const Tag<T> d;
  for (std::int64_t p = 0; p < count; p += kLanes<T>) {
    auto moves = hn::Zero(d);
    const auto x = range.position(hn::LoadU(d, grid + p), moves);
    const auto first = kMode == Mode::kNearest ? x : hn::Floor(x);
    const auto fraction = hn::Sub(x, first);
    for (std::int64_t k = 0; k < taps_of(kMode); ++k) {
      const std::int64_t to = k * stride + p;
      store_tap<kMode, T>(range, k, first, fraction, moves, indices + to, weights + to,
                          slopes == nullptr ? nullptr : slopes + to);
    }
  }
}

template <class T>
HWY_ATTR void find(const Axis& axis, const T* grid, std::int64_t count, std::int64_t stride,
                   std::int32_t* indices, T* weights, T* slopes) {
  const Range<T> range(axis);
  switch (axis.mode) {
    case Mode::kNearest:
      return find_of<Mode::kNearest>(range, grid, count, stride, indices, weights, slopes);
    case Mode::kLinear:
      return find_of<Mode::kLinear>(range, grid, count, stride, indices, weights, slopes);
    case Mode::kCubic:
      return find_of<Mode::kCubic>(range, grid, count, stride, indices, weights, slopes);
  }
}

template <class T>
HWY_ATTR void split(const T* grid, std::int64_t rank, std::int64_t count, std::int64_t stride,
                    T* columns) {
  const Tag<T> d;
  std::int64_t p = 0;
  for (; p + kLanes<T> <= count; p += kLanes<T>) {
    Vector<T> a;
    Vector<T> b;
    Vector<T> c = hn::Zero(d);
    if (rank == 2) {
      hn::LoadInterleaved2(d, grid + 2 * p, a, b);
    } else {
      hn::LoadInterleaved3(d, grid + 3 * p, a, b, c);
    }
    hn::StoreU(a, d, columns + p);
    hn::StoreU(b, d, columns + stride + p);
    if (rank == 3) hn::StoreU(c, d, columns + 2 * stride + p);
  }
  for (; p % kPadding != 0 || p < count; ++p) {
    for (std::int64_t a = 0; a < rank; ++a) {
      columns[a * stride + p] = p < count ? grid[p * rank + a] : T(0);
    }
  }
}

// Runs from the last taps to the first, since results overwrite the inputs.
template <class T>
HWY_ATTR void combine(std::int64_t taps, const std::int32_t* more, const T* factors,
                      std::int64_t own, std::int64_t size, std::int64_t count, std::int64_t stride,
                      std::int32_t* indices, T* weights) {
  const Tag<T> d;
  const Places<T> di;
  const auto width = hn::Set(di, static_cast<std::int32_t>(size));
  for (std::int64_t t = taps; t-- > 0;) {
    for (std::int64_t p = 0; p < count; p += kLanes<T>) {
      const auto row = hn::Mul(hn::LoadU(di, indices + t * stride + p), width);
      const auto weight = hn::LoadU(d, weights + t * stride + p);
      for (std::int64_t k = own; k-- > 0;) {
        const std::int64_t to = (t * own + k) * stride + p;
        hn::StoreU(hn::Add(row, hn::LoadU(di, more + k * stride + p)), di, indices + to);
        hn::StoreU(hn::Mul(weight, hn::LoadU(d, factors + k * stride + p)), d, weights + to);
      }
    }
  }
}

template <class T>
HWY_ATTR void add_products(const T* part, const T* a, const T* b, const T* c, std::int64_t count,
                           T* total) {
  const Tag<T> d;
  for (std::int64_t p = 0; p < count; p += kLanes<T>) {
    auto product = hn::Mul(hn::LoadU(d, part + p), hn::LoadU(d, a + p));
    if (b != nullptr) product = hn::Mul(product, hn::LoadU(d, b + p));
    if (c != nullptr) product = hn::Mul(product, hn::LoadU(d, c + p));
    hn::StoreU(hn::Add(hn::LoadU(d, total + p), product), d, total + p);
  }
}

// Sums one point of sum_cubic into four partial sums.
template <class T>
HWY_INLINE void sum_cubic_point(const T* x, const std::int32_t* indices, const T* weights,
                                const T* rows, const T* columns, std::int64_t stride, T* to) {
  if (indices[3 * stride] - indices[0] == 3) {  // all taps of the row are inside the image
    const hn::CappedTag<T, 4> d;
    for (std::int64_t k = 0; k < 4; k += hn::MaxLanes(d)) {
      auto sum = hn::Mul(hn::Set(d, rows[0]), hn::LoadU(d, x + indices[0] + k));
      for (std::int64_t r = 1; r < 4; ++r) {
        const T* row = x + indices[4 * r * stride] + k;
        sum = hn::MulAdd(hn::Set(d, rows[r * stride]), hn::LoadU(d, row), sum);
      }
      hn::StoreU(hn::Mul(sum, hn::LoadU(d, columns + k)), d, to + k);
    }
    return;
  }
  for (std::int64_t k = 0; k < 4; ++k) {
    to[k] = 0;
    for (std::int64_t t = k; t < 16; t += 4) {
      to[k] += weights[t * stride] * x[indices[t * stride]];
    }
  }
}

template <class T>
HWY_ATTR void sum_cubic(const T* x, const std::int32_t* indices, const T* weights, const T* rows,
                        const T* columns, std::int64_t count, std::int64_t stride, T* y) {
  const Tag<T> d;
  HWY_ALIGN T own[4 * kLanes<T>];
  HWY_ALIGN T parts[4 * kLanes<T>] = {};
  for (std::int64_t p = 0; p < count; p += kLanes<T>) {
    hn::StoreInterleaved4(hn::LoadU(d, columns + p), hn::LoadU(d, columns + stride + p),
                          hn::LoadU(d, columns + 2 * stride + p),
                          hn::LoadU(d, columns + 3 * stride + p), d, own);
    const std::int64_t some = count - p < kLanes<T> ? count - p : kLanes<T>;
    for (std::int64_t i = 0; i < some; ++i) {
      sum_cubic_point(x, indices + p + i, weights + p + i, rows + p + i, own + 4 * i, stride,
                      parts + 4 * i);
    }
    Vector<T> a, b, c, e;
    hn::LoadInterleaved4(d, parts, a, b, c, e);
    const auto sum = hn::Add(hn::Add(a, b), hn::Add(c, e));
    if (some == kLanes<T>) {
      hn::StoreU(sum, d, y + p);
    } else {
      HWY_ALIGN T last[kLanes<T>];
      hn::Store(sum, d, last);
      for (std::int64_t i = 0; i < some; ++i) y[p + i] = last[i];
    }
  }
}

// Finds the two elements that a point at `grid` reads along an axis: returns the index of the
// first. A tap outside the image has weight 0, or its weight goes to the tap inside.
template <class T>
HWY_INLINE Vector<T> find_pair(const Range<T>& range, Vector<T> grid, std::int64_t stride,
                               T* weights, T* slopes) {
  const Tag<T> d;
  const auto zero = hn::Zero(d);
  const auto one = set<T>(T(1));
  auto moves = zero;
  const auto x = range.position(grid, moves);
  const auto first = clamped<T>(hn::Floor(x), zero, set<T>(range.last - T(1)));
  const auto at = hn::Sub(x, first);  // in [0, 1) if both taps are in the image
  const bool has_zeros = range.axis.padding == Padding::kZeros;
  auto right = clamped<T>(at, zero, one);
  auto left = hn::Sub(one, right);
  if (has_zeros) {
    left = hn::Max(hn::Sub(one, hn::Abs(at)), zero);
    right = hn::Max(hn::Sub(one, hn::Abs(hn::Sub(at, one))), zero);
  }
  hn::StoreU(left, d, weights);
  hn::StoreU(right, d, weights + stride);
  if (slopes != nullptr) {
    const auto cell = hn::Floor(at);
    const auto rises = hn::IfThenElseZero(hn::Eq(cell, zero), moves);
    auto falls = hn::Neg(rises);
    auto grows = rises;
    if (has_zeros) {
      falls = hn::IfThenElse(hn::Eq(cell, set<T>(T(-1))), moves, falls);
      grows = hn::IfThenElse(hn::Eq(cell, one), hn::Neg(moves), grows);
    }
    hn::StoreU(falls, d, slopes);
    hn::StoreU(grows, d, slopes + stride);
  }
  return first;
}

template <class T>
HWY_ATTR void find_patches(const Axis& y, const Axis& x, const T* columns, std::int64_t count,
                           const Patches<T>& patches) {
  const Tag<T> d;
  const Places<T> di;
  const Range<T> rows(y);
  const Range<T> row(x);
  const auto [first, weights, slopes, elements, stride] = patches;
  const auto width = hn::Set(di, static_cast<std::int32_t>(x.size));
  HWY_ALIGN std::int32_t up[kLanes<T>];
  HWY_ALIGN std::int32_t left[kLanes<T>];
  for (std::int64_t p = 0; p < count; p += kLanes<T>) {
    T* own = slopes == nullptr ? nullptr : slopes + p;
    store_places<T>(find_pair(rows, hn::LoadU(d, columns + stride + p), stride, weights + p, own),
                    up);
    own = own == nullptr ? nullptr : own + 2 * stride;
    store_places<T>(
        find_pair(row, hn::LoadU(d, columns + p), stride, weights + 2 * stride + p, own), left);
    hn::StoreU(hn::Add(hn::Mul(hn::LoadU(di, up), width), hn::LoadU(di, left)), di, first + p);
  }
}

// Loads the weights, or slopes, of vector p: upper and lower row, left and right column.
template <class T>
struct Factors {
  Factors(const T* rows, const T* columns, std::int64_t stride, std::int64_t p)
      : up(hn::LoadU(Tag<T>(), rows + p)),
        down(hn::LoadU(Tag<T>(), rows + stride + p)),
        left(hn::LoadU(Tag<T>(), columns + p)),
        right(hn::LoadU(Tag<T>(), columns + stride + p)) {}

  HWY_INLINE Vector<T> sum(const Vector<T>& a, const Vector<T>& b, const Vector<T>& c,
                           const Vector<T>& e) const {
    const auto upper = hn::MulAdd(left, a, hn::Mul(right, b));
    const auto lower = hn::MulAdd(left, c, hn::Mul(right, e));
    return hn::MulAdd(up, upper, hn::Mul(down, lower));
  }

  Vector<T> up;
  Vector<T> down;
  Vector<T> left;
  Vector<T> right;
};

// Loads the elements of the patches of vector p, row by row.
template <class T>
HWY_INLINE void load_patches(const Patches<T>& patches, std::int64_t p, Vector<T>& a, Vector<T>& b,
                             Vector<T>& c, Vector<T>& e) {
  const Tag<T> d;
  hn::LoadInterleaved2(d, patches.elements + 2 * p, a, b);
  hn::LoadInterleaved2(d, patches.elements + 2 * (patches.stride + p), c, e);
}

template <class T>
HWY_ATTR void sum_patches(const Patches<T>& patches, std::int64_t count, T* to) {
  const T* weights = patches.weights;
  const std::int64_t stride = patches.stride;
  for (std::int64_t p = 0; p < count; p += kLanes<T>) {
    Vector<T> a, b, c, e;
    load_patches(patches, p, a, b, c, e);
    const Factors<T> own(weights, weights + 2 * stride, stride, p);
    hn::StoreU(own.sum(a, b, c, e), Tag<T>(), to + p);
  }
}

template <class T>
HWY_ATTR void share_patches(const Patches<T>& patches, const T* dy, std::int64_t count, T* shares) {
  const Tag<T> d;
  const T* weights = patches.weights;
  const std::int64_t stride = patches.stride;
  for (std::int64_t p = 0; p < count; p += kLanes<T>) {
    const Factors<T> own(weights, weights + 2 * stride, stride, p);
    const auto upstream = hn::LoadU(d, dy + p);
    const auto up = hn::Mul(own.up, upstream);
    const auto down = hn::Mul(own.down, upstream);
    hn::StoreInterleaved4(hn::Mul(up, own.left), hn::Mul(up, own.right), hn::Mul(down, own.left),
                          hn::Mul(down, own.right), d, shares + 4 * p);
  }
}

template <class T>
HWY_ATTR void add_patches(const Patches<T>& patches, const T* dy, std::int64_t count, T* sums) {
  const Tag<T> d;
  const std::int64_t stride = patches.stride;
  for (std::int64_t p = 0; p < count; p += kLanes<T>) {
    Vector<T> element[4];
    load_patches(patches, p, element[0], element[1], element[2], element[3]);
    const auto upstream = hn::LoadU(d, dy + p);
    for (std::int64_t k = 0; k < 4; ++k) {
      T* sum = sums + k * stride + p;
      hn::StoreU(hn::MulAdd(element[k], upstream, hn::LoadU(d, sum)), d, sum);
    }
  }
}

template <class T>
HWY_ATTR void patch_slopes(const Patches<T>& patches, const T* sums, std::int64_t count, T* dgrid) {
  const Tag<T> d;
  const auto [first, weights, slopes, elements, stride] = patches;
  for (std::int64_t p = 0; p < count; p += kLanes<T>) {
    const auto a = hn::LoadU(d, sums + p);
    const auto b = hn::LoadU(d, sums + stride + p);
    const auto c = hn::LoadU(d, sums + 2 * stride + p);
    const auto e = hn::LoadU(d, sums + 3 * stride + p);
    const Factors<T> by_x(weights, slopes + 2 * stride, stride, p);
    const Factors<T> by_y(slopes, weights + 2 * stride, stride, p);
    hn::StoreInterleaved2(by_x.sum(a, b, c, e), by_y.sum(a, b, c, e), d, dgrid + 2 * p);
  }
}

template <class T>
TapTable<T> make_table() {
  return {split<T>,        find<T>,        combine<T>,       add_products<T>, sum_cubic<T>,
          find_patches<T>, sum_patches<T>, share_patches<T>, add_patches<T>,  patch_slopes<T>};
}

const TapTable<float>* float_table() {
  static const TapTable<float> table = make_table<float>();
  return &table;
}
const TapTable<double>* double_table() {
  static const TapTable<double> table = make_table<double>();
  return &table;
}

}  // namespace onnxgrad::ops::sample::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace onnxgrad::ops::sample {

HWY_EXPORT(float_table);
HWY_EXPORT(double_table);

template <>
const TapTable<float>& tap_table<float>(device::Isa isa) {
  return *device::chosen(HWY_DISPATCH_TABLE(float_table), isa)();
}
template <>
const TapTable<double>& tap_table<double>(device::Isa isa) {
  return *device::chosen(HWY_DISPATCH_TABLE(double_table), isa)();
}

}  // namespace onnxgrad::ops::sample
#endif  // HWY_ONCE
