#ifndef ONNXGRAD_OPDEF_EXPR_H_
#define ONNXGRAD_OPDEF_EXPR_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace onnxgrad::opdef {

/// Operations of element-wise expressions. Comparisons and logic take and return 0 or 1 in the type
/// of the computation. No file depends on the order.
enum class ExprOp : std::uint8_t {
  kInput,     // operand number `a` of the kernel
  kConstant,  // `constant`
  kAdd,
  kSub,
  kMul,
  kDiv,
  kPow,
  kMod,
  kFmod,
  kMin,
  kMax,
  kEqual,
  kGreater,
  kGreaterEqual,
  kLess,
  kLessEqual,
  kAnd,
  kOr,
  kXor,
  kNeg,
  kAbs,
  kSign,
  kExp,
  kLog,
  kSqrt,
  kReciprocal,
  kTanh,
  kSigmoid,
  kErf,
  kSin,
  kCos,
  kTan,
  kAsin,
  kAcos,
  kAtan,
  kSinh,
  kCosh,
  kAsinh,
  kAcosh,
  kAtanh,
  kSoftplus,
  kFloor,
  kCeil,
  kRound,
  kNot,
  kIsNan,
  kIsInf,
  kRelu,
  kToFloat16,   // rounded to the nearest float16, ties to even
  kToBfloat16,  // rounded to the nearest bfloat16
  kSelect,      // a != 0 ? b : c
  kFma,         // a * b + c
};

/// One instruction; `a`, `b`, `c` are indices of earlier instructions (of an operand for kInput).
struct ExprInstruction {
  ExprOp op = ExprOp::kInput;
  std::int32_t a = 0;
  std::int32_t b = 0;
  std::int32_t c = 0;
  double constant = 0;
  bool operator==(const ExprInstruction&) const = default;
};

/// An element-wise computation as data: a straight-line program in SSA form over `num_inputs`
/// broadcast operands. `results` are the instructions whose values are stored, one per output.
struct ExprProgram {
  std::int32_t num_inputs = 0;
  std::vector<ExprInstruction> instructions = {};
  std::vector<std::int32_t> results = {};

  /// Limits on a program and on its operands.
  static constexpr std::int64_t kMaxInstructions = 4096;

  std::int32_t input(std::int32_t operand);
  std::int32_t constant(double value);
  std::int32_t emit(ExprOp op, std::int32_t a, std::int32_t b = 0, std::int32_t c = 0);
  bool operator==(const ExprProgram&) const = default;

  /// Converts to attributes of a fused node: ints [num_inputs, n, (op, a, b, c) * n, results...]
  /// and the bits of the constants as int64. from_ints throws InternalError on anything that
  /// to_ints cannot produce.
  std::vector<std::int64_t> to_ints() const;
  static ExprProgram from_ints(std::span<const std::int64_t> ints);
  /// Text such as "r0 = in0 + in1; r1 = max(r0, 0)".
  std::string to_string() const;
  /// to_string() cut to 60 characters, for the labels of kernels.
  std::string to_short_string() const;
};

/// Number of operands that `op` reads (0 to 3).
int expr_arity(ExprOp op);
/// Name of an operation: "add", "exp", ...
const char* expr_op_name(ExprOp op);

}  // namespace onnxgrad::opdef

#endif  // ONNXGRAD_OPDEF_EXPR_H_
