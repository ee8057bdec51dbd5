#ifndef ONNXGRAD_TRAIN_TRANSFER_WIDTH_RULES_H_
#define ONNXGRAD_TRAIN_TRANSFER_WIDTH_RULES_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "train/transfer/width_change.h"

// Rules of operators that move elements, and what all rules share.

namespace onnxgrad::train::width_rules {

using Integers = std::vector<std::int64_t>;

/// "Slice node 'pick' <why>".
std::string refuse(const ir::Node& node, std::string_view why);

/// The elements of an integer constant; empty if it is none.
Integers integers_of(const ir::Value* value);

/// An axis counted from the first.
std::int64_t positive(std::int64_t axis, std::int64_t rank);

/// Carries the outputs: they depend on the scores, but have no axis of classes. Returns "".
std::string carry_rest(ir::Node& node, WidthChange& change, bool is_label = false);

/// The state of the first input that is carried.
const Carried& carried_of(const ir::Node& node, const WidthChange& change);

/// For operators that change elements one by one, or along any axis.
std::string pass_same(ir::Node& node, WidthChange& change);

std::string pass_transpose(ir::Node& node, WidthChange& change);
std::string pass_squeeze(ir::Node& node, WidthChange& change);
std::string pass_unsqueeze(ir::Node& node, WidthChange& change);
std::string pass_reduction(ir::Node& node, WidthChange& change);
std::string pass_flatten(ir::Node& node, WidthChange& change);
std::string pass_reshape(ir::Node& node, WidthChange& change);

}  // namespace onnxgrad::train::width_rules

#endif  // ONNXGRAD_TRAIN_TRANSFER_WIDTH_RULES_H_
