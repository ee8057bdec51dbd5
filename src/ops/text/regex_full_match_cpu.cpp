#include <re2/re2.h>

#include "onnxgrad/error.h"
#include "opdef/kernel.h"
#include "ops/kernel_support.h"

namespace onnxgrad::ops::regex_full_match_cpu {
namespace {

std::vector<Tensor> run_regex(const DynamicCall& call) {
  const std::string pattern = call.node.string_attribute("pattern", "");
  const re2::RE2 regex(pattern, re2::RE2::Quiet);
  if (!regex.ok()) {
    throw ModelError({.what = fmt::format("pattern '{}': {}", pattern, regex.error()),
                      .where = {.node = call.node.name, .op_type = call.node.op_type},
                      .hint = "Write the pattern in the syntax of RE2."});
  }
  const Tensor& x = call.inputs.at(0);
  Tensor y = Tensor::empty(DataType::kBool, x.dims());
  const auto texts = x.strings();
  auto* out = reinterpret_cast<bool*>(y.mutable_raw());
  for (std::size_t i = 0; i < texts.size(); ++i) out[i] = re2::RE2::FullMatch(texts[i], regex);
  return {y};
}

}  // namespace

void register_regex_full_match_cpu(opdef::KernelRegistry& registry) {
  registry.add_dynamic("", "RegexFullMatch", run_regex);
}

}  // namespace onnxgrad::ops::regex_full_match_cpu
