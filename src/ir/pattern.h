#ifndef ONNXGRAD_IR_PATTERN_H_
#define ONNXGRAD_IR_PATTERN_H_

#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "ir/graph.h"

// Small patterns of ai.onnx nodes, matched backwards from a value:
//
//   const Pattern x = capture();
//   const Pattern logistic = one_of({op("Sigmoid", {x}),
//                                    op("Reciprocal", {in_any_order("Add", op("Exp", {x}),
//                                    number(1))})});
//   Value* scores = match(logistic, value, is_identity);  // nullptr: no match

namespace onnxgrad::ir {

/// The value found by walking back through nodes that satisfy `passes`, along input 0. nullptr if
/// that is absent.
Value* look_through(const Value* value, const NodeTest& passes);
/// Value that `value` copies through Identity nodes alone.
Value* look_through_identities(const Value* value);

/// A match in progress.
struct Match {
  const NodeTest& passes;           ///< nodes to look through
  const Value* captured = nullptr;  ///< match of capture() so far
};

using Pattern = std::function<bool(const Value* value, Match& match)>;

/// Any value, equal wherever it occurs in a pattern; match() returns it.
Pattern capture();
/// Any value, or none.
Pattern anything();
/// A floating-point constant with at least one element, all equal to `number`.
Pattern number(double number);
/// Output of a node of this operator with these inputs; further inputs are arbitrary.
Pattern op(std::string_view op_type, std::vector<Pattern> inputs);
/// A pattern of a node with two inputs in any order.
Pattern in_any_order(std::string_view op_type, const Pattern& a, const Pattern& b);
/// The first of the patterns that matches.
Pattern one_of(std::vector<Pattern> patterns);
/// `pattern`, if its node also satisfies `test`.
Pattern where(Pattern pattern, NodeTest test);

/// The value that capture() matched; `value` itself if the pattern has none; nullptr: no match.
Value* match(const Pattern& pattern, const Value* value, const NodeTest& passes);

/// True for a floating-point constant with at least one element, all equal to `number`.
bool is_number(const Value* value, double number);

/// The elements of an integer constant; empty if it is not one, or absent.
std::vector<std::int64_t> constant_integers(const Value* value);

/// True for a node of ai.onnx with one of these operators.
bool is_op(const Node& node, std::initializer_list<std::string_view> op_types);
bool is_op(const Node* node, std::string_view op_type);

}  // namespace onnxgrad::ir

#endif  // ONNXGRAD_IR_PATTERN_H_
