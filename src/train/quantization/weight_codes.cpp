#include "train/quantization/weight_codes.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "ops/quantize/small_types.h"

namespace onnxgrad::train {
namespace {

constexpr double kSmallestScale = 1e-12;  // of groups of zeros
constexpr int kScaleTries = 60;           // ranges that are compared, by hundredths

/// The group of each element.
class Groups {
 public:
  Groups(const Dims& dims, const ScaleLayout& layout) : kind_(layout.groups) {
    if (kind_ == ScaleGroups::kTensor) return;
    const auto axis = static_cast<std::size_t>(layout.axis);
    size_ = dims[axis];
    inner_ = dims.product(axis + 1, dims.rank());
    block_ = kind_ == ScaleGroups::kBlock ? layout.block_size : 1;
    blocks_ = (size_ + block_ - 1) / block_;
    std::vector<std::int64_t> shape(dims.begin(), dims.end());
    shape[axis] = blocks_;
    dims_ = kind_ == ScaleGroups::kBlock ? Dims(shape) : Dims{size_};
  }
  const Dims& dims() const { return dims_; }
  std::size_t of(std::int64_t i) const {
    if (kind_ == ScaleGroups::kTensor) return 0;
    const std::int64_t place = i / inner_ % size_;
    if (kind_ == ScaleGroups::kChannel) return static_cast<std::size_t>(place);
    const std::int64_t outer = i / inner_ / size_;
    return static_cast<std::size_t>((outer * blocks_ + place / block_) * inner_ + i % inner_);
  }

 private:
  ScaleGroups kind_;
  std::int64_t size_ = 1;
  std::int64_t inner_ = 1;
  std::int64_t block_ = 1;
  std::int64_t blocks_ = 1;
  Dims dims_ = {};
};

double squared_error(const std::vector<double>& numbers, double scale, double largest) {
  double sum = 0;
  for (const double number : numbers) {
    const double code = std::clamp(std::nearbyint(number / scale), -largest - 1, largest);
    sum += (number - code * scale) * (number - code * scale);
  }
  return sum;
}

double scale_of(const std::vector<double>& numbers, DataType dtype) {
  const auto largest = static_cast<double>(largest_code(dtype));
  double reach = 0;
  for (const double number : numbers) reach = std::max(reach, std::fabs(number));
  const double widest = std::max(reach / largest, kSmallestScale);
  if (dtype == DataType::kInt8 || reach == 0) return widest;
  double found = widest;
  double least = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kScaleTries; ++i) {
    const double scale = widest * (1 - 0.01 * i);
    const double error = squared_error(numbers, scale, largest);
    if (error < least) {
      least = error;
      found = scale;
    }
  }
  return found;
}

Tensor packed(const std::vector<double>& codes, DataType dtype, const Dims& dims) {
  Tensor tensor = Tensor::zeros(dtype, dims);
  for (std::size_t i = 0; i < codes.size(); ++i) {
    ops::store_small(dtype, tensor.mutable_raw(), static_cast<std::int64_t>(i),
                     static_cast<float>(codes[i]), /*saturate=*/true);
  }
  return tensor;
}

}  // namespace

std::int64_t largest_code(DataType dtype) { return dtype == DataType::kInt4 ? 7 : 127; }

WeightCodes weight_codes(const Tensor& weight, DataType dtype, const ScaleLayout& layout) {
  const std::vector<double> numbers = weight.to_doubles();
  const Groups groups(weight.dims(), layout);
  std::vector<std::vector<double>> members(static_cast<std::size_t>(groups.dims().num_elements()));
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    members[groups.of(static_cast<std::int64_t>(i))].push_back(numbers[i]);
  }
  std::vector<double> scales;
  for (const std::vector<double>& group : members) scales.push_back(scale_of(group, dtype));
  WeightCodes result;
  result.scale = Tensor::from(scales, groups.dims()).cast(weight.dtype());
  result.zero = Tensor::zeros(dtype, groups.dims());
  const std::vector<double> rounded = result.scale.to_doubles();  // as it is stored
  std::vector<double> codes(numbers.size());
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    codes[i] = std::nearbyint(numbers[i] / rounded[groups.of(static_cast<std::int64_t>(i))]);
  }
  result.codes = packed(codes, dtype, weight.dims());
  return result;
}

}  // namespace onnxgrad::train
