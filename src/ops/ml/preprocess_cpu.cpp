#include <algorithm>
#include <cmath>
#include <string>

#include "opdef/registry.h"
#include "ops/kernel_support.h"

// The plain kernel of Normalizer: rows of any number type, results in float32, sums in double.

namespace onnxgrad::ops {

using opdef::KernelOffer;
using opdef::KernelRequest;
using opdef::Launch;

namespace {

enum class Norm : std::uint8_t { kMax, kL1, kL2 };

struct NormalizerTask {
  Norm norm = Norm::kMax;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
};

template <class T>
double row_size(const T* x, const NormalizerTask& task) {
  double size = task.norm == Norm::kMax ? static_cast<double>(x[0]) : 0;
  for (std::int64_t i = 0; i < task.columns; ++i) {
    const auto number = static_cast<double>(x[i]);
    if (task.norm == Norm::kL1)
      size += std::abs(number);
    else if (task.norm == Norm::kL2)
      size += number * number;
    else
      size = std::max(size, number);
  }
  return task.norm == Norm::kL2 ? std::sqrt(size) : size;
}

template <class T>
void run_normalizer(const void* data, std::byte* const* args, const Launch&) {
  const auto& task = *static_cast<const NormalizerTask*>(data);
  const T* x = reinterpret_cast<const T*>(args[0]);
  auto* y = reinterpret_cast<float*>(args[1]);
  if (task.columns == 0) return;
  for (std::int64_t row = 0; row < task.rows; ++row, x += task.columns, y += task.columns) {
    const double size = row_size(x, task);
    const double divisor = size == 0 ? 1 : size;
    for (std::int64_t i = 0; i < task.columns; ++i) {
      y[i] = static_cast<float>(static_cast<double>(x[i]) / divisor);
    }
  }
}

KernelOffer offer_normalizer(const KernelRequest& request) {
  const Dims& dims = request.inputs[0].dims;
  if (dims.rank() < 1 || dims.rank() > 2) return KernelOffer::decline("takes [N, C] or [C] only");
  const std::string norm = request.node.string_attribute("norm", "MAX");
  const NormalizerTask task{.norm = norm == "L1"   ? Norm::kL1
                                    : norm == "L2" ? Norm::kL2
                                                   : Norm::kMax,
                            .rows = dims.rank() == 2 ? dims[0] : 1,
                            .columns = dims[dims.rank() - 1]};
  switch (request.inputs[0].dtype) {
    case DataType::kFloat32:
      return prepared(run_normalizer<float>, task, "reference");
    case DataType::kFloat64:
      return prepared(run_normalizer<double>, task, "reference");
    case DataType::kInt64:
      return prepared(run_normalizer<std::int64_t>, task, "reference");
    case DataType::kInt32:
      return prepared(run_normalizer<std::int32_t>, task, "reference");
    default:
      return decline_dtype(request, request.inputs[0].dtype);
  }
}

}  // namespace

void register_preprocess_cpu(opdef::KernelRegistry& registry) {
  registry.add("ai.onnx.ml", "Normalizer", 0, offer_normalizer);
}

}  // namespace onnxgrad::ops
