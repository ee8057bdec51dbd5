#include "opdef/fused.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <span>
#include <utility>
#include <variant>

#include "base/check.h"
#include "ir/builder.h"

namespace onnxgrad::opdef {
namespace {

constexpr std::array<std::string_view, kNumUpdateRules> kRuleNames{
    "momentum", "nesterov", "adam", "root", "lion", "velocity", "nesterov_velocity"};

UpdateRule rule_named(std::string_view name) {
  const auto* const found = std::ranges::find(kRuleNames, name);
  ONNXGRAD_ASSERT(found != kRuleNames.end());
  return static_cast<UpdateRule>(found - kRuleNames.begin());
}

// The shortest string that parses to this number: "0p999", "1em08".
std::string number_key(double number) {
  std::string key;
  for (const char c : fmt::format("{}", number)) {
    if (c != '+') key += c == '.' ? 'p' : c == '-' ? 'm' : c;
  }
  return key;
}

bool flag(const ir::Node& node, std::string_view name) { return node.int_attribute(name, 0) != 0; }

std::optional<ExprProgram> optional_program(const ir::Node& node, std::string_view name) {
  if (node.find_attribute(name) == nullptr) return std::nullopt;
  return ExprProgram::from_ints(node.ints_attribute(name));
}

std::vector<ir::Attribute> transposes(bool a, bool b) {
  return {{.name = "transA", .value = std::int64_t{a}},
          {.name = "transB", .value = std::int64_t{b}}};
}

}  // namespace

Elementwise Elementwise::read(const ir::Node& node) {
  Elementwise op{.program = ExprProgram::from_ints(node.ints_attribute("program")),
                 .compute = static_cast<DataType>(node.int_attribute("compute")),
                 .reduce_axes = node.ints_attribute("reduce_axes"),
                 .post = optional_program(node, "post"),
                 .flush_denormals = flag(node, "flush_denormals")};
  for (const std::int64_t fold : node.ints_attribute("reduce")) {
    op.folds.push_back(static_cast<Fold>(fold));
  }
  op.stored = std::ssize(op.program.results) - std::ssize(op.folds);
  return op;
}

std::vector<ir::Attribute> Elementwise::attributes() const {
  ONNXGRAD_ASSERT(stored + std::ssize(folds) == std::ssize(program.results));
  std::vector<ir::Attribute> list{{.name = "program", .value = program.to_ints()},
                                  {.name = "compute", .value = static_cast<std::int64_t>(compute)}};
  if (!folds.empty()) {
    std::vector<std::int64_t> kinds;
    for (const Fold fold : folds) kinds.push_back(static_cast<std::int64_t>(fold));
    list.push_back({.name = "reduce", .value = std::move(kinds)});
    list.push_back({.name = "reduce_axes", .value = reduce_axes});
  }
  if (post) list.push_back({.name = "post", .value = post->to_ints()});
  if (flush_denormals) list.push_back({.name = "flush_denormals", .value = std::int64_t{1}});
  return list;
}

Gemm Gemm::read(const ir::Node& node) {
  return {.transpose_a = flag(node, "transA"),
          .transpose_b = flag(node, "transB"),
          .epilogue = optional_program(node, "epilogue"),
          .sums_columns = flag(node, "sums_columns")};
}

std::vector<ir::Attribute> Gemm::attributes() const {
  std::vector<ir::Attribute> list = transposes(transpose_a, transpose_b);
  if (epilogue) list.push_back({.name = "epilogue", .value = epilogue->to_ints()});
  if (sums_columns) list.push_back({.name = "sums_columns", .value = std::int64_t{1}});
  return list;
}

GemmUpdate GemmUpdate::read(const ir::Node& node) {
  return {.transpose_a = flag(node, "transA"),
          .transpose_b = flag(node, "transB"),
          .scale = static_cast<double>(node.float_attribute("scale", 1))};
}

std::vector<ir::Attribute> GemmUpdate::attributes() const {
  std::vector<ir::Attribute> list = transposes(transpose_a, transpose_b);
  list.push_back({.name = "scale", .value = static_cast<float>(scale)});
  return list;
}

ExprProgram GemmUpdate::program(bool has_rate) const {
  ExprProgram program{.num_inputs = has_rate ? 3 : 2};
  const std::int32_t product = program.input(0);
  std::int32_t factor = program.constant(scale);
  if (has_rate) factor = program.emit(ExprOp::kMul, factor, program.input(2));
  const std::int32_t move = program.emit(ExprOp::kMul, factor, product);
  program.results = {program.emit(ExprOp::kAdd, program.input(1), move)};
  return program;
}

LinearStep LinearStep::read(const ir::Node& node) {
  const auto* numbers = node.find_attribute("coefficients");
  ONNXGRAD_ASSERT(numbers != nullptr && std::holds_alternative<Tensor>(*numbers));
  const std::vector<double> c = std::get<Tensor>(*numbers).to_doubles();
  ONNXGRAD_ASSERT(c.size() == 6);
  return {.bias = c[0],
          .target = c[1],
          .shift = c[2],
          .loss_scale = c[3],
          .weight_step = c[4],
          .bias_step = c[5]};
}

std::vector<ir::Attribute> LinearStep::attributes() const {
  const std::array numbers{bias, target, shift, loss_scale, weight_step, bias_step};
  return {{.name = "coefficients", .value = Tensor::from(std::span<const double>(numbers), {6})}};
}

GemmWeightUpdate GemmWeightUpdate::read(const ir::Node& node) {
  return {.transpose_a = flag(node, "transA"),
          .transpose_b = flag(node, "transB"),
          .update = WeightUpdate::read(node)};
}

std::vector<ir::Attribute> GemmWeightUpdate::attributes() const {
  std::vector<ir::Attribute> list = transposes(transpose_a, transpose_b);
  std::ranges::move(update.attributes(), std::back_inserter(list));
  return list;
}

bool is_fused(const ir::Node* node, std::string_view op_type) {
  return node != nullptr && node->domain == ir::kFusedDomain && node->op_type == op_type;
}

bool is_plain_matmul(const ir::Node* node) {
  return is_fused(node, kGemm) && !Gemm::read(*node).epilogue;
}

std::string_view update_rule_name(UpdateRule rule) {
  return kRuleNames.at(static_cast<std::size_t>(rule));
}

WeightUpdate WeightUpdate::read(const ir::Node& node) {
  const auto* const tensor = std::get_if<Tensor>(node.find_attribute("factors"));
  ONNXGRAD_ASSERT(tensor != nullptr);
  const std::vector<double> factors = tensor->to_doubles();
  return {.rule = rule_named(node.string_attribute("rule", "")),
          .decay = factors.at(0),
          .beta1 = factors.at(1),
          .share1 = factors.at(2),
          .beta2 = factors.at(3),
          .share2 = factors.at(4),
          .shrinks = node.int_attribute("shrinks", 0) != 0};
}

std::vector<ir::Attribute> WeightUpdate::attributes() const {
  return {
      {.name = "rule", .value = std::string(update_rule_name(rule))},
      {.name = "factors",
       .value = Tensor::from(std::vector<double>{decay, beta1, share1, beta2, share2}, Dims{5})},
      {.name = "shrinks", .value = std::int64_t{shrinks}}};
}

namespace {

// Writes the formulas of WeightUpdate.
class UpdateWriter {
 public:
  explicit UpdateWriter(const WeightUpdate& update) : update_(update) {
    gradient_ = operand();
    w_ = operand();
    m_ = operand();
    if (update.has_v()) v_ = operand();
    rate_ = operand();
    if (update.has_epsilon()) epsilon_ = operand();
    start_ = update.shrinks ? emit(ExprOp::kMul, w_, operand()) : w_;
    if (update.decay != 0) gradient_ = emit(ExprOp::kAdd, gradient_, scaled(w_, update.decay));
  }

  ExprProgram write() && {
    switch (update_.rule) {
      case UpdateRule::kMomentum:
      case UpdateRule::kNesterov: {
        const auto m = average(m_, update_.beta1, gradient_, 1);
        const bool is_ahead = update_.rule == UpdateRule::kNesterov;
        finish(step(is_ahead ? emit(ExprOp::kAdd, gradient_, scaled(m, update_.beta1)) : m), m);
        break;
      }
      case UpdateRule::kAdam: {
        const auto m = average(m_, update_.beta1, gradient_, update_.share1);
        const auto v = average(v_, update_.beta2, square(), update_.share2);
        finish(step(over_root(m, v)), m);
        program_.results.push_back(v);
        break;
      }
      case UpdateRule::kRoot: {
        const auto m = average(m_, update_.beta1, square(), update_.share1);
        finish(step(over_root(gradient_, m)), m);
        break;
      }
      case UpdateRule::kLion: {
        const auto direction = average(m_, update_.beta1, gradient_, update_.share1);
        finish(step(emit(ExprOp::kSign, direction)),
               average(m_, update_.beta2, gradient_, update_.share2));
        break;
      }
      case UpdateRule::kVelocity:
      case UpdateRule::kNesterovVelocity: {
        const auto move = emit(ExprOp::kMul, rate_, gradient_);
        const auto m = emit(ExprOp::kSub, scaled(m_, update_.beta1), move);
        const bool is_ahead = update_.rule == UpdateRule::kNesterovVelocity;
        const auto way = is_ahead ? emit(ExprOp::kSub, scaled(m, update_.beta1), move) : m;
        finish(emit(ExprOp::kAdd, start_, way), m);
        break;
      }
    }
    return std::move(program_);
  }

 private:
  using Number = std::int32_t;  // number of an instruction

  Number operand() { return program_.input(program_.num_inputs++); }
  Number emit(ExprOp op, Number a, Number b = 0) { return program_.emit(op, a, b); }
  Number scaled(Number x, double factor) {
    return factor == 1 ? x : emit(ExprOp::kMul, x, program_.constant(factor));
  }
  Number average(Number old, double beta, Number x, double share) {
    return emit(ExprOp::kAdd, scaled(old, beta), scaled(x, share));
  }
  Number square() { return emit(ExprOp::kMul, gradient_, gradient_); }
  Number over_root(Number x, Number squares) {
    return emit(ExprOp::kDiv, x, emit(ExprOp::kAdd, emit(ExprOp::kSqrt, squares), epsilon_));
  }
  Number step(Number direction) {
    return emit(ExprOp::kSub, start_, emit(ExprOp::kMul, rate_, direction));
  }
  void finish(Number w, Number m) { program_.results = {w, m}; }

  const WeightUpdate& update_;
  ExprProgram program_;
  Number gradient_ = 0, w_ = 0, m_ = 0, v_ = 0, rate_ = 0, epsilon_ = 0, start_ = 0;
};

}  // namespace

ExprProgram WeightUpdate::program() const { return UpdateWriter(*this).write(); }

std::string WeightUpdate::key() const {
  std::string key{update_rule_name(rule)};
  for (const double factor : {decay, beta1, share1, beta2, share2}) {
    key += '_';
    key += number_key(factor);
  }
  return shrinks ? key + "_shrinks" : key;
}

}  // namespace onnxgrad::opdef
