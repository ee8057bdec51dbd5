#include "ir/pattern.h"

#include <algorithm>
#include <string>
#include <utility>

namespace onnxgrad::ir {
namespace {

constexpr std::int64_t kMaxNumbers = 4096;  // elements of a constant that are examined

const Node* producer_of(const Value* value, const Match& match) {
  value = look_through(value, match.passes);
  return value == nullptr ? nullptr : value->producer;
}

bool matches_all(std::span<const Pattern> patterns, const Node& node, Match& match) {
  for (std::size_t i = 0; i < patterns.size(); ++i) {
    if (!patterns[i](node.input(i), match)) return false;
  }
  return true;
}

}  // namespace

Value* look_through(const Value* value, const NodeTest& passes) {
  while (value != nullptr && value->producer != nullptr && passes(*value->producer)) {
    value = value->producer->input(0);
  }
  return const_cast<Value*>(value);  // NOLINT: what the graph owns, as the caller may change it
}

Value* look_through_identities(const Value* value) {
  return look_through(value, [](const Node& node) { return is_op(&node, "Identity"); });
}

Pattern capture() {
  return [](const Value* value, Match& match) {
    if (value == nullptr) return false;
    if (match.captured == nullptr) match.captured = value;
    return look_through(value, match.passes) == look_through(match.captured, match.passes);
  };
}

Pattern anything() {
  return [](const Value* /*value*/, Match& /*match*/) { return true; };
}

Pattern number(double number) {
  return [number](const Value* value, Match& match) {
    return is_number(look_through(value, match.passes), number);
  };
}

Pattern op(std::string_view op_type, std::vector<Pattern> inputs) {
  return
      [type = std::string(op_type), inputs = std::move(inputs)](const Value* value, Match& match) {
        const Node* node = producer_of(value, match);
        return is_op(node, type) && matches_all(inputs, *node, match);
      };
}

Pattern in_any_order(std::string_view op_type, const Pattern& a, const Pattern& b) {
  return one_of({op(op_type, {a, b}), op(op_type, {b, a})});
}

Pattern one_of(std::vector<Pattern> patterns) {
  return [patterns = std::move(patterns)](const Value* value, Match& match) {
    const Value* const before = match.captured;
    return std::ranges::any_of(patterns, [&](const Pattern& pattern) {
      match.captured = before;  // undo the captures of failed alternatives
      return pattern(value, match);
    });
  };
}

Pattern where(Pattern pattern, NodeTest test) {
  return [pattern = std::move(pattern), test = std::move(test)](const Value* value, Match& match) {
    const Node* node = producer_of(value, match);
    return node != nullptr && pattern(value, match) && test(*node);
  };
}

Value* match(const Pattern& pattern, const Value* value, const NodeTest& passes) {
  Match match{.passes = passes};
  if (value == nullptr || !pattern(value, match)) return nullptr;
  return const_cast<Value*>(match.captured == nullptr ? value : match.captured);  // NOLINT
}

bool is_number(const Value* value, double number) {
  if (value == nullptr || !value->is_initializer()) return false;
  const Tensor& tensor = value->initializer;
  if (!is_floating(tensor.dtype()) || tensor.num_elements() == 0 ||
      tensor.num_elements() > kMaxNumbers) {
    return false;
  }
  return std::ranges::all_of(tensor.to_doubles(),
                             [number](double element) { return element == number; });
}

std::vector<std::int64_t> constant_integers(const Value* value) {
  const bool is_list =
      value != nullptr && value->is_initializer() && is_integer(value->initializer.dtype());
  return is_list ? value->initializer.to_int64s() : std::vector<std::int64_t>{};
}

bool is_op(const Node& node, std::initializer_list<std::string_view> op_types) {
  return node.domain.empty() && std::ranges::find(op_types, node.op_type) != op_types.end();
}

bool is_op(const Node* node, std::string_view op_type) {
  return node != nullptr && node->domain.empty() && node->op_type == op_type;
}

}  // namespace onnxgrad::ir
