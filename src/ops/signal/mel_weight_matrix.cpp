#include "opdef/registry.h"

namespace onnxgrad::ops::mel_weight_matrix_op {

// MelWeightMatrix: the inputs are scalars without gradient, since bins are discrete; its kernel has
// the formula.
void register_mel_weight_matrix(opdef::OpRegistry& registry) {
  registry.add(
      {.op_type = "MelWeightMatrix",
       .since_version = 17,
       .attributes =
           {{.name = "output_datatype", .min = 1, .max = 16, .default_value = std::int64_t{1}}},
       .planned_inputs = {0, 1, 2, 3, 4},
       .zero_gradient = true});
}

}  // namespace onnxgrad::ops::mel_weight_matrix_op
