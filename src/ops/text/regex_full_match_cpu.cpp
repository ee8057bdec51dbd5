#include <stdexcept>

#include "onnxgrad/error.h"
#include "opdef/kernel.h"
#include "ops/kernel_support.h"
#include "ops/text/regex_program.h"

namespace onnxgrad::ops::regex_full_match_cpu {
namespace {

RegexProgram compile(const ir::Node& node) {
  const std::string pattern = node.string_attribute("pattern", "");
  try {
    return RegexProgram(pattern);
  } catch (const std::invalid_argument& error) {
    throw ModelError({.what = "pattern '" + pattern + "': " + error.what(),
                      .where = {.node = node.name, .op_type = node.op_type},
                      .hint = "Write the pattern in the syntax of RE2, without \\p and \\C."});
  }
}

std::vector<Tensor> run_regex(const opdef::DynamicCall& call) {
  const RegexProgram program = compile(call.node);
  const Tensor& x = call.inputs.at(0);
  Tensor y = Tensor::empty(DataType::kBool, x.dims());
  const auto texts = x.strings();
  auto* out = reinterpret_cast<bool*>(y.mutable_raw());
  for (std::size_t i = 0; i < texts.size(); ++i) out[i] = program.matches(texts[i]);
  return {y};
}

}  // namespace

void register_regex_full_match_cpu(opdef::KernelRegistry& registry) {
  registry.add_dynamic("", "RegexFullMatch", run_regex);
}

}  // namespace onnxgrad::ops::regex_full_match_cpu
