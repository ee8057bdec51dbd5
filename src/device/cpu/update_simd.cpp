#include "device/cpu/update.h"

#include <limits>
#include <type_traits>

#include "device/cpu/dispatch.h"
#include "device/cpu/flush_denormals.h"
#include "device/cpu/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/update_simd.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "device/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onnxgrad::device::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Whether a division takes no longer than the multiply-adds that it runs beside: on AMD's
// processors with 512-bit vectors (measured on Zen 4, with an update of Adam), not on Intel's.
bool divides_beside_multiply_adds() {
#if HWY_ARCH_X86 && (HWY_COMPILER_GCC || HWY_COMPILER_CLANG)
  return HWY_MAX_BYTES == 64 && __builtin_cpu_is("amd");
#else
  return false;
#endif
}

// Estimates of 11 bits or more, which one Newton step extends to 22.
#if HWY_ARCH_X86
inline constexpr bool kHasEstimates = true;
#else
inline constexpr bool kHasEstimates = false;
#endif

// Methods to divide by a root.
enum class Quotient {
  kExact,
  kRootEstimate,  ///< root by an estimate, exact division: where it runs beside multiply-adds
  kEstimates,     ///< root and quotient by estimates
};

/// Returns start - rate * m / (sqrt(v) + epsilon). With estimates y of 1 / sqrt(v) and r of 1 / d a
/// Newton step each: e = v y, d = e (3 - e y) + 2 epsilon is twice the divisor, and r (2 - d r),
/// doubled, the quotient's other factor. Twelve vector operations, where root and division take as
/// long as thirty.
template <class D, Quotient kQuotient>
struct RootStep {
  using T = hn::TFromD<D>;
  using V = hn::Vec<D>;
  static constexpr T kTwo = 2;
  static constexpr T kThree = 3;
  static constexpr T kDoubled = kQuotient == Quotient::kExact ? 1 : 2;

  RootStep(T epsilon, T rate)
      : epsilon_(hn::Set(D(), kDoubled * epsilon)), rate_(hn::Set(D(), kDoubled * rate)) {}

  V operator()(V start, V m, V v) const {
    const D d;
    if constexpr (kQuotient == Quotient::kExact) {
      return hn::NegMulAdd(rate_, hn::Div(m, hn::Add(hn::Sqrt(v), epsilon_)), start);
    } else {
      // The estimate of 1 / sqrt(0) is infinite; the root must be 0 there.
      const V y =
          hn::ApproximateReciprocalSqrt(hn::Max(v, hn::Set(d, std::numeric_limits<T>::min())));
      const V e = hn::Mul(v, y);
      const V divisor = hn::MulAdd(e, hn::NegMulAdd(e, y, hn::Set(d, kThree)), epsilon_);
      return hn::NegMulAdd(rate_, quotient(m, divisor), start);
    }
  }

 private:
  V quotient(V m, V divisor) const {
    if constexpr (kQuotient == Quotient::kRootEstimate) return hn::Div(m, divisor);
    const V r = hn::ApproximateReciprocal(divisor);
    return hn::Mul(hn::Mul(m, r), hn::NegMulAdd(divisor, r, hn::Set(D(), kTwo)));
  }

  V epsilon_;
  V rate_;
};

// Whether averages can be computed as m + share (g - m) instead of (1 - share) m + share g, with a
// multiplication less. With larger shares, a small g would be lost beside m.
bool are_averages(const WeightUpdate& spec) {
  constexpr double kLargestShare = 0.5;
  return spec.beta1 == 1 - spec.share1 && spec.share1 <= kLargestShare &&
         spec.beta2 == 1 - spec.share2 && spec.share2 <= kLargestShare;
}

// kAverages: see are_averages(); of kAdam.
template <class T, UpdateRule kRule, bool kDecays, bool kShrinks, Quotient kQuotient,
          bool kAverages>
void update(const WeightUpdate& spec, const UpdateArrays<T>& given) {
  const UpdateArrays<T> arrays = given;  // stores cannot change a copy
  const hn::ScalableTag<T> d;
  using D = hn::ScalableTag<T>;
  using V = hn::Vec<D>;
  constexpr std::int64_t kLanes = hn::MaxLanes(D());
  const V beta1 = hn::Set(d, static_cast<T>(spec.beta1));
  const V share1 = hn::Set(d, static_cast<T>(spec.share1));
  const V beta2 = hn::Set(d, static_cast<T>(spec.beta2));
  const V share2 = hn::Set(d, static_cast<T>(spec.share2));
  const V decay = hn::Set(d, static_cast<T>(spec.decay));
  const V shrink = hn::Set(d, arrays.shrink);
  const V rate = hn::Set(d, arrays.rate);
  const RootStep<D, kQuotient> root_step(arrays.epsilon, arrays.rate);
  const FlushDenormals flush;

  // `load` and `store` handle full vectors, or the remainder.
  const auto step = [&](std::int64_t i, const T* gradient, const auto& load,
                        const auto& store) HWY_ATTR {
    const V w = load(arrays.w + i);
    V g = load(gradient);
    const V m = load(arrays.m + i);
    if constexpr (kDecays) g = hn::MulAdd(decay, w, g);
    const V start = kShrinks ? hn::Mul(shrink, w) : w;
    if constexpr (kRule == UpdateRule::kAdam) {
      const V v = load(arrays.v + i);
      const V new_m = kAverages ? hn::MulAdd(share1, hn::Sub(g, m), m)
                                : hn::MulAdd(beta1, m, hn::Mul(share1, g));
      const V new_v = kAverages ? hn::MulAdd(share2, hn::MulSub(g, g, v), v)
                                : hn::MulAdd(hn::Mul(share2, g), g, hn::Mul(beta2, v));
      store(new_m, arrays.new_m + i);
      store(new_v, arrays.new_v + i);
      store(root_step(start, new_m, new_v), arrays.new_w + i);
    } else if constexpr (kRule == UpdateRule::kRoot) {
      const V new_m = hn::MulAdd(hn::Mul(share1, g), g, hn::Mul(beta1, m));
      store(new_m, arrays.new_m + i);
      store(root_step(start, g, new_m), arrays.new_w + i);
    } else if constexpr (kRule == UpdateRule::kLion) {
      const V direction = hn::MulAdd(beta1, m, hn::Mul(share1, g));
      store(hn::MulAdd(beta2, m, hn::Mul(share2, g)), arrays.new_m + i);
      const V moved = hn::Sub(start, hn::CopySign(rate, direction));
      const V moved_or_nan = hn::IfThenElse(hn::Eq(direction, direction), moved, direction);
      store(hn::IfThenElse(hn::Eq(direction, hn::Zero(d)), start, moved_or_nan), arrays.new_w + i);
    } else if constexpr (kRule == UpdateRule::kVelocity || kRule == UpdateRule::kNesterovVelocity) {
      const V move = hn::Mul(rate, g);
      const V new_m = hn::MulSub(beta1, m, move);
      store(new_m, arrays.new_m + i);
      constexpr bool kPrefetches = kRule == UpdateRule::kNesterovVelocity;
      store(hn::Add(start, kPrefetches ? hn::MulSub(beta1, new_m, move) : new_m), arrays.new_w + i);
    } else {
      const V new_m = hn::MulAdd(beta1, m, g);
      const V direction = kRule == UpdateRule::kNesterov ? hn::MulAdd(beta1, new_m, g) : new_m;
      store(new_m, arrays.new_m + i);
      store(hn::NegMulAdd(rate, direction, start), arrays.new_w + i);
    }
  };
  const std::int64_t rest = arrays.count % kLanes;
  const auto mask = hn::FirstN(d, static_cast<std::size_t>(rest));
  for (std::int64_t row = 0; row < arrays.rows; ++row) {
    const T* gradient = arrays.gradient + row * arrays.gradient_row;
    std::int64_t i = row * arrays.row;
    const std::int64_t end = i + arrays.count - rest;
    for (; i < end; i += kLanes, gradient += kLanes) {
      step(
          i, gradient, [&](const T* from) HWY_ATTR { return hn::LoadU(d, from); },
          [&](V x, T* to) HWY_ATTR { hn::StoreU(x, d, to); });
    }
    if (rest == 0) continue;
    step(
        i, gradient, [&](const T* from) HWY_ATTR { return load_first(d, mask, from, rest); },
        [&](V x, T* to) HWY_ATTR { store_first(x, d, mask, to, rest); });
  }
}

template <class T, UpdateRule kRule, Quotient kQuotient, bool kAverages>
UpdateFn<T> choose_decay(const WeightUpdate& spec) {
  if (spec.decay != 0) {
    return spec.shrinks ? update<T, kRule, true, true, kQuotient, kAverages>
                        : update<T, kRule, true, false, kQuotient, kAverages>;
  }
  return spec.shrinks ? update<T, kRule, false, true, kQuotient, kAverages>
                      : update<T, kRule, false, false, kQuotient, kAverages>;
}

template <class T, UpdateRule kRule, Quotient kQuotient>
UpdateFn<T> choose_with(const WeightUpdate& spec) {
  if constexpr (kRule == UpdateRule::kAdam) {
    if (are_averages(spec)) return choose_decay<T, kRule, kQuotient, true>(spec);
  }
  return choose_decay<T, kRule, kQuotient, false>(spec);
}

template <class T, UpdateRule kRule>
UpdateFn<T> choose(const WeightUpdate& spec) {
  constexpr bool kHasRoot = kRule == UpdateRule::kAdam || kRule == UpdateRule::kRoot;
  if constexpr (kHasEstimates && std::is_same_v<T, float> && kHasRoot) {
    return divides_beside_multiply_adds() ? choose_with<T, kRule, Quotient::kRootEstimate>(spec)
                                          : choose_with<T, kRule, Quotient::kEstimates>(spec);
  } else {
    return choose_with<T, kRule, Quotient::kExact>(spec);
  }
}

template <class T>
UpdateFn<T> find(const WeightUpdate& spec) {
  switch (spec.rule) {
    case UpdateRule::kAdam:
      return choose<T, UpdateRule::kAdam>(spec);
    case UpdateRule::kNesterov:
      return choose<T, UpdateRule::kNesterov>(spec);
    case UpdateRule::kRoot:
      return choose<T, UpdateRule::kRoot>(spec);
    case UpdateRule::kLion:
      return choose<T, UpdateRule::kLion>(spec);
    case UpdateRule::kVelocity:
      return choose<T, UpdateRule::kVelocity>(spec);
    case UpdateRule::kNesterovVelocity:
      return choose<T, UpdateRule::kNesterovVelocity>(spec);
    default:
      return choose<T, UpdateRule::kMomentum>(spec);
  }
}

template <class T>
void descend(const WeightUpdate& /*spec*/, const UpdateArrays<T>& given) {
  const UpdateArrays<T> arrays = given;  // stores cannot change a copy
  const hn::ScalableTag<T> d;
  constexpr std::int64_t kLanes = hn::MaxLanes(hn::ScalableTag<T>());
  const auto rate = hn::Set(d, arrays.rate);
  const FlushDenormals flush;
  const std::int64_t rest = arrays.count % kLanes;
  const auto mask = hn::FirstN(d, static_cast<std::size_t>(rest));
  for (std::int64_t i = 0; i < arrays.rows; ++i) {
    const T* gradient = arrays.gradient + i * arrays.gradient_row;
    const T* w = arrays.w + i * arrays.row;
    T* to = arrays.new_w + i * arrays.row;
    const T* end = w + arrays.count - rest;
    for (; w < end; w += kLanes, to += kLanes, gradient += kLanes) {
      hn::StoreU(hn::NegMulAdd(rate, hn::LoadU(d, gradient), hn::LoadU(d, w)), d, to);
    }
    if (rest == 0) continue;
    const auto last =
        hn::NegMulAdd(rate, load_first(d, mask, gradient, rest), load_first(d, mask, w, rest));
    store_first(last, d, mask, to, rest);
  }
}

UpdateFn<float> find_float(const WeightUpdate& spec) { return find<float>(spec); }
UpdateFn<double> find_double(const WeightUpdate& spec) { return find<double>(spec); }
UpdateFn<float> find_descent_float() { return descend<float>; }
UpdateFn<double> find_descent_double() { return descend<double>; }

}  // namespace onnxgrad::device::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace onnxgrad::device {

HWY_EXPORT(find_float);
HWY_EXPORT(find_double);
HWY_EXPORT(find_descent_float);
HWY_EXPORT(find_descent_double);

template <>
UpdateFn<float> find_update<float>(Isa isa, const WeightUpdate& spec) {
  return chosen(HWY_DISPATCH_TABLE(find_float), isa)(spec);
}

template <>
UpdateFn<double> find_update<double>(Isa isa, const WeightUpdate& spec) {
  return chosen(HWY_DISPATCH_TABLE(find_double), isa)(spec);
}

template <>
UpdateFn<float> find_descent<float>(Isa isa) {
  return chosen(HWY_DISPATCH_TABLE(find_descent_float), isa)();
}

template <>
UpdateFn<double> find_descent<double>(Isa isa) {
  return chosen(HWY_DISPATCH_TABLE(find_descent_double), isa)();
}

}  // namespace onnxgrad::device
#endif  // HWY_ONCE
