#include "ir/stored_form.h"

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/check.h"

namespace onnxgrad::ir {

Tensor stored_form(const Tensor& weight, const WeightOrigin& origin, const Dims& dims) {
  if (origin.index.empty()) return weight;
  const std::size_t count = origin.index.size();
  ONNXGRAD_ASSERT(static_cast<std::int64_t>(count) == dims.num_elements());
  ONNXGRAD_ASSERT(origin.factor.empty() || origin.factor.size() == count);
  const std::vector<double> numbers = weight.to_doubles();
  std::vector<double> stored(count);
  for (std::size_t i = 0; i < count; ++i) {
    ONNXGRAD_ASSERT(origin.index[i] >= 0);
    const auto from = static_cast<std::size_t>(origin.index[i]);
    ONNXGRAD_ASSERT(from < numbers.size());
    const double factor = origin.factor.empty() ? 1.0 : static_cast<double>(origin.factor[i]);
    stored[i] = factor * numbers[from];
  }
  return Tensor::from(stored, dims).cast(weight.dtype());
}

}  // namespace onnxgrad::ir
