#include "opdef/expr_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/check.h"

namespace onnxgrad::opdef {
namespace {

// The type of a computation in the text; empty: none computes in it.
std::string_view compute_type(DataType compute) {
  switch (compute) {
    case DataType::kFloat32:
      return "float";
    case DataType::kFloat64:
      return "double";
    case DataType::kInt64:
      return "og_i64";
    case DataType::kUint64:
      return "og_u64";
    default:
      return "";
  }
}

// The type of an element in memory; numbers of 16 bits are their bits.
std::string_view stored_type(DataType dtype) { return is_f16(dtype) ? "og_u16" : text_type(dtype); }

std::string constant_text(double value, DataType compute) {
  const bool is_single = compute == DataType::kFloat32;
  if (compute == DataType::kInt64) {
    const auto number = static_cast<std::int64_t>(value);
    return fmt::format("(og_i64)0x{:x}ull", static_cast<std::uint64_t>(number));
  }
  if (compute == DataType::kUint64) {
    const bool is_negative = value < 0;
    const auto number = is_negative ? static_cast<std::uint64_t>(static_cast<std::int64_t>(value))
                                    : static_cast<std::uint64_t>(value);
    return fmt::format("0x{:x}ull", number);
  }
  if (is_single) value = static_cast<float>(value);
  if (std::isnan(value)) {
    return is_single ? "og_bits<float>(0x7fc00000u)" : "og_bits<double>(0x7ff8000000000000ull)";
  }
  if (std::isinf(value)) {
    const char* sign = value < 0 ? "-" : "";
    return is_single ? fmt::format("({}og_bits<float>(0x7f800000u))", sign)
                     : fmt::format("({}og_bits<double>(0x7ff0000000000000ull))", sign);
  }
  return fmt::format("({:a}{})", value, is_single ? "f" : "");
}

// How an operation is written with a, b, c for its operands: two forms where integers differ.
struct OpText {
  ExprOp op;
  const char* floating;
  const char* integer;  ///< nullptr: the same
};

constexpr const char* kZero = "(T)0";
constexpr OpText kTexts[] = {
    {ExprOp::kAdd, "a + b", "og_add(a, b)"},
    {ExprOp::kSub, "a - b", "og_sub(a, b)"},
    {ExprOp::kMul, "a * b", "og_mul(a, b)"},
    {ExprOp::kDiv, "a / b", "og_div(a, b)"},
    {ExprOp::kPow, "og_pow(a, b)", nullptr},
    {ExprOp::kMod, "og_mod(a, b)", nullptr},
    {ExprOp::kFmod, "og_fmod(a, b)", nullptr},
    {ExprOp::kMin, "og_min(a, b)", nullptr},
    {ExprOp::kMax, "og_max(a, b)", nullptr},
    {ExprOp::kEqual, "(T)(a == b)", nullptr},
    {ExprOp::kGreater, "(T)(a > b)", nullptr},
    {ExprOp::kGreaterEqual, "(T)(a >= b)", nullptr},
    {ExprOp::kLess, "(T)(a < b)", nullptr},
    {ExprOp::kLessEqual, "(T)(a <= b)", nullptr},
    {ExprOp::kAnd, "(T)(a != 0 && b != 0)", nullptr},
    {ExprOp::kOr, "(T)(a != 0 || b != 0)", nullptr},
    {ExprOp::kXor, "(T)((a != 0) != (b != 0))", nullptr},
    {ExprOp::kNeg, "-a", "og_sub((T)0, a)"},
    {ExprOp::kAbs, "og_abs(a)", "(a < 0 ? og_sub((T)0, a) : a)"},
    {ExprOp::kSign, "og_sign(a)", nullptr},
    {ExprOp::kExp, "og_exp(a)", kZero},
    {ExprOp::kLog, "og_log(a)", kZero},
    {ExprOp::kSqrt, "og_sqrt(a)", kZero},
    {ExprOp::kReciprocal, "(T)1 / a", "og_div((T)1, a)"},
    {ExprOp::kTanh, "og_tanh(a)", kZero},
    {ExprOp::kSigmoid, "og_sigmoid(a)", kZero},
    {ExprOp::kErf, "og_erf(a)", kZero},
    {ExprOp::kSin, "og_sin(a)", kZero},
    {ExprOp::kCos, "og_cos(a)", kZero},
    {ExprOp::kTan, "og_tan(a)", kZero},
    {ExprOp::kAsin, "og_asin(a)", kZero},
    {ExprOp::kAcos, "og_acos(a)", kZero},
    {ExprOp::kAtan, "og_atan(a)", kZero},
    {ExprOp::kSinh, "og_sinh(a)", kZero},
    {ExprOp::kCosh, "og_cosh(a)", kZero},
    {ExprOp::kAsinh, "og_asinh(a)", kZero},
    {ExprOp::kAcosh, "og_acosh(a)", kZero},
    {ExprOp::kAtanh, "og_atanh(a)", kZero},
    {ExprOp::kSoftplus, "og_softplus(a)", kZero},
    {ExprOp::kFloor, "og_floor(a)", "a"},
    {ExprOp::kCeil, "og_ceil(a)", "a"},
    {ExprOp::kRound, "og_round(a)", "a"},
    {ExprOp::kNot, "(T)(a == 0)", nullptr},
    {ExprOp::kIsNan, "(T)(a != a)", nullptr},
    {ExprOp::kIsInf, "(T)(a == a && a - a != a - a)", kZero},
    {ExprOp::kRelu, "og_max(a, (T)0)", nullptr},
    {ExprOp::kToFloat16, "og_round_f16(a)", kZero},
    {ExprOp::kToBfloat16, "og_round_bf16(a)", kZero},
    {ExprOp::kSelect, "(a != 0 ? b : c)", nullptr},
    {ExprOp::kFma, "og_fma(a, b, c)", "og_add(og_mul(a, b), c)"},
};

std::string_view text_of(ExprOp op, DataType compute) {
  const auto* const found = std::ranges::find(kTexts, op, &OpText::op);
  ONNXGRAD_ASSERT(found != std::end(kTexts));
  const bool is_other = !is_floating(compute) && found->integer != nullptr;
  return is_other ? found->integer : found->floating;
}

// The pattern with the names of the operands and the type in place of a, b, c and T.
std::string filled(std::string_view pattern, const ExprInstruction& in, std::string_view type) {
  std::string text;
  const auto is_letter = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '_';
  };
  for (std::size_t i = 0; i < pattern.size();) {
    std::size_t end = i + 1;
    if (is_letter(pattern[i])) {
      while (end < pattern.size() && is_letter(pattern[end])) ++end;
    }
    const std::string_view word = pattern.substr(i, end - i);
    if (word == "a") {
      text += fmt::format("r{}", in.a);
    } else if (word == "b") {
      text += fmt::format("r{}", in.b);
    } else if (word == "c") {
      text += fmt::format("r{}", in.c);
    } else {
      text += word == "T" ? type : word;
    }
    i = end;
  }
  return text;
}

// An element of an operand, as a number of the computation.
std::string load_text(DataType dtype, std::string_view address, std::string_view index,
                      std::string_view type) {
  const std::string element =
      fmt::format("((const {}*){})[{}]", stored_type(dtype), address, index);
  if (dtype == DataType::kFloat16) return fmt::format("({})og_from_f16({})", type, element);
  if (dtype == DataType::kBfloat16) return fmt::format("({})og_from_bf16({})", type, element);
  return fmt::format("({}){}", type, element);
}

std::string store_text(DataType dtype, std::string_view address, std::string_view index,
                       std::string_view value, DataType compute) {
  const std::string_view type = stored_type(dtype);
  std::string stored;
  if (dtype == DataType::kFloat16 || dtype == DataType::kBfloat16) {
    stored =
        fmt::format("og_to_{}(og_odd({}))", dtype == DataType::kFloat16 ? "f16" : "bf16", value);
  } else if (dtype == DataType::kBool) {
    stored = fmt::format("{} != 0", value);
  } else if (is_floating(compute) && dtype == DataType::kUint64) {
    stored = fmt::format("og_to_unsigned({})", value);
  } else if (is_floating(compute) && !is_floating(dtype)) {
    stored = fmt::format("og_to_integer({})", value);
  } else {
    stored = value;
  }
  return fmt::format("(({}*){})[{}] = ({})({});\n", type, address, index, type, stored);
}

// The strides of an operand over F, in elements; 0 where it is broadcast.
std::vector<std::int64_t> strides_over(const Dims& operand, std::size_t rank) {
  std::vector<std::int64_t> strides(rank, 0);
  std::int64_t stride = 1;
  for (std::size_t k = 0; k < operand.rank(); ++k) {
    const std::int64_t size = operand[operand.rank() - 1 - k];
    if (size != 1) strides[rank - 1 - k] = stride;
    stride *= size;
  }
  return strides;
}

std::string offset_text(const std::vector<std::int64_t>& strides) {
  std::string text;
  for (std::size_t axis = 0; axis < strides.size(); ++axis) {
    if (strides[axis] == 0) continue;
    if (!text.empty()) text += " + ";
    text += strides[axis] == 1 ? fmt::format("i{}", axis)
                               : fmt::format("i{} * {}", axis, strides[axis]);
  }
  return text.empty() ? "0" : text;
}

// F of a node, and what of it is reduced.
struct ReducedSpace {
  Dims full = {};
  std::vector<bool> is_reduced;

  ReducedSpace(const Elementwise& op, std::span<const TensorDesc> inputs) {
    for (const TensorDesc& desc : inputs.first(static_cast<std::size_t>(op.program.num_inputs))) {
      full = broadcast_dims(full, desc.dims);
    }
    is_reduced.assign(full.rank(), false);
    if (op.folds.empty()) return;
    for (const std::int64_t axis : op.reduce_axes)
      is_reduced[static_cast<std::size_t>(axis)] = true;
  }

  std::int64_t length() const {
    std::int64_t count = 1;
    for (std::size_t axis = 0; axis < full.rank(); ++axis) {
      if (is_reduced[axis]) count *= full[axis];
    }
    return count;
  }

  std::int64_t kept() const {
    std::int64_t count = 1;
    for (std::size_t axis = 0; axis < full.rank(); ++axis) {
      if (!is_reduced[axis]) count *= full[axis];
    }
    return count;
  }
};

// Writes the last function of elementwise_text().
class ElementText {
 public:
  ElementText(const Elementwise& op, std::span<const TensorDesc> inputs,
              std::span<const TensorDesc> outputs, std::string_view name, bool is_for_block)
      : op_(op),
        inputs_(inputs),
        outputs_(outputs),
        name_(name),
        is_for_block_(is_for_block),
        space_(op, inputs) {}

  std::string write() {
    text_ = fmt::format(
        "OG_FUNCTION void {}(const void* const* in, void* const* out, og_i64 index) {{\n", name_);
    write_places();
    write_totals();
    open_loops();
    write_main();
    for (std::size_t axis = 0; axis < rank(); ++axis) {
      if (space_.is_reduced[axis] && !is_for_block_) text_ += "}\n";
    }
    if (is_for_block_) close_block();
    if (op_.folds.empty()) return text_ + "}\n\n";
    op_.post ? write_post() : write_reduced();
    return text_ + "}\n\n";
  }

 private:
  std::size_t rank() const { return space_.full.rank(); }
  std::size_t num_main() const { return static_cast<std::size_t>(op_.program.num_inputs); }
  std::size_t num_stored() const { return static_cast<std::size_t>(op_.stored); }
  std::string_view type() const { return compute_type(op_.compute); }
  bool sums_in_double(Fold fold) const {
    return fold == Fold::kSum && op_.compute == DataType::kFloat32;
  }

  std::string flushed(std::string value) const {
    return op_.flush_denormals && is_floating(op_.compute) ? fmt::format("og_flush({})", value)
                                                           : value;
  }

  // The indices of the axes that are kept.
  void write_places() {
    text_ += "og_i64 rest = index;\n(void)rest;\n";
    for (std::size_t axis = rank(); axis-- > 0;) {
      if (space_.is_reduced[axis]) continue;
      text_ += fmt::format("const og_i64 i{0} = rest % {1};\nrest /= {1};\n(void)i{0};\n", axis,
                           std::max<std::int64_t>(space_.full[axis], 1));
    }
  }

  void write_totals() {
    for (std::size_t i = 0; i < op_.folds.size(); ++i) {
      const Fold fold = op_.folds[i];
      std::string start = "0";
      if (fold != Fold::kSum && is_floating(op_.compute)) {
        constexpr double kInfinity = std::numeric_limits<double>::infinity();
        start = constant_text(fold == Fold::kMax ? -kInfinity : kInfinity, op_.compute);
      } else if (fold != Fold::kSum && op_.compute == DataType::kInt64) {
        start = fold == Fold::kMax ? "-0x7fffffffffffffffll - 1" : "0x7fffffffffffffffll";
      } else if (fold == Fold::kMin) {
        start = "0xffffffffffffffffull";
      }
      text_ +=
          fmt::format("{} total{} = {};\n", sums_in_double(fold) ? "double" : type(), i, start);
    }
  }

  // The threads of a column share the elements.
  void open_block() {
    text_ += fmt::format(
        "for (og_i64 r = index < {} ? threadIdx.y : {}; r < {}; r += blockDim.y) {{\n"
        "og_i64 place = r;\n(void)place;\n",
        space_.kept(), space_.length(), space_.length());
    for (std::size_t axis = rank(); axis-- > 0;) {
      if (!space_.is_reduced[axis]) continue;
      text_ += fmt::format("const og_i64 i{0} = place % {1};\nplace /= {1};\n(void)i{0};\n", axis,
                           std::max<std::int64_t>(space_.full[axis], 1));
    }
  }

  void close_block() {
    text_ += "}\n";
    for (std::size_t i = 0; i < op_.folds.size(); ++i) {
      const Fold fold = op_.folds[i];
      text_ += fmt::format("total{0} = og_fold_rows<og_{1}>(total{0});\n", i,
                           fold == Fold::kSum   ? "sum"
                           : fold == Fold::kMax ? "largest"
                                                : "least");
    }
    text_ += fmt::format("if (threadIdx.y != 0 || index >= {}) return;\n", space_.kept());
  }

  void open_loops() {
    if (is_for_block_) return open_block();
    for (std::size_t axis = 0; axis < rank(); ++axis) {
      if (!space_.is_reduced[axis]) continue;
      text_ +=
          fmt::format("for (og_i64 i{0} = 0; i{0} < {1}; ++i{0}) {{\n", axis, space_.full[axis]);
    }
  }

  void write_main() {
    write_operands("x", op_.program.num_inputs, [&](std::size_t i) {
      return load_text(inputs_[i].dtype, fmt::format("in[{}]", i),
                       offset_text(strides_over(inputs_[i].dims, rank())), type());
    });
    text_ += fmt::format("{} y[{}];\n{}_main(x, y);\n", type(),
                         std::max<std::size_t>(op_.program.results.size(), 1), name_);
    const std::string place = offset_text(strides_over(space_.full, rank()));
    for (std::size_t i = 0; i < num_stored(); ++i) {
      if (!outputs_[i].is_present()) continue;
      text_ += store_text(outputs_[i].dtype, fmt::format("out[{}]", i), place,
                          flushed(fmt::format("y[{}]", i)), op_.compute);
    }
    for (std::size_t i = 0; i < op_.folds.size(); ++i) {
      const std::string value = fmt::format("y[{}]", num_stored() + i);
      text_ += fmt::format("total{} = ", i);
      if (op_.folds[i] != Fold::kSum) {
        text_ += fmt::format("og_{}(total{}, {});\n", op_.folds[i] == Fold::kMax ? "max" : "min", i,
                             value);
      } else if (is_floating(op_.compute)) {
        text_ += fmt::format("total{} + {};\n", i, value);
      } else {
        text_ += fmt::format("og_add(total{}, {});\n", i, value);
      }
    }
  }

  template <class Load>
  void write_operands(std::string_view array, std::int32_t count, const Load& load) {
    text_ += fmt::format("{} {}[{}];\n", type(), array, std::max(count, 1));
    for (std::int32_t i = 0; i < count; ++i) {
      text_ += fmt::format("{}[{}] = {};\n", array, i, load(static_cast<std::size_t>(i)));
    }
    if (count == 0) text_ += fmt::format("{}[0] = 0;\n", array);
  }

  void write_reduced() {
    for (std::size_t i = 0; i < op_.folds.size(); ++i)
      store_result(i, fmt::format("({})total{}", type(), i));
  }

  void store_result(std::size_t i, std::string_view value) {
    const TensorDesc& desc = outputs_[num_stored() + i];
    if (!desc.is_present()) return;
    text_ += store_text(desc.dtype, fmt::format("out[{}]", num_stored() + i), "index", value,
                        op_.compute);
  }

  // Operands as large as the result, or of one element, are read in its order; others are broadcast
  // to F with a 1 for each reduced axis.
  void write_post() {
    const auto operands = inputs_.subspan(num_main());
    const std::int64_t size = space_.kept();
    const bool is_flat = std::ranges::all_of(operands, [&](const TensorDesc& desc) {
      return desc.dims.num_elements() == 1 || desc.dims.num_elements() == size;
    });
    write_operands("z", op_.post->num_inputs, [&](std::size_t i) {
      if (i < op_.folds.size()) return fmt::format("({})total{}", type(), i);
      const std::size_t k = i - op_.folds.size();
      const TensorDesc& desc = operands[k];
      const std::string flat = desc.dims.num_elements() == 1 ? "0" : "index";
      return load_text(desc.dtype, fmt::format("in[{}]", num_main() + k),
                       is_flat ? flat : offset_text(strides_over(desc.dims, rank())), type());
    });
    text_ += fmt::format("{} w[{}];\n{}_post(z, w);\n", type(),
                         std::max<std::size_t>(op_.post->results.size(), 1), name_);
    for (std::size_t i = 0; i < op_.post->results.size(); ++i)
      store_result(i, flushed(fmt::format("w[{}]", i)));
  }

  const Elementwise& op_;
  std::span<const TensorDesc> inputs_;
  std::span<const TensorDesc> outputs_;
  std::string_view name_;
  bool is_for_block_;
  ReducedSpace space_;
  std::string text_;
};

bool is_computed(const TensorDesc& desc, DataType compute) {
  if (!desc.is_present()) return true;
  if (stored_type(desc.dtype).empty()) return false;
  return is_floating(compute) || !is_floating(desc.dtype);
}

}  // namespace

std::string program_text(const ExprProgram& program, DataType compute, std::string_view name) {
  const std::string_view type = compute_type(compute);
  ONNXGRAD_ASSERT(!type.empty());
  std::string text =
      fmt::format("OG_FUNCTION void {}(const {}* in, {}* out) {{\n(void)in;\n", name, type, type);
  for (std::size_t i = 0; i < program.instructions.size(); ++i) {
    const ExprInstruction& in = program.instructions[i];
    std::string value;
    if (in.op == ExprOp::kInput) {
      value = fmt::format("in[{}]", in.a);
    } else if (in.op == ExprOp::kConstant) {
      value = constant_text(in.constant, compute);
    } else {
      value = filled(text_of(in.op, compute), in, type);
    }
    text += fmt::format("const {} r{} = {};\n", type, i, value);
  }
  for (std::size_t i = 0; i < program.results.size(); ++i) {
    text += fmt::format("out[{}] = r{};\n", i, program.results[i]);
  }
  return text + "}\n\n";
}

namespace {

std::string element_text(const Elementwise& op, std::span<const TensorDesc> inputs,
                         std::span<const TensorDesc> outputs, std::string_view name,
                         bool is_for_block) {
  const auto fits = [&](const TensorDesc& desc) { return is_computed(desc, op.compute); };
  if (compute_type(op.compute).empty() || !std::ranges::all_of(inputs, fits) ||
      !std::ranges::all_of(outputs, fits)) {
    return "";
  }
  std::string text = program_text(op.program, op.compute, fmt::format("{}_main", name));
  if (op.post) text += program_text(*op.post, op.compute, fmt::format("{}_post", name));
  return text + ElementText(op, inputs, outputs, name, is_for_block).write();
}

}  // namespace

std::string elementwise_text(const Elementwise& op, std::span<const TensorDesc> inputs,
                             std::span<const TensorDesc> outputs, std::string_view name) {
  return element_text(op, inputs, outputs, name, /*is_for_block=*/false);
}

std::string elementwise_block_text(const Elementwise& op, std::span<const TensorDesc> inputs,
                                   std::span<const TensorDesc> outputs, std::string_view name) {
  return element_text(op, inputs, outputs, name, /*is_for_block=*/true);
}

ElementwiseFolds elementwise_folds(const Elementwise& op, std::span<const TensorDesc> inputs) {
  const ReducedSpace space(op, inputs);
  ElementwiseFolds folds{.length = space.length()};
  for (std::size_t axis = space.full.rank(); axis-- > 0;) {
    if (space.full[axis] == 1) continue;
    folds.are_adjacent = !space.is_reduced[axis];
    break;
  }
  return folds;
}

std::int64_t elementwise_calls(const Elementwise& op, std::span<const TensorDesc> inputs) {
  return ReducedSpace(op, inputs).kept();
}

}  // namespace onnxgrad::opdef
