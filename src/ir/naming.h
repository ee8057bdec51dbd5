#ifndef ONNXGRAD_IR_NAMING_H_
#define ONNXGRAD_IR_NAMING_H_

#include <string_view>

#include "ir/graph.h"

namespace onnxgrad::ir {

/// Gives `value` the name that users know it by ("loss", "<weight>_grad"). An inner value of
/// `graph`, the main graph, or of a subgraph that has this name is renamed; an input, output or
/// initializer keeps it, and `value` becomes wanted_1. Graph::add_input names new inputs by the
/// same rule.
void give_name(Graph& graph, Value* value, std::string_view wanted);

}  // namespace onnxgrad::ir

#endif  // ONNXGRAD_IR_NAMING_H_
