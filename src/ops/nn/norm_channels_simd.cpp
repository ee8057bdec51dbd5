#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "device/cpu/dispatch.h"
#include "device/cpu/simd.h"
#include "ops/nn/norm_channels_simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/nn/norm_channels_simd.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "device/cpu/f16-inl.h"
#include "device/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onnxgrad::ops::channels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
namespace dn = onnxgrad::device::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

constexpr std::int64_t kLanes = hn::MaxLanes(D());
// Elements whose sums are taken in float32: they fit into the L1 cache.
constexpr std::int64_t kBlock = 4096;

using D16 = hn::Rebind<std::uint16_t, D>;

template <class E>
using Format =
    std::conditional_t<std::is_same_v<E, base::Float16>, dn::Float16Format, dn::Bfloat16Format>;

HWY_INLINE const std::uint16_t* bits_of(const void* half) {
  return static_cast<const std::uint16_t*>(half);
}
HWY_INLINE std::uint16_t* bits_of(void* half) { return static_cast<std::uint16_t*>(half); }

struct Whole {
  HWY_INLINE V load(const float* from) const { return hn::LoadU(D(), from); }
  HWY_INLINE void store(V v, float* to) const { hn::StoreU(v, D(), to); }
  template <class E>
  HWY_INLINE V load(const E* from) const {
    return Format<E>::load(D(), hn::LoadU(D16(), bits_of(from)));
  }
  template <class E>
  HWY_INLINE void store(V v, E* to) const {
    hn::StoreU(Format<E>::store(D(), v), D16(), bits_of(to));
  }
  HWY_INLINE V only(V v) const { return v; }
};

struct Rest {
  std::int64_t count;
  hn::Mask<D> mask;

  HWY_INLINE explicit Rest(std::int64_t n)
      : count(n), mask(hn::FirstN(D(), static_cast<std::size_t>(n))) {}
  HWY_INLINE V load(const float* from) const { return dn::load_first(D(), mask, from, count); }
  HWY_INLINE void store(V v, float* to) const { dn::store_first(v, D(), mask, to, count); }
  template <class E>
  HWY_INLINE V load(const E* from) const {
    return Format<E>::load(D(), dn::load_first_halves(D16(), bits_of(from), count));
  }
  template <class E>
  HWY_INLINE void store(V v, E* to) const {
    dn::store_first_halves(Format<E>::store(D(), v), D16(), bits_of(to), count);
  }
  HWY_INLINE V only(V v) const { return hn::IfThenElseZero(mask, v); }
};

/// Block of elements: in each of the runs [first, last), elements [begin, end).
struct Block {
  std::int64_t first, last, begin, end;

  std::int64_t count() const { return (last - first) * (end - begin); }
};

/// Calls f(offset, lanes, which) for the vectors of a block; `which` alternates between 0 and 1.
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

template <class E>
HWY_ATTR Moments moments_of(const E* x, const Stretches& stretches) {
  double mean = 0;
  double squares = 0;
  double count = 0;
  visit_blocks(stretches, [&](const Block& block) HWY_ATTR {
    V sums[2] = {hn::Zero(D()), hn::Zero(D())};
    visit(stretches, block, [&](std::int64_t i, auto lanes, int which) HWY_ATTR {
      sums[which] = hn::Add(sums[which], lanes.load(x + i));
    });
    const auto size = static_cast<double>(block.count());
    const auto centre = static_cast<float>(total(sums) / size);
    const V centres = hn::Set(D(), centre);
    V distances[2] = {hn::Zero(D()), hn::Zero(D())};
    V centred[2] = {hn::Zero(D()), hn::Zero(D())};
    visit(stretches, block, [&](std::int64_t i, auto lanes, int which) HWY_ATTR {
      const V distance = lanes.only(hn::Sub(lanes.load(x + i), centres));
      distances[which] = hn::Add(distances[which], distance);
      centred[which] = hn::MulAdd(distance, distance, centred[which]);
    });
    // The first sum has rounding errors relative to the elements, the second to their deviation.
    const double error = total(distances) / size;
    const double block_mean = static_cast<double>(centre) + error;
    const double block_squares = total(centred) - size * error * error;
    const double difference = block_mean - mean;
    squares += block_squares + difference * difference * count * size / (count + size);
    mean += difference * size / (count + size);
    count += size;
  });
  return {.mean = mean, .variance = std::max(squares / count, 0.0)};
}

/// Affine with vectors.
struct Line {
  V mean, slope, shift, low, high;

  HWY_INLINE explicit Line(const Affine& affine)
      : mean(hn::Set(D(), affine.mean)),
        slope(hn::Set(D(), affine.slope)),
        shift(hn::Set(D(), affine.shift)),
        low(hn::Set(D(), affine.low)),
        high(hn::Set(D(), affine.high)) {}

  HWY_INLINE V at(V x) const { return hn::MulAdd(hn::Sub(x, mean), slope, shift); }
  /// Clamps v; NaN stays NaN.
  HWY_INLINE V clipped(V v) const {
    const V raised = dn::max_or_nan(low, v);
    return hn::IfThenElse(hn::Gt(raised, high), high, raised);
  }
};

template <bool kAdds, class E>
HWY_INLINE void normalize_with(const E* x, const E* residual, const Stretches& stretches,
                               const Affine& affine, E* y) {
  const Line line(affine);
  visit(stretches, all_of(stretches), [&](std::int64_t i, auto lanes, int) HWY_ATTR {
    V v = line.at(lanes.load(x + i));
    if constexpr (kAdds) v = hn::Add(v, lanes.load(residual + i));
    lanes.store(line.clipped(v), y + i);
  });
}

template <class E>
HWY_ATTR void normalize_of(const E* x, const E* residual, const Stretches& stretches,
                           const Affine& affine, E* y) {
  if (residual == nullptr) {
    normalize_with<false>(x, residual, stretches, affine, y);
  } else {
    normalize_with<true>(x, residual, stretches, affine, y);
  }
}

/// Rounds v to type E.
template <class E>
HWY_INLINE V rounded(V v) {
  if constexpr (std::is_same_v<E, float>) {
    return v;
  } else {
    return dn::round_to_f16<Format<E>>(D(), v);
  }
}

/// Returns g and x - mean at offset i.
template <bool kAdds, Mask kMask, class G, class X>
struct Masked {
  const Cotangent<G, X>& c;
  Line line;

  HWY_INLINE explicit Masked(const Cotangent<G, X>& cotangent)
      : c(cotangent), line(cotangent.affine) {}

  template <class Lanes>
  HWY_INLINE V at(std::int64_t i, Lanes lanes, V& centred) const {
    V g = lanes.load(c.dy + i);
    if constexpr (kAdds) g = rounded<G>(hn::Add(g, lanes.load(c.more + i)));
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

template <bool kAdds, Mask kMask, class G, class X>
HWY_INLINE GradSums sums_with(const Cotangent<G, X>& cotangent, const Stretches& stretches,
                              G* stored) {
  const Masked<kAdds, kMask, G, X> masked(cotangent);
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

template <bool kAdds, Mask kMask, class G, class X>
HWY_INLINE void grad_with(const Cotangent<G, X>& cotangent, const Stretches& stretches, float a,
                          float b, float d, G* dx) {
  const Masked<kAdds, kMask, G, X> masked(cotangent);
  const V factor = hn::Set(D(), a);
  const V slope = hn::Set(D(), b);
  const V shift = hn::Set(D(), d);
  visit(stretches, all_of(stretches), [&](std::int64_t i, auto lanes, int) HWY_ATTR {
    V centred;
    const V g = masked.at(i, lanes, centred);
    lanes.store(hn::MulAdd(g, factor, hn::MulAdd(centred, slope, shift)), dx + i);
  });
}

/// Calls f with the kind of the cotangent as compile-time constants.
template <class G, class X, class F>
HWY_INLINE auto with_kind(const Cotangent<G, X>& c, F f) {
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

template <class G, class X>
HWY_ATTR GradSums sums_of(const Cotangent<G, X>& cotangent, const Stretches& stretches, G* stored) {
  return with_kind(cotangent, [&](auto adds, auto mask) HWY_ATTR {
    return sums_with<adds.value, mask.value>(cotangent, stretches, stored);
  });
}

template <class G, class X>
HWY_ATTR void grad_of(const Cotangent<G, X>& cotangent, const Stretches& stretches, float a,
                      float b, float d, G* dx) {
  with_kind(cotangent, [&](auto adds, auto mask) HWY_ATTR {
    grad_with<adds.value, mask.value>(cotangent, stretches, a, b, d, dx);
  });
}

struct Functions {
  template <class E>
  static ForwardFunctions<E> forward() {
    return {.moments = moments_of<E>, .normalize = normalize_of<E>};
  }
  template <class G, class X>
  static GradFunctions<G, X> grad() {
    return {.sums = sums_of<G, X>, .normalize = grad_of<G, X>};
  }
};

ForwardFunctions<float> forward_float() { return Functions::forward<float>(); }
ForwardFunctions<base::Float16> forward_fp16() { return Functions::forward<base::Float16>(); }
ForwardFunctions<base::Bfloat16> forward_bf16() { return Functions::forward<base::Bfloat16>(); }
GradFunctions<float, float> grad_float() { return Functions::grad<float, float>(); }
GradFunctions<base::Float16, base::Float16> grad_fp16() {
  return Functions::grad<base::Float16, base::Float16>();
}
GradFunctions<base::Bfloat16, base::Bfloat16> grad_bf16() {
  return Functions::grad<base::Bfloat16, base::Bfloat16>();
}
GradFunctions<float, base::Float16> grad_of_fp16() {
  return Functions::grad<float, base::Float16>();
}
GradFunctions<float, base::Bfloat16> grad_of_bf16() {
  return Functions::grad<float, base::Bfloat16>();
}

}  // namespace onnxgrad::ops::channels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace onnxgrad::ops::channels {

HWY_EXPORT(forward_float);
HWY_EXPORT(forward_fp16);
HWY_EXPORT(forward_bf16);
HWY_EXPORT(grad_float);
HWY_EXPORT(grad_fp16);
HWY_EXPORT(grad_bf16);
HWY_EXPORT(grad_of_fp16);
HWY_EXPORT(grad_of_bf16);

template <>
ForwardFunctions<float> forward_functions(device::Isa isa) {
  return device::chosen(HWY_DISPATCH_TABLE(forward_float), isa)();
}
template <>
ForwardFunctions<base::Float16> forward_functions(device::Isa isa) {
  return device::chosen(HWY_DISPATCH_TABLE(forward_fp16), isa)();
}
template <>
ForwardFunctions<base::Bfloat16> forward_functions(device::Isa isa) {
  return device::chosen(HWY_DISPATCH_TABLE(forward_bf16), isa)();
}
template <>
GradFunctions<float, float> grad_functions(device::Isa isa) {
  return device::chosen(HWY_DISPATCH_TABLE(grad_float), isa)();
}
template <>
GradFunctions<base::Float16, base::Float16> grad_functions(device::Isa isa) {
  return device::chosen(HWY_DISPATCH_TABLE(grad_fp16), isa)();
}
template <>
GradFunctions<base::Bfloat16, base::Bfloat16> grad_functions(device::Isa isa) {
  return device::chosen(HWY_DISPATCH_TABLE(grad_bf16), isa)();
}
template <>
GradFunctions<float, base::Float16> grad_functions(device::Isa isa) {
  return device::chosen(HWY_DISPATCH_TABLE(grad_of_fp16), isa)();
}
template <>
GradFunctions<float, base::Bfloat16> grad_functions(device::Isa isa) {
  return device::chosen(HWY_DISPATCH_TABLE(grad_of_bf16), isa)();
}

}  // namespace onnxgrad::ops::channels
#endif  // HWY_ONCE
