#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "ir/builder.h"
#include "opdef/fused.h"
#include "ops/block_text_cuda.h"
#include "ops/kernel_support.h"
#include "ops/kernel_support_cuda.h"

// onnxgrad.fused.LinearStep in one block: a step of a linear model is one launch.

namespace onnxgrad::ops::linear_step_cuda {
namespace {

using device::cuda::Word;

constexpr std::int64_t kMostRows = 1024;
constexpr std::int64_t kMostFeatures = 4096;

// Words: X, w, b, y, rate, loss, w', b', residuals (scratch); rows, features; bias, target, shift,
// factor of the loss, step of w, step of b. Threads with one threadIdx.y compute a row; a weight is
// written by one thread, since it may be in place.
constexpr const char* kText = R"(
OG_KERNEL(og_main, 17) {
  const og_t* const x = a.pointer<og_t>(0);
  const og_t* const w = a.pointer<og_t>(1);
  const og_t* const y = a.pointer<og_t>(3);
  double* const z = a.pointer<double>(8);
  const og_i64 rows = a.integer(9), features = a.integer(10);
  const double rate = a.pointer<og_t>(4) == 0 ? 1 : (double)*a.pointer<og_t>(4);
  const double bias = a.pointer<og_t>(2) == 0 ? 0 : (double)*a.pointer<og_t>(2);
  double squares = 0, sum = 0;
  for (og_i64 row = threadIdx.y; row < rows; row += blockDim.y) {
    double value = a.real(11) * bias + a.real(12) * (double)y[row] + a.real(13);
    for (og_i64 k = 0; k < features; ++k) value += (double)x[row * features + k] * (double)w[k];
    z[row] = value;
    squares += value * value;
    sum += value;
  }
  og_fold_two<og_sum>(squares, sum);
  const og_i64 thread = threadIdx.y * blockDim.x + threadIdx.x;
  if (thread == 0) {
    *a.pointer<og_t>(5) = (og_t)(a.real(14) * squares);
    if (a.pointer<og_t>(7) != 0) *a.pointer<og_t>(7) = (og_t)(bias + a.real(16) * rate * sum);
  }
  for (og_i64 k = thread; k < features; k += blockDim.x * blockDim.y) {
    double slope = 0;
    for (og_i64 row = 0; row < rows; ++row) slope += (double)x[row * features + k] * z[row];
    a.pointer<og_t>(6)[k] = (og_t)((double)w[k] + a.real(15) * rate * slope);
  }
}
)";

KernelOffer offer_step(const KernelRequest& request) {
  const DataType dtype = request.inputs[0].dtype;
  if (dtype != DataType::kFloat32 && dtype != DataType::kFloat64) {
    return decline_dtype(request, dtype);
  }
  for (const auto* list : {&request.inputs, &request.outputs}) {
    for (const TensorDesc& desc : *list) {
      if (desc.is_present() && desc.dtype != dtype) return decline_dtype(request, desc.dtype);
    }
  }
  const std::int64_t features = request.inputs[1].dims.num_elements();
  const std::int64_t rows = request.inputs[3].dims.num_elements();
  if (rows > kMostRows || features > kMostFeatures) {
    return KernelOffer::decline("more than one block computes fast");
  }
  const auto op = opdef::LinearStep::read(request.node);
  const auto first = static_cast<int>(request.inputs.size());
  const auto scratch = first + static_cast<int>(request.outputs.size());
  std::vector<Word> words{Word::argument(0),
                          Word::argument(1),
                          optional_argument(request.has_input(2) ? 2 : -1),
                          Word::argument(3),
                          optional_argument(request.has_input(4) ? 4 : -1),
                          Word::argument(first),
                          Word::argument(first + 1),
                          optional_argument(request.has_output(2) ? first + 2 : -1),
                          Word::argument(scratch)};
  add_integers(words, {rows, features});
  for (const double real :
       {op.bias, op.target, op.shift, op.loss_scale, op.weight_step, op.bias_step}) {
    words.push_back(Word::of(real));
  }
  KernelOffer offer;
  offer.kernel = prepared(
      column_kernel(request, {.count = 1, .length = std::max(rows, features)},
                    typedefs({{"og_t", text_type(dtype)}}) + kText, "og_main", std::move(words)),
      "one block", 4.0 * static_cast<double>(rows * features));
  offer.kernel.scratch_bytes = std::max<std::int64_t>(rows, 1) * 8;
  // Each weight is read for the last time by the thread that writes it, after a barrier.
  offer.kernel.in_place = {{1, 1}, {2, 2}};
  return offer;
}

}  // namespace

void register_linear_step_cuda(opdef::KernelRegistry& registry) {
  registry.add(ir::kFusedDomain, opdef::kLinearStep, 0, offer_step);
}

}  // namespace onnxgrad::ops::linear_step_cuda
