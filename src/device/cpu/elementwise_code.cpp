#include "device/cpu/elementwise_code.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/memory_budget.h"

namespace onnxgrad::device {
namespace {

using opdef::ExprInstruction;
using opdef::ExprOp;

struct Node {
  TileOp op = TileOp::kCopy;
  std::int32_t args[3] = {-1, -1, -1};
  double constant = 0;
  int uses = 0;  // number of live nodes and results that read it
  bool is_live = false;
  bool is_result = false;
  Rate rate = Rate::kPlan;
  std::int32_t slot = -1;
  std::size_t last_use = 0;  // position of the last reader
};

bool is(const Node& node, ExprOp op) { return node.op == tile_op(op); }

int arity(TileOp op) {
  switch (op) {
    case TileOp::kCopy:
    case TileOp::kFill:
      return 1;
    case TileOp::kMulSub:
    case TileOp::kNegMulAdd:
    case TileOp::kMulGreater:
      return 3;
    case TileOp::kAddRelu:
      return 2;
    default:
      return opdef::expr_arity(static_cast<ExprOp>(op));
  }
}

/// Estimates the cost of an instruction in vector additions.
double cost_of(TileOp op) {
  switch (static_cast<ExprOp>(op)) {
    case ExprOp::kInput:
    case ExprOp::kConstant:
      return 0;
    case ExprOp::kDiv:
    case ExprOp::kSqrt:
    case ExprOp::kReciprocal:
      return 6;
    case ExprOp::kToFloat16:
    case ExprOp::kToBfloat16:
      return 4;
    case ExprOp::kExp:
    case ExprOp::kLog:
    case ExprOp::kTanh:
    case ExprOp::kSigmoid:
    case ExprOp::kErf:
    case ExprOp::kSin:
    case ExprOp::kCos:
    case ExprOp::kSoftplus:
      return 15;
    case ExprOp::kPow:
    case ExprOp::kMod:
    case ExprOp::kFmod:
    case ExprOp::kTan:
    case ExprOp::kAsin:
    case ExprOp::kAcos:
    case ExprOp::kAtan:
    case ExprOp::kSinh:
    case ExprOp::kCosh:
    case ExprOp::kAsinh:
    case ExprOp::kAcosh:
    case ExprOp::kAtanh:
      return 150;
    default:
      return 1;
  }
}

class Compiler {
 public:
  Compiler(const opdef::ExprProgram& program, DataType compute, const TileTable& table,
           std::span<const CodeOperand> operands, std::span<const CodeResult> results)
      : table_(table),
        compute_(compute),
        operands_(operands.begin(), operands.end()),
        results_(results.begin(), results.end()) {
    for (const ExprInstruction& i : program.instructions) {
      nodes_.push_back({.op = tile_op(i.op), .args = {i.a, i.b, i.c}, .constant = i.constant});
    }
    for (const CodeResult& result : results_) at(result.value).is_result = true;
  }

  Code run() {
    code_.compute = compute_;
    share_inputs();
    simplify_powers();
    find_rates();
    count_uses();
    if (is_floating(compute_)) {
      replace_divisions();
      fuse_pairs();
    }
    count_uses();
    code_.operand_slots.assign(operands_.size(), -1);
    code_.result_slots.assign(results_.size(), -1);
    find_last_uses();
    place_operands();
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      if (nodes_[i].is_live) place(i);
    }
    place_results();
    make_constants();
    return std::move(code_);
  }

 private:
  Node& at(std::int32_t i) { return nodes_[static_cast<std::size_t>(i)]; }

  int num_args(const Node& node) const { return is(node, ExprOp::kInput) ? 0 : arity(node.op); }

  /// Makes several reads of an operand one value.
  void share_inputs() {
    std::vector<std::int32_t> first(operands_.size(), -1);
    std::vector<std::int32_t> same(nodes_.size());
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      Node& node = nodes_[i];
      same[i] = static_cast<std::int32_t>(i);
      if (is(node, ExprOp::kInput)) {
        auto& known = first[static_cast<std::size_t>(node.args[0])];
        if (known < 0) known = same[i];
        same[i] = known;
        continue;
      }
      for (int k = 0; k < num_args(node); ++k) {
        node.args[k] = same[static_cast<std::size_t>(node.args[k])];
      }
    }
    for (CodeResult& result : results_) {
      result.value = same[static_cast<std::size_t>(result.value)];
      at(result.value).is_result = true;
    }
  }

  void set(Node& node, TileOp op, std::int32_t a, std::int32_t b = -1, std::int32_t c = -1) {
    node.op = op;
    node.args[0] = a;
    node.args[1] = b;
    node.args[2] = c;
  }

  /// Replaces x^2, x^1, x^(1/2) and x^-1 by cheaper instructions.
  void simplify_powers() {
    for (Node& node : nodes_) {
      if (!is(node, ExprOp::kPow) || !is(at(node.args[1]), ExprOp::kConstant)) continue;
      const double exponent = at(node.args[1]).constant;
      const std::int32_t x = node.args[0];
      if (exponent == 2) {
        set(node, tile_op(ExprOp::kMul), x, x);
      } else if (exponent == 1) {
        set(node, TileOp::kCopy, x);
      } else if (exponent == 0.5 && is_floating(compute_)) {
        set(node, tile_op(ExprOp::kSqrt), x);
      } else if (exponent == -1 && is_floating(compute_)) {
        set(node, tile_op(ExprOp::kReciprocal), x);
      }
    }
  }

  void find_rates() {
    for (Node& node : nodes_) {
      if (is(node, ExprOp::kInput)) {
        node.rate = operands_[static_cast<std::size_t>(node.args[0])].rate;
        continue;
      }
      node.rate = Rate::kPlan;
      for (int k = 0; k < num_args(node); ++k)
        node.rate = std::max(node.rate, at(node.args[k]).rate);
    }
  }

  void count_uses() {
    for (Node& node : nodes_) {
      node.uses = 0;
      node.is_live = false;
    }
    for (const CodeResult& result : results_) {
      at(result.value).is_live = true;
      ++at(result.value).uses;
    }
    for (std::size_t i = nodes_.size(); i-- > 0;) {
      if (!nodes_[i].is_live) continue;
      for (int k = 0; k < num_args(nodes_[i]); ++k) {
        Node& arg = at(nodes_[i].args[k]);
        arg.is_live = true;
        ++arg.uses;
      }
    }
  }

  /// Whether node `i` is an `op` that only `by` reads, computed as often as `by`.
  bool is_private(std::int32_t i, ExprOp op, const Node& by) {
    const Node& node = at(i);
    return is(node, op) && node.uses == 1 && node.rate == by.rate;
  }

  /// Replaces x / s by x * (1 / s) if s does not change within a tile: a division is as slow as ten
  /// multiplications. Not for results, which are rounded once, nor in programs with jumps: an
  /// additional rounding must not change the outcome of a comparison.
  void replace_divisions() {
    const auto jumps = [](const Node& node) {
      switch (static_cast<ExprOp>(node.op)) {
        case ExprOp::kMod:
        case ExprOp::kFmod:
        case ExprOp::kFloor:
        case ExprOp::kCeil:
        case ExprOp::kRound:
        case ExprOp::kToFloat16:
        case ExprOp::kToBfloat16:
        case ExprOp::kSign:
        case ExprOp::kNot:
        case ExprOp::kEqual:
        case ExprOp::kGreater:
        case ExprOp::kGreaterEqual:
        case ExprOp::kLess:
        case ExprOp::kLessEqual:
        case ExprOp::kSelect:
        case ExprOp::kAnd:
        case ExprOp::kOr:
        case ExprOp::kXor:
        case ExprOp::kPow:
          return true;
        default:
          return false;
      }
    };
    if (std::ranges::any_of(nodes_, jumps)) return;
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      const Node node = nodes_[i];
      if (!node.is_live || node.is_result || node.rate != Rate::kTile || !is(node, ExprOp::kDiv)) {
        continue;
      }
      const std::int32_t divisor = node.args[1];
      if (at(divisor).rate == Rate::kTile) continue;
      Node reciprocal{.is_live = true, .rate = at(divisor).rate};
      set(reciprocal, tile_op(ExprOp::kReciprocal), divisor);
      insert(i, reciprocal);
      set(nodes_[i + 1], tile_op(ExprOp::kMul), node.args[0], static_cast<std::int32_t>(i));
    }
    count_uses();
  }

  /// Makes `node` number i; it must read only earlier ones.
  void insert(std::size_t i, const Node& node) {
    const auto first_moved = static_cast<std::int32_t>(i);
    const auto move = [&](std::int32_t& value) { value += value >= first_moved ? 1 : 0; };
    for (Node& other : nodes_) {
      for (int k = 0; k < num_args(other); ++k) move(other.args[k]);
    }
    for (CodeResult& result : results_) move(result.value);
    nodes_.insert(nodes_.begin() + first_moved, node);
  }

  /// Fuses a multiplication and the addition that reads it into one instruction, rounded once, and
  /// multiplications by masks.
  void fuse_pairs() {
    for (Node& node : nodes_) {
      if (!node.is_live || node.rate != Rate::kTile) continue;
      if (is(node, ExprOp::kAdd)) {
        if (!is_private(node.args[0], ExprOp::kMul, node)) std::swap(node.args[0], node.args[1]);
        if (is_private(node.args[0], ExprOp::kMul, node)) {
          fuse(node, tile_op(ExprOp::kFma), node.args[0], node.args[1]);
        }
      } else if (is(node, ExprOp::kSub)) {
        if (is_private(node.args[1], ExprOp::kMul, node)) {
          fuse(node, TileOp::kNegMulAdd, node.args[1], node.args[0]);
        } else if (is_private(node.args[0], ExprOp::kMul, node)) {
          fuse(node, TileOp::kMulSub, node.args[0], node.args[1]);
        }
      } else if (is(node, ExprOp::kMul)) {
        if (!is_private(node.args[1], ExprOp::kGreater, node)) {
          std::swap(node.args[0], node.args[1]);
        }
        if (is_private(node.args[1], ExprOp::kGreater, node) &&
            at(node.args[0]).rate == Rate::kTile) {
          const Node mask = at(node.args[1]);
          set(node, TileOp::kMulGreater, node.args[0], mask.args[0], mask.args[1]);
        }
      } else if (is(node, ExprOp::kRelu) && is_private(node.args[0], ExprOp::kAdd, node)) {
        const Node sum = at(node.args[0]);
        set(node, TileOp::kAddRelu, sum.args[0], sum.args[1]);
      }
    }
  }

  void fuse(Node& node, TileOp op, std::int32_t product, std::int32_t other) {
    const Node factors = at(product);
    set(node, op, factors.args[0], factors.args[1], other);
    if (at(node.args[0]).rate != Rate::kTile) std::swap(node.args[0], node.args[1]);
  }

  /// Sets last_use, a position of a node; results are read after the last node.
  void find_last_uses() {
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      if (!nodes_[i].is_live) continue;
      for (int k = 0; k < num_args(nodes_[i]); ++k) at(nodes_[i].args[k]).last_use = i;
    }
    for (const CodeResult& result : results_) at(result.value).last_use = nodes_.size();
  }

  std::int32_t add_slot(SlotKind kind, std::int32_t index) {
    code_.slots.push_back({kind, index});
    return static_cast<std::int32_t>(code_.slots.size()) - 1;
  }

  std::int32_t new_cell() { return add_slot(SlotKind::kCell, code_.num_cells++); }

  std::int32_t new_buffer() {
    if (free_buffers_.empty()) return add_slot(SlotKind::kBuffer, code_.num_buffers++);
    const std::int32_t slot = free_buffers_.back();
    free_buffers_.pop_back();
    return slot;
  }

  void place_operands() {
    for (Node& node : nodes_) {
      if (!node.is_live || !is(node, ExprOp::kInput)) continue;
      const std::int32_t operand = node.args[0];
      const CodeOperand& info = operands_[static_cast<std::size_t>(operand)];
      if (info.in_place) {
        node.slot = add_slot(SlotKind::kOperand, operand);
      } else {
        node.slot = info.rate == Rate::kTile ? new_buffer() : new_cell();
      }
      code_.operand_slots[static_cast<std::size_t>(operand)] = node.slot;
    }
  }

  void place(std::size_t i) {
    Node& node = nodes_[i];
    if (is(node, ExprOp::kInput)) return;
    if (node.rate == Rate::kPlan) {
      node.slot = add_slot(SlotKind::kConstant, num_constants_++);
      return;
    }
    if (node.rate != Rate::kTile) {
      node.slot = new_cell();
      emit(node, node.slot, true, -1);
      return;
    }
    code_.cost += cost_of(node.op);
    const std::optional<std::int32_t> output = free_output(i);
    // A first operand of one element is broadcast if there is no form for it.
    const bool spreads = num_args(node) == 3 && at(node.args[0]).rate != Rate::kTile;
    const std::int32_t first = spreads ? spread(node.args[0]) : -1;
    // Buffers whose value this instruction reads last may receive its result.
    for (int k = 0; k < num_args(node); ++k) release(at(node.args[k]), i);
    node.slot = output ? add_slot(SlotKind::kOutput, *output) : new_buffer();
    if (output) code_.result_slots[static_cast<std::size_t>(*output)] = node.slot;
    emit(node, node.slot, !output, first);
    if (spreads) free_buffers_.push_back(first);
  }

  void release(const Node& arg, std::size_t i) {
    if (arg.last_use != i || arg.slot < 0) return;
    const bool is_buffer =
        code_.slots[static_cast<std::size_t>(arg.slot)].kind == SlotKind::kBuffer;
    // Loaded operands keep their buffers: some are loaded once for all tiles.
    if (!is_buffer || is(arg, ExprOp::kInput)) return;
    if (std::ranges::find(free_buffers_, arg.slot) == free_buffers_.end()) {
      free_buffers_.push_back(arg.slot);
    }
  }

  /// Returns the output that node `i` can write directly: no later node may read an operand that
  /// may share the output's memory.
  std::optional<std::int32_t> free_output(std::size_t i) {
    for (std::size_t r = 0; r < results_.size(); ++r) {
      const CodeResult& result = results_[r];
      if (result.value != static_cast<std::int32_t>(i) || !result.is_stored || !result.in_place) {
        continue;
      }
      const bool is_safe = std::ranges::none_of(nodes_, [&](const Node& other) {
        return is(other, ExprOp::kInput) && other.is_live && other.last_use > i &&
               operands_[static_cast<std::size_t>(other.args[0])].may_be_overwritten;
      });
      if (is_safe) return static_cast<std::int32_t>(r);
      return std::nullopt;
    }
    return std::nullopt;
  }

  /// Emits the instruction of a node. `first`: slot to use instead of operand 0's.
  void emit(const Node& node, std::int32_t to, bool pad, std::int32_t first) {
    Instruction instruction{.to = to, .pad = pad};
    std::int32_t* const slots[3] = {&instruction.a, &instruction.b, &instruction.c};
    const int count = num_args(node);
    unsigned scalars = 0;  // bit k: operand k is one element for the whole tile
    for (int k = 0; k < count; ++k) {
      const Node& arg = at(node.args[k]);
      *slots[k] = arg.slot;
      if (arg.rate != Rate::kTile) scalars |= 1U << k;
    }
    if (first >= 0) instruction.a = first;
    TileForm form = kAllVectors;
    if (node.rate == Rate::kTile) {
      const bool b = (scalars & 2U) != 0;
      const bool c = (scalars & 4U) != 0;
      if (count == 2) form = b ? kLastScalar : (scalars & 1U) != 0 ? kFirstScalar : kAllVectors;
      if (count == 3)
        form = b && c ? kBothScalar : b ? kFirstScalar : c ? kLastScalar : kAllVectors;
    }
    instruction.fn = table_.at(node.op, form);
    ONNXGRAD_ASSERT(instruction.fn != nullptr);
    list_of(node.rate).push_back(instruction);
  }

  std::int32_t spread(std::int32_t value) {
    const std::int32_t slot = new_buffer();
    code_.per_tile.push_back(
        {.fn = table_.at(TileOp::kFill), .to = slot, .a = at(value).slot, .pad = true});
    return slot;
  }

  std::vector<Instruction>& list_of(Rate rate) {
    return rate == Rate::kTile  ? code_.per_tile
           : rate == Rate::kRow ? code_.per_row
                                : code_.per_call;
  }

  /// Places results that no instruction has written yet: operands first, which may share memory
  /// with an output, then values in cells and buffers.
  void place_results() {
    for (const bool from_operands : {true, false}) {
      for (std::size_t r = 0; r < results_.size(); ++r) {
        const CodeResult& result = results_[r];
        const Node& node = at(result.value);
        const SlotKind kind = code_.slots[static_cast<std::size_t>(node.slot)].kind;
        if (code_.result_slots[r] >= 0 || (kind == SlotKind::kOperand) != from_operands) continue;
        if (node.rate != Rate::kTile) {
          code_.result_slots[r] = store(r, TileOp::kFill, node.slot);
        } else if (result.is_stored && result.in_place) {
          code_.result_slots[r] = store(r, TileOp::kCopy, node.slot);
        } else {
          code_.result_slots[r] = node.slot;
        }
      }
    }
  }

  std::int32_t store(std::size_t r, TileOp op, std::int32_t from) {
    const bool to_output = results_[r].is_stored && results_[r].in_place;
    const std::int32_t to =
        to_output ? add_slot(SlotKind::kOutput, static_cast<std::int32_t>(r)) : new_buffer();
    code_.per_tile.push_back({.fn = table_.at(op), .to = to, .a = from, .pad = !to_output});
    code_.cost += 1;
    return to;
  }

  /// Computes values that depend only on constants, with the instructions that the run would use.
  void make_constants() {
    code_.constants = base::allocate_aligned(kCellBytes * std::max(num_constants_, 1));
    const auto cell = [&](const Node& node) {
      return code_.constants.get() +
             kCellBytes * code_.slots[static_cast<std::size_t>(node.slot)].index;
    };
    for (const Node& node : nodes_) {
      if (!node.is_live || node.rate != Rate::kPlan) continue;
      if (is(node, ExprOp::kConstant)) {
        write_number(cell(node), node.constant);
        continue;
      }
      const std::byte* args[3] = {nullptr, nullptr, nullptr};
      for (int k = 0; k < num_args(node); ++k) args[k] = cell(at(node.args[k]));
      table_.at(node.op)(cell(node), args[0], args[1], args[2], 1, true);
    }
  }

  void write_number(std::byte* to, double value) const {
    std::memset(to, 0, kCellBytes);
    if (compute_ == DataType::kFloat32) {
      const auto number = static_cast<float>(value);
      std::memcpy(to, &number, sizeof number);
    } else if (compute_ == DataType::kFloat64) {
      std::memcpy(to, &value, sizeof value);
    } else {
      const auto number = static_cast<std::int64_t>(value);
      std::memcpy(to, &number, sizeof number);
    }
  }

  const TileTable& table_;
  DataType compute_;
  std::vector<CodeOperand> operands_;
  std::vector<CodeResult> results_;
  std::vector<Node> nodes_;
  std::vector<std::int32_t> free_buffers_;
  std::int32_t num_constants_ = 0;
  Code code_;
};

}  // namespace

Code compile_code(const opdef::ExprProgram& program, DataType compute, const TileTable& table,
                  std::span<const CodeOperand> operands, std::span<const CodeResult> results) {
  return Compiler(program, compute, table, operands, results).run();
}

}  // namespace onnxgrad::device
