#include <string_view>
#include <utility>
#include <vector>

#include "opdef/function_body.h"
#include "opdef/guarded_update.h"
#include "opdef/registry.h"
#include "ops/rules.h"

// FaultSum: the sum of x * 0, which is 0 if all elements of x are finite, else NaN.

namespace onnxgrad::ops::fault_sum_op {
namespace {

ir::Function fault_sum_body(std::string_view base_name, const std::vector<Value*>& /*inputs*/,
                            const std::vector<ir::Attribute>& attributes) {
  opdef::FunctionBody f(base_name, "all", attributes);
  Value* x = f.input("x");
  Value* zeros = f.mul(x, f.scalar_like(x, 0));
  Value* sum = f.reduce_sum(zeros, {}, /*keepdims=*/false);
  return std::move(f).finish({f.cast(sum, DataType::kFloat32)});
}

}  // namespace

void register_fault_sum(opdef::OpRegistry& registry) {
  registry.add({.domain = ir::kFunctionDomain,
                .op_type = opdef::kFaultSum,
                .function_body = fault_sum_body});
}

}  // namespace onnxgrad::ops::fault_sum_op
