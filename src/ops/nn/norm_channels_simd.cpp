#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "device/cpu/simd.h"
#include "ops/nn/norm_channels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/nn/norm_channels_simd.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "device/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onnxgrad::ops::channels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
namespace dn = onnxgrad::device::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

constexpr std::int64_t kLanes = hn::MaxLanes(D());
// Elements whose sums are taken in float32: a part of the L1 cache.
constexpr std::int64_t kBlock = 4096;

struct Whole {
  HWY_INLINE V load(const float* from) const { return hn::LoadU(D(), from); }
  HWY_INLINE void store(V v, float* to) const { hn::StoreU(v, D(), to); }
  HWY_INLINE V only(V v) const { return v; }
};

struct Rest {
  std::int64_t count;
  hn::Mask<D> mask;

  HWY_INLINE explicit Rest(std::int64_t n)
      : count(n), mask(hn::FirstN(D(), static_cast<std::size_t>(n))) {}
  HWY_INLINE V load(const float* from) const { return dn::load_first(D(), mask, from, count); }
  HWY_INLINE void store(V v, float* to) const { dn::store_first(v, D(), mask, to, count); }
  HWY_INLINE V only(V v) const { return hn::IfThenElseZero(mask, v); }
};

/// Some of the elements: of stretches [first, last) the elements [begin, end).
struct Block {
  std::int64_t first, last, begin, end;

  std::int64_t count() const { return (last - first) * (end - begin); }
};

/// Calls f(place, lanes, which) for the vectors of a block; `which` alternates between 0 and 1.
template <class F>
HWY_INLINE void visit(const Stretches& stretches, const Block& block, F f) {
  for (std::int64_t s = block.first; s < block.last; ++s) {
    const std::int64_t end = s * stretches.stride + block.end;
    std::int64_t i = s * stretches.stride + block.begin;
    for (; i + 2 * kLanes <= end; i += 2 * kLanes) {
      f(i, Whole(), 0);
      f(i + kLanes, Whole(), 1);
    }
    if (i + kLanes <= end) {
      f(i, Whole(), 0);
      i += kLanes;
    }
    if (i < end) f(i, Rest(end - i), 1);
  }
}

/// Calls f(block) for blocks of at most kBlock elements.
template <class F>
HWY_INLINE void visit_blocks(const Stretches& stretches, F f) {
  const std::int64_t together =
      std::max<std::int64_t>(kBlock / std::max<std::int64_t>(stretches.length, 1), 1);
  for (std::int64_t s = 0; s < stretches.segments; s += together) {
    const std::int64_t last = std::min(s + together, stretches.segments);
    for (std::int64_t i = 0; i < stretches.length; i += kBlock) {
      f(Block{s, last, i, std::min(i + kBlock, stretches.length)});
    }
  }
}

HWY_INLINE Block all_of(const Stretches& stretches) {
  return {0, stretches.segments, 0, stretches.length};
}

HWY_INLINE double total(const V* sums) {
  return static_cast<double>(hn::GetLane(hn::SumOfLanes(D(), hn::Add(sums[0], sums[1]))));
}

HWY_ATTR Moments moments_of(const float* x, const Stretches& stretches) {
  double mean = 0;
  double squares = 0;
  double count = 0;
  visit_blocks(stretches, [&](const Block& block) HWY_ATTR {
    V sums[2] = {hn::Zero(D()), hn::Zero(D())};
    visit(stretches, block, [&](std::int64_t i, auto lanes, int which) HWY_ATTR {
      sums[which] = hn::Add(sums[which], lanes.load(x + i));
    });
    const auto size = static_cast<double>(block.count());
    const double block_mean = total(sums) / size;
    const auto rounded = static_cast<float>(block_mean);
    const V centre = hn::Set(D(), rounded);
    V centred[2] = {hn::Zero(D()), hn::Zero(D())};
    visit(stretches, block, [&](std::int64_t i, auto lanes, int which) HWY_ATTR {
      const V distance = lanes.only(hn::Sub(lanes.load(x + i), centre));
      centred[which] = hn::MulAdd(distance, distance, centred[which]);
    });
    const double error = block_mean - static_cast<double>(rounded);
    const double block_squares = total(centred) - size * error * error;
    const double difference = block_mean - mean;
    squares += block_squares + difference * difference * count * size / (count + size);
    mean += difference * size / (count + size);
    count += size;
  });
  return {.mean = mean, .variance = std::max(squares / count, 0.0)};
}

/// An Affine in vectors.
struct Line {
  V mean, slope, shift, low, high;

  HWY_INLINE explicit Line(const Affine& affine)
      : mean(hn::Set(D(), affine.mean)),
        slope(hn::Set(D(), affine.slope)),
        shift(hn::Set(D(), affine.shift)),
        low(hn::Set(D(), affine.low)),
        high(hn::Set(D(), affine.high)) {}

  HWY_INLINE V at(V x) const { return hn::MulAdd(hn::Sub(x, mean), slope, shift); }
  /// NaN stays NaN.
  HWY_INLINE V clipped(V v) const {
    const V raised = dn::max_or_nan(low, v);
    return hn::IfThenElse(hn::Gt(raised, high), high, raised);
  }
};

template <bool kAdds>
HWY_INLINE void normalize_with(const float* x, const float* residual, const Stretches& stretches,
                               const Affine& affine, float* y) {
  const Line line(affine);
  visit(stretches, all_of(stretches), [&](std::int64_t i, auto lanes, int) HWY_ATTR {
    V v = line.at(lanes.load(x + i));
    if constexpr (kAdds) v = hn::Add(v, lanes.load(residual + i));
    lanes.store(line.clipped(v), y + i);
  });
}

HWY_ATTR void normalize_of(const float* x, const float* residual, const Stretches& stretches,
                           const Affine& affine, float* y) {
  if (residual == nullptr) {
    normalize_with<false>(x, residual, stretches, affine, y);
  } else {
    normalize_with<true>(x, residual, stretches, affine, y);
  }
}

/// g and x - mean at place i.
template <bool kAdds, Mask kMask>
struct Masked {
  const Cotangent& c;
  Line line;

  HWY_INLINE explicit Masked(const Cotangent& cotangent) : c(cotangent), line(cotangent.affine) {}

  template <class Lanes>
  HWY_INLINE V at(std::int64_t i, Lanes lanes, V& centred) const {
    V g = lanes.load(c.dy + i);
    if constexpr (kAdds) g = hn::Add(g, lanes.load(c.more + i));
    centred = hn::Sub(lanes.load(c.x + i), line.mean);
    if constexpr (kMask == Mask::kResult) {
      return hn::IfThenElseZero(hn::Gt(lanes.load(c.result + i), hn::Zero(D())), g);
    } else if constexpr (kMask == Mask::kPositive) {
      const V v = hn::MulAdd(centred, line.slope, line.shift);
      return hn::IfThenElseZero(hn::Gt(v, hn::Zero(D())), g);
    } else if constexpr (kMask == Mask::kInside) {
      const V v = hn::MulAdd(centred, line.slope, line.shift);
      return hn::IfThenZeroElse(hn::Or(hn::Lt(v, line.low), hn::Gt(v, line.high)), g);
    } else {
      return g;
    }
  }
};

template <bool kAdds, Mask kMask>
HWY_INLINE GradSums sums_with(const Cotangent& cotangent, const Stretches& stretches,
                              float* stored) {
  const Masked<kAdds, kMask> masked(cotangent);
  GradSums result;
  visit_blocks(stretches, [&](const Block& block) HWY_ATTR {
    V sums[2] = {hn::Zero(D()), hn::Zero(D())};
    V dots[2] = {hn::Zero(D()), hn::Zero(D())};
    visit(stretches, block, [&](std::int64_t i, auto lanes, int which) HWY_ATTR {
      V centred;
      const V g = lanes.only(masked.at(i, lanes, centred));
      sums[which] = hn::Add(sums[which], g);
      dots[which] = hn::Add(dots[which], lanes.only(hn::Mul(g, centred)));
      if (stored != nullptr) lanes.store(g, stored + i);
    });
    result.g += total(sums);
    result.dot += total(dots);
  });
  return result;
}

template <bool kAdds, Mask kMask>
HWY_INLINE void grad_with(const Cotangent& cotangent, const Stretches& stretches, float a, float b,
                          float d, float* dx) {
  const Masked<kAdds, kMask> masked(cotangent);
  const V factor = hn::Set(D(), a);
  const V slope = hn::Set(D(), b);
  const V shift = hn::Set(D(), d);
  visit(stretches, all_of(stretches), [&](std::int64_t i, auto lanes, int) HWY_ATTR {
    V centred;
    const V g = masked.at(i, lanes, centred);
    lanes.store(hn::MulAdd(g, factor, hn::MulAdd(centred, slope, shift)), dx + i);
  });
}

/// Calls f with the kind of a cotangent as constants.
template <class F>
HWY_INLINE auto with_kind(const Cotangent& c, F f) {
  using Adds = std::true_type;
  using One = std::false_type;
  const bool adds = c.more != nullptr;
  switch (c.mask) {
    case Mask::kPositive: {
      constexpr std::integral_constant<Mask, Mask::kPositive> kMask;
      return adds ? f(Adds(), kMask) : f(One(), kMask);
    }
    case Mask::kInside: {
      constexpr std::integral_constant<Mask, Mask::kInside> kMask;
      return adds ? f(Adds(), kMask) : f(One(), kMask);
    }
    case Mask::kResult: {
      constexpr std::integral_constant<Mask, Mask::kResult> kMask;
      return adds ? f(Adds(), kMask) : f(One(), kMask);
    }
    case Mask::kNone:
      break;
  }
  constexpr std::integral_constant<Mask, Mask::kNone> kMask;
  return adds ? f(Adds(), kMask) : f(One(), kMask);
}

HWY_ATTR GradSums sums_of(const Cotangent& cotangent, const Stretches& stretches, float* stored) {
  return with_kind(cotangent, [&](auto adds, auto mask) HWY_ATTR {
    return sums_with<adds.value, mask.value>(cotangent, stretches, stored);
  });
}

HWY_ATTR void grad_of(const Cotangent& cotangent, const Stretches& stretches, float a, float b,
                      float d, float* dx) {
  with_kind(cotangent, [&](auto adds, auto mask) HWY_ATTR {
    grad_with<adds.value, mask.value>(cotangent, stretches, a, b, d, dx);
  });
}

}  // namespace onnxgrad::ops::channels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace onnxgrad::ops::channels {

HWY_EXPORT(moments_of);
HWY_EXPORT(normalize_of);
HWY_EXPORT(sums_of);
HWY_EXPORT(grad_of);

Moments moments(const float* x, const Stretches& stretches) {
  return HWY_DYNAMIC_DISPATCH(moments_of)(x, stretches);
}

void normalize(const float* x, const float* residual, const Stretches& stretches,
               const Affine& affine, float* y) {
  HWY_DYNAMIC_DISPATCH(normalize_of)(x, residual, stretches, affine, y);
}

GradSums grad_sums(const Cotangent& cotangent, const Stretches& stretches, float* stored) {
  return HWY_DYNAMIC_DISPATCH(sums_of)(cotangent, stretches, stored);
}

void normalize_grad(const Cotangent& cotangent, const Stretches& stretches, float a, float b,
                    float d, float* dx) {
  HWY_DYNAMIC_DISPATCH(grad_of)(cotangent, stretches, a, b, d, dx);
}

}  // namespace onnxgrad::ops::channels
#endif  // HWY_ONCE
