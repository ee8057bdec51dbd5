#include "feeder.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "moves.h"

namespace onnxgrad::fuzz {
namespace {

constexpr std::int64_t kMaxFeedElements = 1 << 14;
constexpr std::int64_t kOpenDim = 2;

}  // namespace

NamedTensors Feeder::feeds(const std::vector<ValueInfo>& inputs) {
  NamedTensors made;
  for (const ValueInfo& input : inputs) made.push_back({input.name, feed(input)});
  return made;
}

Tensor Feeder::feed(const ValueInfo& info) {
  const Dims dims = dims_of(info, /*hostile=*/false);
  if (info.dtype == DataType::kString) {
    const auto count = static_cast<std::size_t>(dims.num_elements());
    return Tensor::from_strings(std::vector<std::string>(count, "a"), dims);
  }
  const bool is_whole = !is_floating(info.dtype);
  Tensor numbers = Tensor::zeros(DataType::kFloat64, dims);
  for (double& number : numbers.mutable_data<double>()) {
    const auto draw = static_cast<double>(random_.below(1000));
    const std::size_t range = odd_ && random_.one_in(50) ? 1000 : 2;
    number = is_whole ? static_cast<double>(random_.below(range)) : draw / 500 - 1;
  }
  const bool is_known = is_whole
                            ? is_integer(info.dtype) || info.dtype == DataType::kBool
                            : info.dtype == DataType::kFloat32 || info.dtype == DataType::kFloat64;
  return is_known ? numbers.cast(info.dtype) : Tensor::zeros(info.dtype, dims);
}

NamedTensors Feeder::hostile_feeds(const std::vector<ValueInfo>& inputs) {
  NamedTensors made = feeds(inputs);
  for (std::size_t i = 0; i < made.size(); ++i) {
    Tensor& tensor = made[i].tensor;
    if (tensor.dtype() == DataType::kString) continue;
    if (random_.one_in(2)) {
      const Dims dims = dims_of(inputs[i], /*hostile=*/true);
      if (dims != tensor.dims()) tensor = Tensor::zeros(tensor.dtype(), dims);
    }
    if (tensor.num_elements() == 0) continue;
    if (is_integer(tensor.dtype())) set_limits(tensor);
    if (is_floating(tensor.dtype()) && random_.one_in(4)) set_odd_numbers(tensor);
  }
  return made;
}

void Feeder::set_limits(Tensor& tensor) {
  if (random_.one_in(4)) return;
  const std::size_t bytes = integer_bytes(static_cast<int>(tensor.dtype()));
  if (bytes == 0) return;
  const bool is_unsigned = static_cast<int>(tensor.dtype()) == 2 ||
                           std::string(dtype_name(tensor.dtype())).starts_with("uint");
  const auto count = static_cast<std::size_t>(tensor.num_elements());
  const bool all = random_.one_in(2);
  const std::uint64_t bits = limit_bits(bytes, is_unsigned, random_);
  const std::size_t one = random_.below(count);
  for (std::size_t i = 0; i < count; ++i) {
    if (all || i == one) std::memcpy(tensor.mutable_raw() + i * bytes, &bits, bytes);
  }
}

void Feeder::set_odd_numbers(Tensor& tensor) {
  static const std::vector<double> numbers = {std::numeric_limits<double>::infinity(),
                                              -std::numeric_limits<double>::infinity(),
                                              std::numeric_limits<double>::quiet_NaN(),
                                              1e300,
                                              -3e38,
                                              9.3e18,
                                              0};
  if (tensor.dtype() != DataType::kFloat32 && tensor.dtype() != DataType::kFloat64) return;
  Tensor wide = tensor.cast(DataType::kFloat64);
  for (double& number : wide.mutable_data<double>()) {
    if (random_.one_in(3)) number = random_.pick(numbers);
  }
  tensor = wide.cast(tensor.dtype());
}

Dims Feeder::dims_of(const ValueInfo& info, bool hostile) {
  const auto same = std::ranges::find(seed_.inputs, info.name, &ValueInfo::name);
  const bool is_of_seed = same != seed_.inputs.end() && same->shape;
  const std::vector<Dimension> open(is_of_seed ? same->shape->size()
                                    : hostile  ? random_.below(3)
                                               : 2);
  const std::vector<Dimension>& shape = info.shape ? *info.shape : open;
  std::vector<std::int64_t> dims;
  std::int64_t elements = 1;
  for (std::size_t axis = 0; axis < shape.size(); ++axis) {
    std::int64_t value = hostile ? static_cast<std::int64_t>(random_.below(4)) : kOpenDim;
    if (!hostile && is_of_seed && axis < same->shape->size() && (*same->shape)[axis].is_fixed()) {
      value = (*same->shape)[axis].value;
    }
    if (shape[axis].is_fixed()) value = shape[axis].value;
    value = std::min(value, kMaxFeedElements / std::max<std::int64_t>(elements, 1));
    elements *= value;
    dims.push_back(value);
  }
  return Dims(std::move(dims));
}

}  // namespace onnxgrad::fuzz
