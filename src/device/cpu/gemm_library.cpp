#include <dnnl.h>

#include <algorithm>

#include "device/cpu/gemm_plan.h"
#include "device/cpu/thread_count.h"

namespace onnxgrad::device {

void run_library(const void* data, const GemmOperands& operands) {
  const auto& plan = *static_cast<const GemmPlan<float>*>(data);
  const std::int64_t size = plan.m * plan.n;
  auto* c = static_cast<float*>(operands.c);
  const auto* start = static_cast<const float*>(operands.start);
  if (plan.start == GemmStart::kRow) {
    for (std::int64_t i = 0; i < plan.m; ++i) std::copy_n(start, plan.n, c + i * plan.n);
  } else if (plan.start == GemmStart::kMatrix && start != c) {
    std::copy_n(start, size, c);
  }
  const ThreadCount threads(plan.threads);
  dnnl_sgemm(plan.transpose_a ? 'T' : 'N', plan.transpose_b ? 'T' : 'N', plan.m, plan.n, plan.k,
             plan.alpha * static_cast<float>(operands.factor),
             static_cast<const float*>(operands.a), plan.transpose_a ? plan.m : plan.k,
             static_cast<const float*>(operands.b), plan.transpose_b ? plan.k : plan.n,
             plan.start == GemmStart::kZero ? 0.0F : 1.0F, c, plan.n);
  if (plan.finish == GemmFinish::kRelu) {
    for (std::int64_t i = 0; i < size; ++i) c[i] = c[i] < 0 ? 0.0F : c[i];
  }
}

}  // namespace onnxgrad::device
