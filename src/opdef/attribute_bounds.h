#ifndef ONNXGRAD_OPDEF_ATTRIBUTE_BOUNDS_H_
#define ONNXGRAD_OPDEF_ATTRIBUTE_BOUNDS_H_

#include "ir/graph.h"
#include "opdef/op_def.h"

namespace onnxgrad::opdef {

/// Checks one attribute of `node`, if it has it. Throws: ModelError naming the node, the attribute,
/// its value and its bounds.
void check_attribute(const ir::Node& node, const AttributeSpec& spec);

}  // namespace onnxgrad::opdef

#endif  // ONNXGRAD_OPDEF_ATTRIBUTE_BOUNDS_H_
