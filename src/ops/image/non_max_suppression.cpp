#include "opdef/registry.h"
#include "ops/rules.h"

namespace onnxgrad::ops::non_max_suppression_op {

// NonMaxSuppression: box indices in the order of their scores, without boxes that overlap a better
// one too much. The number of results depends on data. Indices have no gradient.
void register_non_max_suppression(opdef::OpRegistry& registry) {
  registry.add({.op_type = "NonMaxSuppression",
                .since_version = 11,
                .attributes = {flag_attribute("center_point_box", false)},
                .zero_gradient = true});
}

}  // namespace onnxgrad::ops::non_max_suppression_op
