#ifndef ONNXGRAD_OPS_FUSED_SCALAR_EXPR_H_
#define ONNXGRAD_OPS_FUSED_SCALAR_EXPR_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "base/f16.h"
#include "base/visit_types.h"
#include "onnxgrad/dtype.h"
#include "opdef/fused.h"

// Element-wise expressions evaluated on scalars: the definition that fast kernels are tested
// against. Integers wrap around; division by zero yields 0 and INT_MIN / -1 yields INT_MIN.

namespace onnxgrad::ops {

using opdef::ExprOp;

template <class T>
T integer_division(T a, T b) {
  if (b == 0) return 0;
  if (std::is_signed_v<T> && b == static_cast<T>(-1)) {  // INT_MIN / -1
    return static_cast<T>(0 - static_cast<std::make_unsigned_t<T>>(a));
  }
  return a / b;
}

template <class T>
T remainder_of(T a, T b, bool like_divisor) {
  if constexpr (std::is_floating_point_v<T>) {
    const T rest = std::fmod(a, b);
    return like_divisor && rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
  } else {
    if (b == 0 || (std::is_signed_v<T> && b == static_cast<T>(-1))) return 0;
    const T rest = a % b;
    return like_divisor && rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
  }
}

template <class T>
T integer_power(T base, T exponent) {
  if (exponent < 0) {
    const auto minus_one = static_cast<T>(-1);
    return base == 1 ? 1 : base == minus_one ? (exponent % 2 == 0 ? 1 : minus_one) : 0;
  }
  using U = std::make_unsigned_t<T>;
  U result = 1;
  for (U factor = static_cast<U>(base); exponent > 0; exponent /= 2, factor *= factor) {
    if (exponent % 2 != 0) result *= factor;
  }
  return static_cast<T>(result);
}

// NaN wins, as in ONNX's Min and Max, and in NumPy.
template <class T>
T minimum(T a, T b) {
  return a < b || a != a ? a : b;
}
template <class T>
T maximum(T a, T b) {
  return a > b || a != a ? a : b;
}

/// Initial value of a fold, and one step of it.
template <class T>
T fold_start(opdef::Fold fold) {
  if (fold == opdef::Fold::kSum) return T{};
  using Limits = std::numeric_limits<T>;
  const bool is_max = fold == opdef::Fold::kMax;
  if constexpr (Limits::has_infinity) return is_max ? -Limits::infinity() : Limits::infinity();
  return is_max ? Limits::lowest() : Limits::max();
}
template <class T>
T fold_step(opdef::Fold fold, T a, T b) {
  if (fold == opdef::Fold::kSum) return a + b;
  return fold == opdef::Fold::kMax ? maximum(a, b) : minimum(a, b);
}

template <class T>
T apply_arithmetic(ExprOp op, T a, T b, T c) {
  using U =
      std::conditional_t<std::is_integral_v<T>, std::make_unsigned<T>, std::type_identity<T>>::type;
  const auto wrap = [](U v) { return static_cast<T>(v); };  // integers wrap around
  const auto ua = static_cast<U>(a);
  const auto ub = static_cast<U>(b);
  switch (op) {
    case ExprOp::kAdd:
      return wrap(ua + ub);
    case ExprOp::kSub:
      return wrap(ua - ub);
    case ExprOp::kMul:
      return wrap(ua * ub);
    case ExprOp::kFma:
      return wrap(ua * ub + static_cast<U>(c));
    case ExprOp::kNeg:
      return wrap(U{} - ua);
    case ExprOp::kDiv:
      if constexpr (std::is_integral_v<T>)
        return integer_division(a, b);
      else
        return a / b;
    case ExprOp::kPow:
      if constexpr (std::is_integral_v<T>)
        return integer_power(a, b);
      else
        return std::pow(a, b);
    case ExprOp::kMod:
      return remainder_of(a, b, true);
    case ExprOp::kFmod:
      return remainder_of(a, b, false);
    case ExprOp::kMin:
      return minimum(a, b);
    case ExprOp::kMax:
      return maximum(a, b);
    case ExprOp::kEqual:
      return a == b;
    case ExprOp::kGreater:
      return a > b;
    case ExprOp::kGreaterEqual:
      return a >= b;
    case ExprOp::kLess:
      return a < b;
    case ExprOp::kLessEqual:
      return a <= b;
    case ExprOp::kAnd:
      return a != 0 && b != 0;
    case ExprOp::kOr:
      return a != 0 || b != 0;
    case ExprOp::kXor:
      return (a != 0) != (b != 0);
    case ExprOp::kNot:
      return a == 0;
    case ExprOp::kSelect:
      return a != 0 ? b : c;
    case ExprOp::kAbs:
      return a < 0 ? wrap(U{} - ua) : a;
    case ExprOp::kSign:
      return a != a ? a : static_cast<T>((a > 0) - (a < 0));
    case ExprOp::kRelu:
      return maximum(a, T{});
    default:
      return {};
  }
}

/// Converts to float with rounding to odd, so that a later rounding to 16 bits is correct.
inline float to_odd(float a) { return a; }
inline float to_odd(double a) { return base::to_odd_float(a); }

template <class T>
T apply_function(ExprOp op, T a) {
  switch (op) {
    case ExprOp::kExp:
      return std::exp(a);
    case ExprOp::kLog:
      return std::log(a);
    case ExprOp::kSqrt:
      return std::sqrt(a);
    case ExprOp::kReciprocal:
      return 1 / a;
    case ExprOp::kTanh:
      return std::tanh(a);
    case ExprOp::kSigmoid: {
      const T e = std::exp(-std::abs(a));  // no overflow on either side
      return (a >= 0 ? 1 : e) / (1 + e);
    }
    case ExprOp::kErf:
      return std::erf(a);
    case ExprOp::kSin:
      return std::sin(a);
    case ExprOp::kCos:
      return std::cos(a);
    case ExprOp::kTan:
      return std::tan(a);
    case ExprOp::kAsin:
      return std::asin(a);
    case ExprOp::kAcos:
      return std::acos(a);
    case ExprOp::kAtan:
      return std::atan(a);
    case ExprOp::kSinh:
      return std::sinh(a);
    case ExprOp::kCosh:
      return std::cosh(a);
    case ExprOp::kAsinh:
      return std::asinh(a);
    case ExprOp::kAcosh:
      return std::acosh(a);
    case ExprOp::kAtanh:
      return std::atanh(a);
    case ExprOp::kSoftplus:
      return std::max(a, T{}) + std::log1p(std::exp(-std::abs(a)));
    case ExprOp::kFloor:
      return std::floor(a);
    case ExprOp::kCeil:
      return std::ceil(a);
    case ExprOp::kRound:
      return std::nearbyint(a);
    case ExprOp::kIsNan:
      return std::isnan(a);
    case ExprOp::kIsInf:
      return std::isinf(a);
    case ExprOp::kToFloat16:
      return static_cast<T>(base::to_float(base::to_float16(to_odd(a))));
    case ExprOp::kToBfloat16:
      return static_cast<T>(base::to_float(base::to_bfloat16(to_odd(a))));
    default:
      return {};
  }
}

inline bool is_function(ExprOp op) {
  return (op >= ExprOp::kExp && op <= ExprOp::kRound) || op == ExprOp::kIsNan ||
         op == ExprOp::kIsInf || op == ExprOp::kToFloat16 || op == ExprOp::kToBfloat16;
}

/// Runs `program`: operands[k] is operand k; registers has space for every instruction and contains
/// all their values afterwards.
template <class T>
void evaluate(const opdef::ExprProgram& program, const T* operands, T* registers) {
  for (std::size_t i = 0; i < program.instructions.size(); ++i) {
    const opdef::ExprInstruction& in = program.instructions[i];
    const auto at = [&](std::int32_t r) { return registers[static_cast<std::size_t>(r)]; };
    if (in.op == ExprOp::kInput) {
      registers[i] = operands[static_cast<std::size_t>(in.a)];
    } else if (in.op == ExprOp::kConstant) {
      registers[i] = static_cast<T>(in.constant);
    } else if (is_function(in.op)) {
      registers[i] = T{};  // integers: no operator asks for it
      if constexpr (std::is_floating_point_v<T>) registers[i] = apply_function(in.op, at(in.a));
    } else {
      registers[i] = apply_arithmetic<T>(in.op, at(in.a), at(in.b), at(in.c));
    }
  }
}

/// Returns element `index` of an array of `dtype`, converted to T.
template <class T>
T load(const std::byte* base, DataType dtype, std::int64_t index) {
  T value{};
  if (dtype == DataType::kFloat16) {
    return static_cast<T>(base::to_float(reinterpret_cast<const base::Float16*>(base)[index]));
  }
  if (dtype == DataType::kBfloat16) {
    return static_cast<T>(base::to_float(reinterpret_cast<const base::Bfloat16*>(base)[index]));
  }
  base::visit_numbers(dtype, [&](auto example) {
    // NOLINTNEXTLINE(bugprone-signed-char-misuse): int8 is a number
    value = static_cast<T>(reinterpret_cast<const decltype(example)*>(base)[index]);
  });
  return value;
}

/// Stores `value`, converted, as element `index` of an array of `dtype`; bool is value != 0.
template <class T>
void store(std::byte* base, DataType dtype, std::int64_t index, T value) {
  if (dtype == DataType::kFloat16 || dtype == DataType::kBfloat16) {
    const float single = to_odd(static_cast<double>(value));
    reinterpret_cast<std::uint16_t*>(base)[index] = dtype == DataType::kFloat16
                                                        ? base::to_float16(single).bits
                                                        : base::to_bfloat16(single).bits;
    return;
  }
  base::visit_numbers(dtype, [&](auto example) {
    using To = decltype(example);
    if constexpr (std::is_same_v<To, bool>) {
      reinterpret_cast<bool*>(base)[index] = value != T{};
    } else {
      reinterpret_cast<To*>(base)[index] = static_cast<To>(value);
    }
  });
}

}  // namespace onnxgrad::ops

#endif  // ONNXGRAD_OPS_FUSED_SCALAR_EXPR_H_
