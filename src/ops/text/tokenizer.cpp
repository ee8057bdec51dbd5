#include "ops/contrib/contrib.h"

// Tokenizer (com.microsoft 1, onnxruntime's ContribOperators.md): maps strings [C] or [N, C] to
// their tokens, with one more axis; it has no gradient. Its types: onnx/contrib_schemas.cpp.

namespace onnxgrad::ops::tokenizer_op {

void register_tokenizer(opdef::OpRegistry& registry) {
  using opdef::AttributeType;
  registry.add(
      {.domain = kMicrosoft,
       .op_type = "Tokenizer",
       .since_version = 1,
       .attributes =
           {{.name = "mark", .type = AttributeType::kInt, .required = true},
            {.name = "mincharnum", .type = AttributeType::kInt, .required = true, .min = 1},
            {.name = "pad_value", .type = AttributeType::kString, .required = true},
            {.name = "separators", .type = AttributeType::kStrings, .min_count = 1},
            {.name = "tokenexp", .type = AttributeType::kString}},
       .zero_gradient = true});
}

}  // namespace onnxgrad::ops::tokenizer_op
