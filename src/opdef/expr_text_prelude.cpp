#include "opdef/expr_text.h"

namespace onnxgrad::opdef {

// Names begin with og_, so that they meet no macro of a compiler.
std::string_view text_prelude() {
  return R"(#ifndef OG_FUNCTION
#define OG_FUNCTION static inline
#endif
#ifndef __CUDACC_RTC__
#include <math.h>
#include <string.h>
#endif

typedef signed char og_i8;
typedef unsigned char og_u8;
typedef short og_i16;
typedef unsigned short og_u16;
typedef int og_i32;
typedef unsigned int og_u32;
typedef long long og_i64;
typedef unsigned long long og_u64;
typedef float og_f32;
typedef double og_f64;

template <class To, class From>
OG_FUNCTION To og_bits(From from) {
  static_assert(sizeof(To) == sizeof(From), "");
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}

// ---- Integers wrap around; division by zero yields 0.

OG_FUNCTION og_u64 og_add(og_u64 a, og_u64 b) { return a + b; }
OG_FUNCTION og_u64 og_sub(og_u64 a, og_u64 b) { return a - b; }
OG_FUNCTION og_u64 og_mul(og_u64 a, og_u64 b) { return a * b; }
OG_FUNCTION og_i64 og_add(og_i64 a, og_i64 b) { return (og_i64)((og_u64)a + (og_u64)b); }
OG_FUNCTION og_i64 og_sub(og_i64 a, og_i64 b) { return (og_i64)((og_u64)a - (og_u64)b); }
OG_FUNCTION og_i64 og_mul(og_i64 a, og_i64 b) { return (og_i64)((og_u64)a * (og_u64)b); }
OG_FUNCTION og_u64 og_div(og_u64 a, og_u64 b) { return b == 0 ? 0 : a / b; }
OG_FUNCTION og_i64 og_div(og_i64 a, og_i64 b) {
  return b == 0 ? 0 : b == -1 ? og_sub((og_i64)0, a) : a / b;
}
OG_FUNCTION og_u64 og_fmod(og_u64 a, og_u64 b) { return b == 0 ? 0 : a % b; }
OG_FUNCTION og_i64 og_fmod(og_i64 a, og_i64 b) { return b == 0 || b == -1 ? 0 : a % b; }
OG_FUNCTION og_u64 og_mod(og_u64 a, og_u64 b) { return og_fmod(a, b); }
OG_FUNCTION og_i64 og_mod(og_i64 a, og_i64 b) {
  const og_i64 rest = og_fmod(a, b);
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}
OG_FUNCTION og_u64 og_pow(og_u64 base, og_u64 exponent) {
  og_u64 result = 1;
  for (; exponent > 0; exponent /= 2, base *= base) {
    if (exponent % 2 != 0) result *= base;
  }
  return result;
}
OG_FUNCTION og_i64 og_pow(og_i64 base, og_i64 exponent) {
  if (exponent >= 0) return (og_i64)og_pow((og_u64)base, (og_u64)exponent);
  if (base == 1) return 1;
  return base == -1 ? (exponent % 2 == 0 ? 1 : -1) : 0;
}

// ---- Floating-point numbers.

OG_FUNCTION float og_fma(float a, float b, float c) { return fmaf(a, b, c); }
OG_FUNCTION double og_fma(double a, double b, double c) { return fma(a, b, c); }
OG_FUNCTION float og_fmod(float a, float b) { return fmodf(a, b); }
OG_FUNCTION double og_fmod(double a, double b) { return fmod(a, b); }
OG_FUNCTION float og_pow(float a, float b) { return powf(a, b); }
OG_FUNCTION double og_pow(double a, double b) { return pow(a, b); }
OG_FUNCTION float og_exp(float a) { return expf(a); }
OG_FUNCTION double og_exp(double a) { return exp(a); }
OG_FUNCTION float og_log(float a) { return logf(a); }
OG_FUNCTION double og_log(double a) { return log(a); }
OG_FUNCTION float og_log1p(float a) { return log1pf(a); }
OG_FUNCTION double og_log1p(double a) { return log1p(a); }
OG_FUNCTION float og_sqrt(float a) { return sqrtf(a); }
OG_FUNCTION double og_sqrt(double a) { return sqrt(a); }
OG_FUNCTION float og_tanh(float a) { return tanhf(a); }
OG_FUNCTION double og_tanh(double a) { return tanh(a); }
OG_FUNCTION float og_erf(float a) { return erff(a); }
OG_FUNCTION double og_erf(double a) { return erf(a); }
OG_FUNCTION float og_sin(float a) { return sinf(a); }
OG_FUNCTION double og_sin(double a) { return sin(a); }
OG_FUNCTION float og_cos(float a) { return cosf(a); }
OG_FUNCTION double og_cos(double a) { return cos(a); }
OG_FUNCTION float og_tan(float a) { return tanf(a); }
OG_FUNCTION double og_tan(double a) { return tan(a); }
OG_FUNCTION float og_asin(float a) { return asinf(a); }
OG_FUNCTION double og_asin(double a) { return asin(a); }
OG_FUNCTION float og_acos(float a) { return acosf(a); }
OG_FUNCTION double og_acos(double a) { return acos(a); }
OG_FUNCTION float og_atan(float a) { return atanf(a); }
OG_FUNCTION double og_atan(double a) { return atan(a); }
OG_FUNCTION float og_sinh(float a) { return sinhf(a); }
OG_FUNCTION double og_sinh(double a) { return sinh(a); }
OG_FUNCTION float og_cosh(float a) { return coshf(a); }
OG_FUNCTION double og_cosh(double a) { return cosh(a); }
OG_FUNCTION float og_asinh(float a) { return asinhf(a); }
OG_FUNCTION double og_asinh(double a) { return asinh(a); }
OG_FUNCTION float og_acosh(float a) { return acoshf(a); }
OG_FUNCTION double og_acosh(double a) { return acosh(a); }
OG_FUNCTION float og_atanh(float a) { return atanhf(a); }
OG_FUNCTION double og_atanh(double a) { return atanh(a); }
OG_FUNCTION float og_floor(float a) { return floorf(a); }
OG_FUNCTION double og_floor(double a) { return floor(a); }
OG_FUNCTION float og_ceil(float a) { return ceilf(a); }
OG_FUNCTION double og_ceil(double a) { return ceil(a); }
OG_FUNCTION float og_round(float a) { return rintf(a); }
OG_FUNCTION double og_round(double a) { return rint(a); }
OG_FUNCTION float og_abs(float a) { return fabsf(a); }
OG_FUNCTION double og_abs(double a) { return fabs(a); }

template <class T>
OG_FUNCTION T og_float_mod(T a, T b) {
  const T rest = og_fmod(a, b);
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}
OG_FUNCTION float og_mod(float a, float b) { return og_float_mod(a, b); }
OG_FUNCTION double og_mod(double a, double b) { return og_float_mod(a, b); }

// exp(-|a|) does not overflow.
template <class T>
OG_FUNCTION T og_sigmoid(T a) {
  const T e = og_exp(-og_abs(a));
  return (a < 0 ? e : (T)1) / ((T)1 + e);
}
template <class T>
OG_FUNCTION T og_softplus(T a) {
  return (a > 0 ? a : (T)0) + og_log1p(og_exp(-og_abs(a)));
}

// ---- All types. NaN wins.

template <class T>
OG_FUNCTION T og_min(T a, T b) {
  return a < b || a != a ? a : b;
}
template <class T>
OG_FUNCTION T og_max(T a, T b) {
  return a > b || a != a ? a : b;
}
template <class T>
OG_FUNCTION T og_sign(T a) {
  return a != a ? a : (T)((a > 0) - (a < 0));
}

// ---- 16 bits: to nearest, ties to even.

OG_FUNCTION float og_from_bf16(og_u16 a) { return og_bits<float>((og_u32)a << 16); }
OG_FUNCTION og_u16 og_to_bf16(float a) {
  const og_u32 bits = og_bits<og_u32>(a);
  if (a != a) return (og_u16)((bits >> 16) | 0x40u);
  return (og_u16)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
// Multiplying by 2^112 corrects the bias of the exponent, of subnormal numbers too.
OG_FUNCTION float og_from_f16(og_u16 a) {
  const og_u32 magnitude = a & 0x7fffu;
  const float finite = og_bits<float>(magnitude << 13) * 0x1p112f;
  const og_u32 bits =
      magnitude >= 0x7c00u ? 0x7f800000u | (magnitude << 13) : og_bits<og_u32>(finite);
  return og_bits<float>(bits | (og_u32)(a & 0x8000u) << 16);
}
// For a subnormal result, adding 0.5 leaves its 10 bits, rounded, at the end of the sum.
OG_FUNCTION og_u16 og_to_f16(float a) {
  const og_u32 bits = og_bits<og_u32>(a);
  const og_u32 sign = (bits >> 16) & 0x8000u;
  const og_u32 magnitude = bits & 0x7fffffffu;
  og_u32 result;
  if (magnitude > 0x7f800000u) {
    result = 0x7e00u;
  } else if (magnitude >= 0x477ff000u) {
    result = 0x7c00u;
  } else if (magnitude < 0x38800000u) {
    result = og_bits<og_u32>(og_bits<float>(magnitude) + 0.5f) - 0x3f000000u;
  } else {
    result = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  }
  return (og_u16)(result | sign);
}
// Rounded to odd, so that the later rounding to 16 bits is that of the number itself.
OG_FUNCTION float og_flush(float a) { return fabsf(a) < 0x1p-126f ? a * 0 : a; }
OG_FUNCTION double og_flush(double a) { return fabs(a) < 0x1p-1022 ? a * 0 : a; }

OG_FUNCTION float og_odd(float a) { return a; }
OG_FUNCTION float og_odd(double a) {
  const double size = fabs(a);
  if (size < 0x1p-126) {
    const double magic = 0x1.8p-81;
    return (float)copysign((size + magic) - magic, a);
  }
  const og_u64 lost = 0x1fffffffull;
  og_u64 bits = og_bits<og_u64>(a);
  if ((bits & lost) != 0) bits = (bits & ~lost) | (lost + 1);
  return (float)og_bits<double>(bits);
}
template <class T>
OG_FUNCTION T og_round_f16(T a) {
  return (T)og_from_f16(og_to_f16(og_odd(a)));
}
template <class T>
OG_FUNCTION T og_round_bf16(T a) {
  return (T)og_from_bf16(og_to_bf16(og_odd(a)));
}

// ---- To integers.

OG_FUNCTION og_i64 og_to_integer(og_i64 a) { return a; }
OG_FUNCTION og_i64 og_to_integer(og_u64 a) { return (og_i64)a; }
OG_FUNCTION og_i64 og_to_integer(double a) {
  if (a != a) return 0;
  if (a >= 9223372036854775808.0) return 0x7fffffffffffffffll;
  if (a <= -9223372036854775808.0) return -0x7fffffffffffffffll - 1;
  return (og_i64)a;
}
OG_FUNCTION og_i64 og_to_integer(float a) { return og_to_integer((double)a); }
template <class T>
OG_FUNCTION og_u64 og_to_unsigned(T a) {
  return (og_u64)og_to_integer(a);
}
OG_FUNCTION og_u64 og_to_unsigned(double a) {
  if (a >= 18446744073709551616.0) return 0xffffffffffffffffull;
  return a >= 9223372036854775808.0 ? (og_u64)a : (og_u64)og_to_integer(a);
}
OG_FUNCTION og_u64 og_to_unsigned(float a) { return og_to_unsigned((double)a); }

)";
}

std::string_view text_type(DataType dtype) {
  switch (dtype) {
    case DataType::kFloat32:
      return "og_f32";
    case DataType::kFloat64:
      return "og_f64";
    case DataType::kFloat16:
      return "og_f16";
    case DataType::kBfloat16:
      return "og_bf16";
    case DataType::kInt8:
      return "og_i8";
    case DataType::kBool:
    case DataType::kUint8:
      return "og_u8";
    case DataType::kInt16:
      return "og_i16";
    case DataType::kUint16:
      return "og_u16";
    case DataType::kInt32:
      return "og_i32";
    case DataType::kUint32:
      return "og_u32";
    case DataType::kInt64:
      return "og_i64";
    case DataType::kUint64:
      return "og_u64";
    default:
      return {};
  }
}

}  // namespace onnxgrad::opdef
