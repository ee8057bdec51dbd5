#include "opdef/registry.h"
#include "ops/rules.h"

// ArgMax and ArgMin: indices, whose gradient is zero wherever it exists.

namespace onnxgrad::ops::arg_extremum_op {

void register_arg_extremum(opdef::OpRegistry& registry) {
  for (const char* op_type : {"ArgMax", "ArgMin"}) {
    registry.add({.op_type = op_type,
                  .since_version = 13,
                  .attributes = {axis_attribute("axis", 0), flag_attribute("keepdims", true),
                                 flag_attribute("select_last_index", false)},
                  .zero_gradient = true});
  }
}

}  // namespace onnxgrad::ops::arg_extremum_op
