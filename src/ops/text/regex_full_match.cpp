#include "opdef/registry.h"
#include "ops/rules.h"

namespace onnxgrad::ops::regex_full_match_op {

// RegexFullMatch: y is true if the whole string matches the pattern.
void register_regex_full_match(opdef::OpRegistry& registry) {
  registry.add({.op_type = "RegexFullMatch",
                .since_version = 20,
                .attributes = {{.name = "pattern", .type = AttributeType::kString}},
                .zero_gradient = true});
}

}  // namespace onnxgrad::ops::regex_full_match_op
