// Exponentials and related functions on vectors; included once per instruction set. Largest errors,
// in units of the last place, float and double alike, subnormal results included:
//   exp 1, log 1, tanh 3, sigmoid 3, softplus 3, erf 2.5, sin and cos 3.
// Special values as in the C library; two functions for parts of a formula do less, as they say.
// tile_functions_test.cpp checks these figures.
#if defined(ONNXGRAD_DEVICE_CPU_TILE_FUNCTIONS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONNXGRAD_DEVICE_CPU_TILE_FUNCTIONS_INL_H_
#undef ONNXGRAD_DEVICE_CPU_TILE_FUNCTIONS_INL_H_
#else
#define ONNXGRAD_DEVICE_CPU_TILE_FUNCTIONS_INL_H_
#endif

#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#include <cstddef>

HWY_BEFORE_NAMESPACE();
namespace onnxgrad::device::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Highway's Exp, extended to arguments beyond its range and NaN.
template <class D, class V>
HWY_INLINE V exp_of(D d, V x) {
  using T = hn::TFromD<D>;
  // The exponential overflows from here on; Highway's range ends slightly later.
  const V limit = hn::Set(d, sizeof(T) == 4 ? T(89) : T(709.8));
  V y = hn::Exp(d, hn::Min(x, limit));
  y = hn::IfThenElse(hn::Ge(x, limit), hn::Inf(d), y);
  return hn::IfThenElse(hn::IsNaN(x), x, y);
}

/// Whether D is a vector of 16 floats.
template <class D>
inline constexpr bool kIsWholeFloats = sizeof(hn::TFromD<D>) == 4 && hn::MaxLanes(D()) == 16;

#if HWY_TARGET <= HWY_AVX3
// 2^n e^r with n = round(x / ln 2). (e^r - 1 - r) / r^2 is interpolated at Chebyshev nodes for
// |r| <= ln(2) / 2: relative error 1.1e-8. Half as many operations as Highway's, which has no
// instruction for 2^n.
template <class D, class V>
HWY_INLINE V exp_of_floats(D d, V x) {
  constexpr float kLowest = -87.336544F;  // ln of the smallest normal number
  constexpr float kTerms[] = {1.0F,
                              1.0F,
                              5.000000000e-01F,
                              1.666657699e-01F,
                              4.166655462e-02F,
                              8.363179053e-03F,
                              1.392618359e-03F};
  const V n = hn::Round(hn::Mul(x, hn::Set(d, 1.44269504F)));
  V r = hn::NegMulAdd(n, hn::Set(d, 0.693359375F), x);
  r = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4F), r);
  V p = hn::Set(d, kTerms[6]);
#pragma GCC unroll 6
  for (int i = 5; i >= 0; --i) p = hn::MulAdd(p, r, hn::Set(d, kTerms[i]));
  const __mmask16 is_normal = _mm512_cmp_ps_mask(x.raw, _mm512_set1_ps(kLowest), _CMP_NLT_UQ);
  return V{_mm512_maskz_scalef_ps(is_normal, p.raw, n.raw)};
}
#endif

/// exp(x) for x <= 88 and NaN. It may be 0 where it would be subnormal.
template <class D, class V>
HWY_INLINE V exp_below_88(D d, V x) {
#if HWY_TARGET <= HWY_AVX3
  if constexpr (kIsWholeFloats<D>) return exp_of_floats(d, x);
#endif
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Exp(d, x));
}

/// 1 / x of normal numbers, to 2 units of the last place: an estimate and a Newton step where that
/// is enough and division is slow.
template <class D, class V>
HWY_INLINE V reciprocal_of(D d, V x) {
  if constexpr (kIsWholeFloats<D>) {
    const V r = hn::ApproximateReciprocal(x);  // 14 bits
    return hn::MulAdd(r, hn::NegMulAdd(x, r, hn::Set(d, 1.0F)), r);
  } else {
    return hn::Div(hn::Set(d, hn::TFromD<D>(1)), x);
  }
}

/// Highway's Log, extended to zero, negative numbers, infinity and NaN.
template <class D, class V>
HWY_INLINE V log_of(D d, V x) {
  const V zero = hn::Zero(d);
  const V infinity = hn::Inf(d);
  V y = hn::Log(d, x);
  y = hn::IfThenElse(hn::Eq(x, zero), hn::Neg(infinity), y);
  y = hn::IfThenElse(hn::Lt(x, zero), hn::NaN(d), y);
  // Infinity and NaN are their own logarithms.
  return hn::IfThenElse(hn::Lt(x, infinity), y, x);
}

/// 1 / (1 + exp(-x)), without overflow: exp(-|x|) is at most 1.
template <class D, class V>
HWY_INLINE V sigmoid_of(D d, V x) {
  const V one = hn::Set(d, hn::TFromD<D>(1));
  const V e = exp_of(d, hn::Neg(hn::Abs(x)));
  const V numerator = hn::IfThenElse(hn::Lt(x, hn::Zero(d)), e, one);
  return hn::Div(numerator, hn::Add(one, e));
}

/// log(1 + exp(x)) = max(x, 0) + log1p(exp(-|x|)).
template <class D, class V>
HWY_INLINE V softplus_of(D d, V x) {
  const V e = exp_of(d, hn::Neg(hn::Abs(x)));
  const V y = hn::Add(hn::Max(x, hn::Zero(d)), hn::Log1p(d, e));
  return hn::IfThenElse(hn::IsNaN(x), x, y);
}

template <class D, class V, std::size_t kCount>
HWY_INLINE V horner(D d, V x, const hn::TFromD<D> (&low_to_high)[kCount]) {
  V y = hn::Set(d, low_to_high[kCount - 1]);
#pragma GCC unroll 20
  for (std::size_t i = kCount - 1; i > 0; --i) y = hn::MulAdd(y, x, hn::Set(d, low_to_high[i - 1]));
  return y;
}

// erf(x) = x * P(x^2) for |x| < 1; else 1 - exp(-x^2) / (1 + 2x) * Q(t) with t = (x - 2.5) / (x
// + 2.5). Both are interpolations at Chebyshev nodes, of erf(x) / x in x^2 on [0, 1] and of erfc(x)
// exp(x^2) (1 + 2x) in t for x in [1, 4] (float) or [1, 6] (double), made with 60 digits. Relative
// errors: 1.4e-9 and 2.4e-8 (of erfc, at most 0.16) for float, 1.5e-19 and 3.3e-18 for double.
inline constexpr float kErfNearFloat[] = {1.12837916584835095F,     -0.37612626666720331F,
                                          0.112835947151602177F,    -0.0268542120106264124F,
                                          0.00518908742343397399F,  -0.000801686428716586953F,
                                          0.0000787587506268548834F};
inline constexpr float kErfFarFloat[] = {
    1.26483815962626569F,   -0.12235641602063758F,  -0.0990182369978419247F, 0.157608057370369459F,
    -0.103233917718816647F, 0.0328338291484314542F, 0.00403108502874760504F};
inline constexpr double kErfNearDouble[] = {
    1.12837916709551257,     -0.376126389031837481,     0.112837916709548787,
    -0.0268661706450767932,  0.00522397762481801447,    -0.000854832698083378991,
    0.000120553311116427109, -0.0000149255952668311816, 1.6461000484121368e-6,
    -1.6350312701054695e-7,  1.46597752740474358e-8,    -1.13728488567916737e-9,
    5.9571761477489114e-11};
inline constexpr double kErfFarDouble[] = {
    1.26483818436686148,     -0.122356763082404424,    -0.0990245395736015656,
    0.157629919023251068,    -0.102967056038609344,    0.0327608932660927468,
    0.000931892819056025049, -0.00438207824834874504,  0.000491865786170402127,
    0.000632122581986073183, -0.000088479281098180704, -0.000113503202929836434,
    6.2715966287190961e-6,   0.000022580541464941124,  2.54666196756536307e-6,
    -3.82525979105806581e-6, -1.29455205831591558e-6};

template <class D, class V>
HWY_INLINE V erf_of(D d, V x) {
  using T = hn::TFromD<D>;
  constexpr bool kIsFloat = sizeof(T) == 4;
  const V one = hn::Set(d, T(1));
  const V size = hn::Abs(x);
  V near;
  V far;
  const V square = hn::Mul(x, x);
  const V bounded = hn::Min(size, hn::Set(d, kIsFloat ? T(4) : T(6)));
  const V t = hn::Div(hn::Sub(bounded, hn::Set(d, T(2.5))), hn::Add(bounded, hn::Set(d, T(2.5))));
  if constexpr (kIsFloat) {
    near = horner(d, hn::Min(square, one), kErfNearFloat);
    far = horner(d, t, kErfFarFloat);
  } else {
    near = horner(d, hn::Min(square, one), kErfNearDouble);
    far = horner(d, t, kErfFarDouble);
  }
  const V decay = hn::Exp(d, hn::Neg(hn::Mul(bounded, bounded)));
  far = hn::Div(hn::Mul(decay, far), hn::Add(one, hn::Add(bounded, bounded)));
  const V y =
      hn::IfThenElse(hn::Lt(size, one), hn::Mul(x, near), hn::CopySign(hn::Sub(one, far), x));
  return hn::IfThenElse(hn::IsNaN(x), x, y);
}

/// Highway's Sin and Cos reduce by multiples of pi in a way that is accurate up to 39000.
template <class D, class V>
HWY_INLINE bool is_small_angle(D d, V x) {
  return hn::AllTrue(d, hn::Lt(hn::Abs(x), hn::Set(d, hn::TFromD<D>(39000))));
}

}  // namespace onnxgrad::device::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
