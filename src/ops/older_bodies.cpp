#include "ops/older_bodies.h"

#include <string_view>

#include "ir/builder.h"
#include "opdef/op_def.h"
#include "opdef/registry.h"
#include "ops/nn/pool.h"

namespace onnxgrad::ops {
namespace {

struct OlderBody {
  std::string_view function;
  std::int64_t before;  // first opset that has all operators of the usual body
  opdef::FunctionBodyFn body;
};

constexpr OlderBody kOlderBodies[] = {
    {"MaxPoolGrad", 16, pool_op::max_pool_grad_before_16},  // needs ScatterElements 16
};

}  // namespace

std::optional<ir::Function> older_body(const ir::Node& call, std::int64_t opset) {
  if (call.domain != ir::kFunctionDomain) return std::nullopt;
  const std::string_view name = opdef::base_name(call.domain, call.op_type);
  for (const OlderBody& older : kOlderBodies) {
    if (name == older.function && opset < older.before) {
      return older.body(name, call.inputs, call.attributes);
    }
  }
  return std::nullopt;
}

}  // namespace onnxgrad::ops
