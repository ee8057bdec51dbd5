#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "ops/math/product_cuda.h"

namespace onnxgrad::ops::matmul_cuda {
namespace {

constexpr std::size_t kMostAxes = 3;

// Adds an axis inside the others; merges it with the one before if steps go on evenly.
void add_axis(std::vector<ProductTask::Axis>& axes, const ProductTask::Axis& axis) {
  if (axis.size == 1) return;
  if (!axes.empty() && axes.back().a_step == axis.size * axis.a_step &&
      axes.back().b_step == axis.size * axis.b_step) {
    const std::int64_t size = axes.back().size * axis.size;
    axes.back() = axis;
    axes.back().size = size;
    return;
  }
  axes.push_back(axis);
}

// [..., m, k] x [..., k, n] with broadcast batch axes; a vector is a row (A) or a column (B).
std::optional<ProductTask> task_of(const Dims& a, const Dims& b) {
  if (a.rank() == 0 || b.rank() == 0) return std::nullopt;
  ProductTask task;
  task.k = a[a.rank() - 1];
  task.m = a.rank() > 1 ? a[a.rank() - 2] : 1;
  task.n = b.rank() > 1 ? b[b.rank() - 1] : 1;
  if (b[b.rank() > 1 ? b.rank() - 2 : 0] != task.k) return std::nullopt;
  const std::size_t a_axes = a.rank() > 2 ? a.rank() - 2 : 0;
  const std::size_t b_axes = b.rank() > 2 ? b.rank() - 2 : 0;
  if (b.product(0, b_axes) == 1 && a.rank() > 1 && a_axes >= b_axes) {
    task.m *= a.product(0, a_axes);  // one product
    return task;
  }
  const std::size_t rank = std::max(a_axes, b_axes);
  const auto size_of = [&](const Dims& dims, std::size_t axes, std::size_t i) {
    return i + axes < rank ? std::int64_t{1} : dims[i + axes - rank];
  };
  const auto step_of = [&](const Dims& dims, std::size_t axes, std::size_t i) {
    if (size_of(dims, axes, i) == 1) return std::int64_t{0};
    return dims.product(i + axes - rank + 1, axes);
  };
  for (std::size_t i = 0; i < rank; ++i) {
    const std::int64_t of_a = size_of(a, a_axes, i);
    const std::int64_t of_b = size_of(b, b_axes, i);
    add_axis(task.batch, {.size = of_a == 1 ? of_b : of_a,
                          .a_step = step_of(a, a_axes, i),
                          .b_step = step_of(b, b_axes, i)});
  }
  if (task.batch.size() > kMostAxes) return std::nullopt;
  return task;
}

opdef::KernelOffer offer_matmul(const opdef::KernelRequest& request) {
  const auto task = task_of(request.inputs[0].dims, request.inputs[1].dims);
  if (!task) return opdef::KernelOffer::decline("shapes that do not match, or many batch axes");
  return offer_product(request, *task);
}

}  // namespace

void register_matmul_cuda(opdef::KernelRegistry& registry) {
  registry.add("", "MatMul", 0, offer_matmul);
}

}  // namespace onnxgrad::ops::matmul_cuda
