#include "opdef/registry.h"
#include "ops/rules.h"

// StringConcat, StringSplit and StringNormalizer, which have no gradient.

namespace onnxgrad::ops::strings_op {

void register_strings(opdef::OpRegistry& registry) {
  registry.add({.op_type = "StringConcat", .since_version = 20, .zero_gradient = true});
  registry.add({.op_type = "StringSplit",
                .since_version = 20,
                .attributes = {{.name = "delimiter", .type = AttributeType::kString},
                               {.name = "maxsplit", .type = AttributeType::kInt, .min = 0}},
                .zero_gradient = true});
  registry.add({.op_type = "StringNormalizer",
                .since_version = 10,
                .attributes = {choice_attribute("case_change_action", {"NONE", "LOWER", "UPPER"}),
                               flag_attribute("is_case_sensitive", false),
                               {.name = "locale", .type = AttributeType::kString},
                               {.name = "stopwords", .type = AttributeType::kStrings}},
                .zero_gradient = true});
}

}  // namespace onnxgrad::ops::strings_op
