#include "train/optimizers/lbfgs_loop.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace onnxgrad::train {
namespace {

std::int64_t count_elements(std::span<const Tensor> tensors) {
  std::int64_t count = 0;
  for (const Tensor& tensor : tensors) count += tensor.num_elements();
  return count;
}

void read(const Tensor& tensor, std::span<double> to) {
  if (tensor.dtype() == DataType::kFloat64) {
    std::ranges::copy(tensor.data<double>(), to.begin());
  } else if (tensor.dtype() == DataType::kFloat32) {
    std::ranges::copy(tensor.data<float>(), to.begin());
  } else {
    std::ranges::copy(tensor.to_doubles(), to.begin());
  }
}

void write(std::span<const double> from, Tensor& tensor) {
  if (tensor.dtype() == DataType::kFloat64) {
    std::ranges::copy(from, tensor.mutable_data<double>().begin());
  } else if (tensor.dtype() == DataType::kFloat32) {
    std::ranges::transform(from, tensor.mutable_data<float>().begin(),
                           [](double x) { return static_cast<float>(x); });
  } else {
    const Tensor converted = Tensor::from(from, tensor.dims()).cast(tensor.dtype());
    std::memcpy(tensor.mutable_raw(), converted.raw(),
                static_cast<std::size_t>(tensor.size_bytes()));
  }
}

}  // namespace

LbfgsLoop::LbfgsLoop(const Lbfgs& spec, std::span<const Tensor> weights, std::size_t first_gradient)
    : weights_(weights.begin(), weights.end()),
      first_gradient_(first_gradient),
      solver_(spec, count_elements(weights)),
      x_(static_cast<std::size_t>(count_elements(weights))) {}

double LbfgsLoop::step(runtime::Execution& execution, double learning_rate) {
  const auto each_weight = [&](const auto& visit) {
    std::size_t begin = 0;
    for (std::size_t i = 0; i < weights_.size(); ++i) {
      const auto count = static_cast<std::size_t>(weights_[i].num_elements());
      visit(i, begin, count);
      begin += count;
    }
  };
  const auto set_weights = [&](std::span<const double> x) {
    each_weight([&](std::size_t i, std::size_t begin, std::size_t count) {
      write(x.subspan(begin, count), weights_[i]);
    });
  };
  const auto loss = [&](std::span<const double> x, std::span<double> gradient) {
    set_weights(x);
    execution.run();
    each_weight([&](std::size_t i, std::size_t begin, std::size_t count) {
      read(execution.output_tensor(first_gradient_ + i), gradient.subspan(begin, count));
    });
    return execution.output_tensor(0).to_doubles().front();
  };
  each_weight([&](std::size_t i, std::size_t begin, std::size_t count) {
    read(weights_[i], std::span(x_).subspan(begin, count));
  });
  const double first_loss = solver_.step(loss, learning_rate, x_);
  set_weights(x_);
  return first_loss;
}

}  // namespace onnxgrad::train
