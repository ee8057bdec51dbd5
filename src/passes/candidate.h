#ifndef ONNXGRAD_PASSES_CANDIDATE_H_
#define ONNXGRAD_PASSES_CANDIDATE_H_

#include <string_view>
#include <utility>
#include <vector>

#include "ir/builder.h"
#include "ir/graph.h"

// A fused node before it is made: in no graph, so that a device can be asked for it
// (PassContext::prefers) and nothing has to be undone if it has none.

namespace onnxgrad::passes {

/// Makes a node of domain `onnxgrad.fused` that is in no graph. `name` is for messages.
inline ir::Node candidate(std::string_view op_type, std::vector<ir::Value*> inputs,
                          std::vector<ir::Value*> outputs, std::vector<ir::Attribute> attributes,
                          std::string_view name) {
  ir::Node node;
  node.name = name;
  node.domain = ir::kFusedDomain;
  node.op_type = op_type;
  node.inputs = std::move(inputs);
  node.outputs = std::move(outputs);
  node.attributes = std::move(attributes);
  return node;
}

/// Makes a result of a candidate that no graph has yet.
inline ir::Value candidate_value(ir::Type type) {
  ir::Value value;
  value.type = std::move(type);
  return value;
}

}  // namespace onnxgrad::passes

#endif  // ONNXGRAD_PASSES_CANDIDATE_H_
