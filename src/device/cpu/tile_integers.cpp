#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "device/cpu/tile_ops.h"

// Instructions on int64 and uint64: plain loops for the baseline instruction set. Arithmetic wraps
// around; division by zero yields 0, so that no data can trap.

namespace onnxgrad::device {
namespace {

template <class Int>
struct Integers {
  static constexpr bool kIsSigned = std::is_signed_v<Int>;
  static constexpr Int kMinusOne = static_cast<Int>(-1);

  static Int wrap_add(Int a, Int b) {
    return std::bit_cast<Int>(std::bit_cast<std::uint64_t>(a) + std::bit_cast<std::uint64_t>(b));
  }
  static Int wrap_mul(Int a, Int b) {
    return std::bit_cast<Int>(std::bit_cast<std::uint64_t>(a) * std::bit_cast<std::uint64_t>(b));
  }
  static Int wrap_neg(Int a) { return wrap_add(~a, 1); }
  static Int wrap_sub(Int a, Int b) { return wrap_add(a, wrap_neg(b)); }

  /// Quotient rounded towards zero.
  static Int divide(Int a, Int b) {
    if (b == 0) return 0;
    if (kIsSigned && b == kMinusOne) return wrap_neg(a);
    return a / b;
  }

  /// Remainder with the sign of the dividend.
  static Int remainder(Int a, Int b) { return b == 0 || (kIsSigned && b == kMinusOne) ? 0 : a % b; }

  /// Remainder with the sign of the divisor.
  static Int modulo(Int a, Int b) {
    const Int rest = remainder(a, b);
    return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
  }

  /// Power; a negative exponent yields the integer part of the exact power.
  static Int power(Int base, Int exponent) {
    if (exponent < 0) {
      if (base == 1) return 1;
      if (base == kMinusOne) return exponent % 2 == 0 ? 1 : kMinusOne;
      return 0;
    }
    Int result = 1;
    for (; exponent > 0; exponent /= 2) {
      if (exponent % 2 != 0) result = wrap_mul(result, base);
      base = wrap_mul(base, base);
    }
    return result;
  }

  template <Int (*kOp)(Int)>
  static void unary(void* to, const void* a, const void* /*b*/, const void* /*c*/, std::int64_t n,
                    bool /*pad*/) {
    const Int* x = static_cast<const Int*>(a);
    Int* y = static_cast<Int*>(to);
    for (std::int64_t i = 0; i < n; ++i) y[i] = kOp(x[i]);
  }

  template <Int (*kOp)(Int, Int), int kStepA, int kStepB>
  static void binary(void* to, const void* a, const void* b, const void* /*c*/, std::int64_t n,
                     bool /*pad*/) {
    const Int* x = static_cast<const Int*>(a);
    const Int* y = static_cast<const Int*>(b);
    Int* z = static_cast<Int*>(to);
    // A scalar operand is read before `to`, which may be the same memory, is written.
    const Int first_x = n > 0 ? *x : 0;
    const Int first_y = n > 0 ? *y : 0;
    for (std::int64_t i = 0; i < n; ++i)
      z[i] = kOp(kStepA == 0 ? first_x : x[i], kStepB == 0 ? first_y : y[i]);
  }

  template <Int (*kOp)(Int, Int, Int), int kStepB, int kStepC>
  static void ternary(void* to, const void* a, const void* b, const void* c, std::int64_t n,
                      bool /*pad*/) {
    const Int* x = static_cast<const Int*>(a);
    const Int* y = static_cast<const Int*>(b);
    const Int* z = static_cast<const Int*>(c);
    Int* out = static_cast<Int*>(to);
    const Int first_y = n > 0 ? *y : 0;
    const Int first_z = n > 0 ? *z : 0;
    for (std::int64_t i = 0; i < n; ++i) {
      out[i] = kOp(x[i], kStepB == 0 ? first_y : y[i], kStepC == 0 ? first_z : z[i]);
    }
  }

  static void fill(void* to, const void* a, const void* /*b*/, const void* /*c*/, std::int64_t n,
                   bool /*pad*/) {
    std::fill_n(static_cast<Int*>(to), n, *static_cast<const Int*>(a));
  }

  template <Int (*kOp)(Int)>
  static void add_unary(TileTable& table, TileOp op) {
    table.at(op) = unary<kOp>;
  }

  template <Int (*kOp)(Int, Int)>
  static void add_binary(TileTable& table, TileOp op) {
    table.at(op, kAllVectors) = binary<kOp, 1, 1>;
    table.at(op, kLastScalar) = binary<kOp, 1, 0>;
    table.at(op, kFirstScalar) = binary<kOp, 0, 1>;
  }

  template <Int (*kOp)(Int, Int, Int)>
  static void add_ternary(TileTable& table, TileOp op) {
    table.at(op, kAllVectors) = ternary<kOp, 1, 1>;
    table.at(op, kLastScalar) = ternary<kOp, 1, 0>;
    table.at(op, kFirstScalar) = ternary<kOp, 0, 1>;
    table.at(op, kBothScalar) = ternary<kOp, 0, 0>;
  }

  template <Int (*kOp)(Int, Int), Int kIdentity>
  static void fold_columns(const void* x, std::int64_t rows, std::int64_t columns,
                           std::ptrdiff_t row_step, void* to) {
    const Int* from = static_cast<const Int*>(x);
    for (std::int64_t r = 0; r < rows; ++r) {
      Int result = kIdentity;
      for (std::int64_t j = 0; j < columns; ++j) result = kOp(result, from[r * row_step + j]);
      static_cast<Int*>(to)[r] = result;
    }
  }

  template <Int (*kOp)(Int, Int), Int kIdentity>
  static void fold_rows(const void* x, std::int64_t rows, std::int64_t columns,
                        std::ptrdiff_t row_step, void* to) {
    const Int* from = static_cast<const Int*>(x);
    Int* out = static_cast<Int*>(to);
    std::fill_n(out, columns, kIdentity);
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t j = 0; j < columns; ++j) out[j] = kOp(out[j], from[r * row_step + j]);
    }
  }

  template <Int (*kOp)(Int, Int), Int kIdentity>
  static void add_fold(TileTable& table, Fold fold) {
    table.fold_columns[static_cast<std::size_t>(fold)] = fold_columns<kOp, kIdentity>;
    table.fold_rows[static_cast<std::size_t>(fold)] = fold_rows<kOp, kIdentity>;
  }

  static Int minimum(Int a, Int b) { return a < b ? a : b; }
  static Int maximum(Int a, Int b) { return a > b ? a : b; }
  static Int equal(Int a, Int b) { return a == b; }
  static Int greater(Int a, Int b) { return a > b; }
  static Int greater_equal(Int a, Int b) { return a >= b; }
  static Int less(Int a, Int b) { return a < b; }
  static Int less_equal(Int a, Int b) { return a <= b; }
  static Int logical_and(Int a, Int b) { return a != 0 && b != 0; }
  static Int logical_or(Int a, Int b) { return a != 0 || b != 0; }
  static Int logical_xor(Int a, Int b) { return (a != 0) != (b != 0); }
  static Int logical_not(Int a) { return a == 0; }
  static Int absolute(Int a) { return a < 0 ? wrap_neg(a) : a; }
  static Int sign(Int a) { return (a > 0) - (a < 0); }
  static Int relu(Int a) { return a > 0 ? a : 0; }
  static Int copy(Int a) { return a; }
  static Int zero(Int /*a*/) { return 0; }
  static Int reciprocal(Int a) { return divide(1, a); }
  static Int select(Int a, Int b, Int c) { return a != 0 ? b : c; }
  static Int mul_add(Int a, Int b, Int c) { return wrap_add(wrap_mul(a, b), c); }
  static Int mul_sub(Int a, Int b, Int c) { return wrap_sub(wrap_mul(a, b), c); }
  static Int neg_mul_add(Int a, Int b, Int c) { return wrap_sub(c, wrap_mul(a, b)); }
  static Int mul_greater(Int a, Int b, Int c) { return b > c ? a : 0; }

  static void fill_table(TileTable& table) {
    using opdef::ExprOp;
    add_binary<wrap_add>(table, tile_op(ExprOp::kAdd));
    add_binary<wrap_sub>(table, tile_op(ExprOp::kSub));
    add_binary<wrap_mul>(table, tile_op(ExprOp::kMul));
    add_binary<divide>(table, tile_op(ExprOp::kDiv));
    add_binary<power>(table, tile_op(ExprOp::kPow));
    add_binary<modulo>(table, tile_op(ExprOp::kMod));
    add_binary<remainder>(table, tile_op(ExprOp::kFmod));
    add_binary<minimum>(table, tile_op(ExprOp::kMin));
    add_binary<maximum>(table, tile_op(ExprOp::kMax));
    add_binary<equal>(table, tile_op(ExprOp::kEqual));
    add_binary<greater>(table, tile_op(ExprOp::kGreater));
    add_binary<greater_equal>(table, tile_op(ExprOp::kGreaterEqual));
    add_binary<less>(table, tile_op(ExprOp::kLess));
    add_binary<less_equal>(table, tile_op(ExprOp::kLessEqual));
    add_binary<logical_and>(table, tile_op(ExprOp::kAnd));
    add_binary<logical_or>(table, tile_op(ExprOp::kOr));
    add_binary<logical_xor>(table, tile_op(ExprOp::kXor));
    add_unary<wrap_neg>(table, tile_op(ExprOp::kNeg));
    add_unary<absolute>(table, tile_op(ExprOp::kAbs));
    add_unary<sign>(table, tile_op(ExprOp::kSign));
    add_unary<reciprocal>(table, tile_op(ExprOp::kReciprocal));
    add_unary<copy>(table, tile_op(ExprOp::kFloor));
    add_unary<copy>(table, tile_op(ExprOp::kCeil));
    add_unary<copy>(table, tile_op(ExprOp::kRound));
    add_unary<logical_not>(table, tile_op(ExprOp::kNot));
    add_unary<zero>(table, tile_op(ExprOp::kIsNan));
    add_unary<zero>(table, tile_op(ExprOp::kIsInf));
    add_unary<relu>(table, tile_op(ExprOp::kRelu));
    add_ternary<select>(table, tile_op(ExprOp::kSelect));
    add_ternary<mul_add>(table, tile_op(ExprOp::kFma));
    add_ternary<mul_sub>(table, TileOp::kMulSub);
    add_ternary<neg_mul_add>(table, TileOp::kNegMulAdd);
    add_ternary<mul_greater>(table, TileOp::kMulGreater);
    add_unary<copy>(table, TileOp::kCopy);
    table.at(TileOp::kFill) = fill;
    add_fold<wrap_add, 0>(table, Fold::kSum);
    add_fold<maximum, std::numeric_limits<Int>::min()>(table, Fold::kMax);
    add_fold<minimum, std::numeric_limits<Int>::max()>(table, Fold::kMin);
  }
};

}  // namespace

void fill_integers(TileTable& table) { Integers<std::int64_t>::fill_table(table); }

void fill_unsigned(TileTable& table) { Integers<std::uint64_t>::fill_table(table); }

}  // namespace onnxgrad::device
