// Sigmoid and tanh of the recurrent operators, for all instruction sets.
#if defined(ONNXGRAD_OPS_RECURRENT_QUICK_FUNCTIONS_SIMD_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONNXGRAD_OPS_RECURRENT_QUICK_FUNCTIONS_SIMD_H_
#undef ONNXGRAD_OPS_RECURRENT_QUICK_FUNCTIONS_SIMD_H_
#else
#define ONNXGRAD_OPS_RECURRENT_QUICK_FUNCTIONS_SIMD_H_
#endif

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace onnxgrad::ops::recurrent::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class T>
using Tag = hn::ScalableTag<T>;

template <class T>
using Vector = hn::Vec<Tag<T>>;

// Faster than the general functions, which also handle denormal results; float only. Errors are at
// most 7 units in the last place; the sigmoid below -80 has an absolute error of 1e-35.

// Returns a / b for b from 1 to 1e35, avoiding a slow division.
HWY_INLINE Vector<float> quick_quotient(Vector<float> a, Vector<float> b) {
#if HWY_TARGET <= HWY_AVX3  // 14-bit estimate and one Newton step
  const auto estimate = hn::ApproximateReciprocal(b);
  const auto two = hn::Set(Tag<float>(), 2.0F);
  return hn::Mul(a, hn::Mul(estimate, hn::NegMulAdd(b, estimate, two)));
#else
  return hn::Div(a, b);
#endif
}

HWY_INLINE Vector<float> at_most(Vector<float> x, float bound) {
  const Tag<float> d;
  const auto limit = hn::Set(d, bound);
#if HWY_ARCH_X86  // minps and maxps return their second operand if either is NaN
  return hn::Max(hn::Set(d, -bound), hn::Min(limit, x));
#else
  return hn::IfThenElse(hn::Gt(hn::Abs(x), limit), hn::CopySignToAbs(limit, x), x);  // keeps NaN
#endif
}

// exp(-x) for |x| up to 80: 2^n exp(-r), |r| < 0.35, with a polynomial for exp(-r) that was fitted
// with a relative error of 3.1e-9.
HWY_INLINE Vector<float> exp_of_negative(Vector<float> x) {
  const Tag<float> d;
  const hn::RebindToSigned<Tag<float>> di;
  const auto shift = hn::Set(d, 12582912.0F);  // 1.5 * 2^23: n is in the lowest bits of the sum
  const auto sum = hn::NegMulAdd(x, hn::Set(d, 1.44269504F), shift);  // NOLINT
  const auto n = hn::Sub(sum, shift);
  auto r = hn::MulAdd(n, hn::Set(d, 0.693359375F), x);
  r = hn::MulAdd(n, hn::Set(d, -2.12194440e-4F), r);  // NOLINT: ln 2 in two parts
  const auto square = hn::Mul(r, r);
  auto p = hn::MulAdd(hn::Set(d, 1.38146e-3F), r, hn::Set(d, -8.36871e-3F));
  p = hn::MulAdd(p, r, hn::Set(d, 4.166839e-2F));
  p = hn::MulAdd(p, r, hn::Set(d, -0.16666521F));
  p = hn::MulAdd(p, r, hn::Set(d, 0.5F));
  p = hn::MulAdd(p, square, hn::Sub(hn::Set(d, 1.0F), r));
  const auto scaled = hn::Add(hn::BitCast(di, p), hn::ShiftLeft<23>(hn::BitCast(di, sum)));
  return hn::BitCast(d, scaled);
}

HWY_INLINE Vector<float> quick_sigmoid(Vector<float> x) {
  const Tag<float> d;
  const auto one = hn::Set(d, 1.0F);
  const auto bounded = at_most(x, 80.0F);
  const auto sum = hn::Add(one, exp_of_negative(bounded));
  return quick_quotient(one, hn::MulAdd(bounded, hn::Zero(d), sum));  // NaN stays NaN
}

// x P(x^2) / Q(x^2), fitted to tanh on [-9.02, 9.02] with a relative error of 2.1e-8. Beyond 9.02,
// tanh is 1 to within half a unit in the last place.
HWY_INLINE Vector<float> quick_tanh(Vector<float> x) {
  const Tag<float> d;
  const auto bounded = at_most(x, 9.02F);
  const auto z = hn::Mul(bounded, bounded);
  auto p = hn::MulAdd(hn::Set(d, 1.331906052e-08F), z, hn::Set(d, 2.0583474906e-05F));
  p = hn::MulAdd(p, z, hn::Set(d, 3.4940342885e-03F));
  p = hn::MulAdd(p, z, hn::Set(d, 1.3379718363e-01F));
  p = hn::MulAdd(p, z, hn::Set(d, 1.0F));
  auto q = hn::MulAdd(hn::Set(d, 7.762014888e-07F), z, hn::Set(d, 3.283092228e-04F));
  q = hn::MulAdd(q, z, hn::Set(d, 2.5871071965e-02F));
  q = hn::MulAdd(q, z, hn::Set(d, 4.6713033319e-01F));
  q = hn::MulAdd(q, z, hn::Set(d, 1.0F));
  return at_most(quick_quotient(hn::Mul(bounded, p), q), 1.0F);
}

}  // namespace onnxgrad::ops::recurrent::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // ONNXGRAD_OPS_RECURRENT_QUICK_FUNCTIONS_SIMD_H_
