#ifndef ONNXGRAD_IR_PATTERN_H_
#define ONNXGRAD_IR_PATTERN_H_

#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "ir/graph.h"

// Small patterns of ai.onnx nodes, read backwards from a value:
//
//   const Pattern x = capture();
//   const Pattern logistic = one_of({op("Sigmoid", {x}),
//                                    op("Reciprocal", {in_any_order("Add", op("Exp", {x}),
//                                    number(1))})});
//   Value* scores = match(logistic, value, is_identity);  // nullptr: it is none

namespace onnxgrad::ir {

/// The value behind the nodes that pass `passes`: their input 0 stands for them. nullptr if that is
/// absent.
Value* look_through(const Value* value, const NodeTest& passes);

/// A match under way.
struct Match {
  const NodeTest& passes;           ///< nodes that are looked through
  const Value* captured = nullptr;  ///< what capture() stood for so far
};

using Pattern = std::function<bool(const Value* value, Match& match)>;

/// Any value, and the same one wherever it stands in a pattern: what match() gives back.
Pattern capture();
/// Any value, or none.
Pattern anything();
/// A floating-point constant of one element or more, which all are `number`.
Pattern number(double number);
/// Output of a node of this operator with these inputs; further ones may be anything.
Pattern op(std::string_view op_type, std::vector<Pattern> inputs);
/// The same of two inputs, whichever comes first.
Pattern in_any_order(std::string_view op_type, const Pattern& a, const Pattern& b);
/// The first that matches.
Pattern one_of(std::vector<Pattern> patterns);
/// `pattern`, where its node also passes `test`.
Pattern where(Pattern pattern, NodeTest test);

/// The value that capture() stood for; `value` itself if the pattern has none; nullptr: no match.
Value* match(const Pattern& pattern, const Value* value, const NodeTest& passes);

/// True for a floating-point constant whose elements all are `number` (and there is one at least).
bool is_number(const Value* value, double number);

/// The elements of an integer constant; empty if it is none, or absent.
std::vector<std::int64_t> constant_integers(const Value* value);

/// True for a node of ai.onnx with one of these names.
bool is_op(const Node& node, std::initializer_list<std::string_view> op_types);
bool is_op(const Node* node, std::string_view op_type);

}  // namespace onnxgrad::ir

#endif  // ONNXGRAD_IR_PATTERN_H_
