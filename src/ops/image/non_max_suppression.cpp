#include "opdef/registry.h"
#include "ops/rules.h"

namespace onnxgrad::ops::non_max_suppression_op {

// Boxes in the order of their scores, but for those that overlap a better one too much: how many is
// known only when it has run. Numbers of boxes have no gradient.
void register_non_max_suppression(opdef::OpRegistry& registry) {
  registry.add({.op_type = "NonMaxSuppression",
                .since_version = 11,
                .attributes = {flag_attribute("center_point_box", false)},
                .zero_gradient = true});
}

}  // namespace onnxgrad::ops::non_max_suppression_op
