#include "opdef/expr.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>

#include "base/check.h"

namespace onnxgrad::opdef {
namespace {

struct Row {
  const char* name;
  int arity;
};

// In the order of ExprOp.
constexpr std::array kRows = {
    Row{"in", 0},       Row{"const", 0}, Row{"add", 2},     Row{"sub", 2},   Row{"mul", 2},
    Row{"div", 2},      Row{"pow", 2},   Row{"mod", 2},     Row{"fmod", 2},  Row{"min", 2},
    Row{"max", 2},      Row{"eq", 2},    Row{"gt", 2},      Row{"ge", 2},    Row{"lt", 2},
    Row{"le", 2},       Row{"and", 2},   Row{"or", 2},      Row{"xor", 2},   Row{"neg", 1},
    Row{"abs", 1},      Row{"sign", 1},  Row{"exp", 1},     Row{"log", 1},   Row{"sqrt", 1},
    Row{"recip", 1},    Row{"tanh", 1},  Row{"sigmoid", 1}, Row{"erf", 1},   Row{"sin", 1},
    Row{"cos", 1},      Row{"tan", 1},   Row{"asin", 1},    Row{"acos", 1},  Row{"atan", 1},
    Row{"sinh", 1},     Row{"cosh", 1},  Row{"asinh", 1},   Row{"acosh", 1}, Row{"atanh", 1},
    Row{"softplus", 1}, Row{"floor", 1}, Row{"ceil", 1},    Row{"round", 1}, Row{"not", 1},
    Row{"isnan", 1},    Row{"isinf", 1}, Row{"relu", 1},    Row{"f16", 1},   Row{"bf16", 1},
    Row{"select", 3},   Row{"fma", 3},
};
static_assert(kRows.size() == static_cast<std::size_t>(ExprOp::kFma) + 1);

const Row& row(ExprOp op) { return kRows[static_cast<std::size_t>(op)]; }

constexpr std::size_t kIntsPerInstruction = 5;  // op, a, b, c, bits of the constant

}  // namespace

int expr_arity(ExprOp op) { return row(op).arity; }

const char* expr_op_name(ExprOp op) { return row(op).name; }

std::int32_t ExprProgram::input(std::int32_t operand) { return emit(ExprOp::kInput, operand); }

std::int32_t ExprProgram::constant(double value) {
  const std::int32_t id = emit(ExprOp::kConstant, 0);
  instructions.back().constant = value;
  return id;
}

std::int32_t ExprProgram::emit(ExprOp op, std::int32_t a, std::int32_t b, std::int32_t c) {
  instructions.push_back({.op = op, .a = a, .b = b, .c = c});
  return static_cast<std::int32_t>(instructions.size()) - 1;
}

std::vector<std::int64_t> ExprProgram::to_ints() const {
  std::vector<std::int64_t> ints{num_inputs, static_cast<std::int64_t>(instructions.size())};
  ints.reserve(2 + kIntsPerInstruction * instructions.size() + results.size());
  for (const ExprInstruction& instruction : instructions) {
    ints.insert(ints.end(),
                {static_cast<std::int64_t>(instruction.op), instruction.a, instruction.b,
                 instruction.c, std::bit_cast<std::int64_t>(instruction.constant)});
  }
  ints.insert(ints.end(), results.begin(), results.end());
  return ints;
}

ExprProgram ExprProgram::from_ints(std::span<const std::int64_t> ints) {
  ONNXGRAD_ASSERT(ints.size() >= 2 && ints[0] >= 0 && ints[0] <= kMaxInstructions);
  ONNXGRAD_ASSERT(ints[1] >= 0 && ints[1] <= kMaxInstructions);
  const auto count = static_cast<std::size_t>(ints[1]);
  ONNXGRAD_ASSERT(ints.size() >= 2 + kIntsPerInstruction * count);
  ExprProgram program;
  program.num_inputs = static_cast<std::int32_t>(ints[0]);
  for (std::size_t i = 0; i < count; ++i) {
    const auto field = ints.subspan(2 + kIntsPerInstruction * i, kIntsPerInstruction);
    ONNXGRAD_ASSERT(field[0] >= 0 && field[0] < static_cast<std::int64_t>(kRows.size()));
    const auto op = static_cast<ExprOp>(field[0]);
    const std::int64_t limit = op == ExprOp::kInput ? ints[0] : static_cast<std::int64_t>(i);
    const int reads = op == ExprOp::kInput ? 1 : row(op).arity;
    for (int k = 0; k < reads; ++k) {
      const std::int64_t operand = field[static_cast<std::size_t>(k) + 1];
      ONNXGRAD_ASSERT(operand >= 0 && operand < limit);
    }
    program.instructions.push_back({.op = op,
                                    .a = static_cast<std::int32_t>(field[1]),
                                    .b = static_cast<std::int32_t>(field[2]),
                                    .c = static_cast<std::int32_t>(field[3]),
                                    .constant = std::bit_cast<double>(field[4])});
  }
  for (const std::int64_t result : ints.subspan(2 + kIntsPerInstruction * count)) {
    ONNXGRAD_ASSERT(result >= 0 && result < static_cast<std::int64_t>(count));
    program.results.push_back(static_cast<std::int32_t>(result));
  }
  return program;
}

std::string ExprProgram::to_string() const {
  std::vector<std::string> text;
  text.reserve(instructions.size());
  const auto at = [&text](std::int32_t i) { return text[static_cast<std::size_t>(i)]; };
  for (const ExprInstruction& i : instructions) {
    switch (i.op) {
      case ExprOp::kInput:
        text.push_back(fmt::format("in{}", i.a));
        break;
      case ExprOp::kConstant:
        text.push_back(fmt::format("{}", i.constant));
        break;
      default:
        switch (row(i.op).arity) {
          case 1:
            text.push_back(fmt::format("{}({})", row(i.op).name, at(i.a)));
            break;
          case 2:
            text.push_back(fmt::format("{}({}, {})", row(i.op).name, at(i.a), at(i.b)));
            break;
          default:
            text.push_back(
                fmt::format("{}({}, {}, {})", row(i.op).name, at(i.a), at(i.b), at(i.c)));
        }
        // Long terms that are reused are not printed twice.
        if (text.back().size() > 60) text.back() = fmt::format("r{}", text.size() - 1);
    }
  }
  std::vector<std::string> out;
  for (const std::int32_t result : results) out.push_back(at(result));
  return fmt::format("{}", fmt::join(out, "; "));
}

std::string ExprProgram::to_short_string() const {
  constexpr std::size_t kMost = 60;
  std::string text = to_string();
  return text.size() > kMost ? text.substr(0, kMost - 3) + "..." : text;
}

}  // namespace onnxgrad::opdef
