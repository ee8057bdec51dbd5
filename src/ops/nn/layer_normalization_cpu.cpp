#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <concepts>
#include <string>
#include <utility>
#include <vector>

#include "ops/kernel_support.h"
#include "ops/nn/window.h"

// Reference kernels of LayerNormalization and its gradient; fused_layer_norm_cpu.cpp has the SIMD
// kernels. x: [rows, size], where size is the product of the normalised axes; scale and bias
// broadcast to x.

namespace onnxgrad::ops::layer_normalization_cpu {

namespace {

// Offsets into an operand that broadcasts to x, for x's elements in order.
class BroadcastWalk {
 public:
  BroadcastWalk() = default;
  // Throws: ShapeError if `operand` does not broadcast to `x`.
  BroadcastWalk(const Dims& x, const Dims& operand) {
    if (broadcast_dims(x, operand) != x) {
      throw ShapeError(
          {.what = "shape " + operand.to_string() + " does not broadcast to " + x.to_string(),
           .hint = "Give it the shape of the normalised axes."});
    }
    const auto strides = operand.strides();
    for (std::size_t i = 0; i < x.rank(); ++i) {
      const std::size_t lead = x.rank() - operand.rank();
      const bool repeats = i < lead || operand[i - lead] == 1;
      axes_.push_back({.size = x[i], .stride = repeats ? 0 : strides[i - lead]});
    }
  }

  // Returns the offset for x's element `index`.
  std::int64_t at(std::int64_t index) const {
    std::int64_t offset = 0;
    for (std::size_t i = axes_.size(); i-- > 0;) {
      offset += index % axes_[i].size * axes_[i].stride;
      index /= axes_[i].size;
    }
    return offset;
  }

 private:
  struct Axis {
    std::int64_t size = 1;
    std::int64_t stride = 0;
  };
  std::vector<Axis> axes_;
};

struct LayerTask {
  std::int64_t rows = 0;
  std::int64_t size = 0;
  double epsilon = 0;
  BroadcastWalk scale;
  BroadcastWalk bias;
  bool has_bias = false;
  int num_outputs = 1;
  int outputs = 0;  ///< argument of the first output
};

struct Statistics {
  double mean = 0;
  double inverse = 0;  // 1 / standard deviation
};

template <std::floating_point T>
Statistics row_statistics(const T* x, const LayerTask& task) {
  const auto size = static_cast<double>(task.size);
  double sum = 0;
  for (std::int64_t i = 0; i < task.size; ++i) sum += static_cast<double>(x[i]);
  const double mean = sum / size;
  double squares = 0;
  for (std::int64_t i = 0; i < task.size; ++i) {
    const double centred = static_cast<double>(x[i]) - mean;
    squares += centred * centred;
  }
  return {.mean = mean, .inverse = 1 / std::sqrt(squares / size + task.epsilon)};
}

// args: x, scale[, bias], y[, mean[, inverse deviation]]; the statistics are float32.
template <std::floating_point T>
void run_layer_normalization(const LayerTask& task, KernelArgs args) {
  const T* x = args.at<T>(0);
  const T* scale = args.at<T>(1);
  const T* bias = task.has_bias ? args.at<T>(2) : nullptr;
  T* y = args.at<T>(task.outputs);
  const auto statistic = [&](int output) {
    return task.num_outputs > output ? args.at<float>(task.outputs + output) : nullptr;
  };
  float* means = statistic(1);
  float* inverses = statistic(2);
  for (std::int64_t row = 0; row < task.rows; ++row) {
    const Statistics s = row_statistics(x + row * task.size, task);
    if (means != nullptr) means[row] = static_cast<float>(s.mean);
    if (inverses != nullptr) inverses[row] = static_cast<float>(s.inverse);
    if (y == nullptr) continue;
    const auto mean = static_cast<T>(s.mean);
    const auto inverse = static_cast<T>(s.inverse);
    for (std::int64_t i = row * task.size; i < (row + 1) * task.size; ++i) {
      const T shift = bias == nullptr ? T{0} : bias[task.bias.at(i)];
      y[i] = (x[i] - mean) * inverse * scale[task.scale.at(i)] + shift;
    }
  }
}

// args: dy, x, scale, dx, dscale, dbias; results may be absent. scale: [size].
template <std::floating_point T>
void run_grad(const LayerTask& task, KernelArgs args) {
  const T* dy = args.at<T>(0);
  const T* x = args.at<T>(1);
  const T* scale = args.at<T>(2);
  T* dx = args.at<T>(3);
  T* dscale = args.at<T>(4);
  T* dbias = args.at<T>(5);
  if (dscale != nullptr) std::fill_n(dscale, task.size, T{0});
  if (dbias != nullptr) std::fill_n(dbias, task.size, T{0});
  const auto size = static_cast<double>(task.size);
  for (std::int64_t row = 0; row < task.rows; ++row, x += task.size, dy += task.size) {
    const Statistics s = row_statistics(x, task);
    double sum = 0;
    double dot = 0;
    for (std::int64_t i = 0; i < task.size; ++i) {
      const double h = (static_cast<double>(x[i]) - s.mean) * s.inverse;
      const double dh = static_cast<double>(dy[i]) * static_cast<double>(scale[i]);
      sum += dh;
      dot += dh * h;
      if (dscale != nullptr) dscale[i] += static_cast<T>(static_cast<double>(dy[i]) * h);
      if (dbias != nullptr) dbias[i] += dy[i];
    }
    if (dx == nullptr) continue;
    for (std::int64_t i = 0; i < task.size; ++i) {
      const double h = (static_cast<double>(x[i]) - s.mean) * s.inverse;
      const double dh = static_cast<double>(dy[i]) * static_cast<double>(scale[i]);
      dx[row * task.size + i] = static_cast<T>(s.inverse * (dh - (sum + h * dot) / size));
    }
  }
}

LayerTask make_task(const KernelRequest& request, std::size_t x_input) {
  const Dims& x = request.inputs[x_input].dims;
  const auto axis =
      static_cast<std::size_t>(normalize_axis(request.node.int_attribute("axis"), x.rank()));
  LayerTask task;
  task.rows = x.product(0, axis);
  task.size = x.product(axis, x.rank());
  task.epsilon = static_cast<double>(request.node.float_attribute("epsilon"));
  task.outputs = static_cast<int>(request.inputs.size());
  task.num_outputs = static_cast<int>(request.outputs.size());
  return task;
}

template <auto kFloat, auto kDouble>
KernelOffer offer_typed(const KernelRequest& request, LayerTask task) {
  const DataType dtype = request.inputs[0].dtype;
  for (const TensorDesc& input : request.inputs) {
    if (input.is_present() && input.dtype != dtype) return decline_dtype(request, input.dtype);
  }
  if (request.outputs[0].is_present() && request.outputs[0].dtype != dtype) {
    return decline_dtype(request, request.outputs[0].dtype);
  }
  if (dtype == DataType::kFloat32) return prepared<kFloat>(std::move(task), "reference");
  if (dtype == DataType::kFloat64) return prepared<kDouble>(std::move(task), "reference");
  return decline_dtype(request, dtype);
}

LayerTask layer_task(const KernelRequest& request) {
  LayerTask task = make_task(request, 0);
  const Dims& x = request.inputs[0].dims;
  try {
    task.scale = BroadcastWalk(x, request.inputs[1].dims);
    task.has_bias = request.has_input(2);
    if (task.has_bias) task.bias = BroadcastWalk(x, request.inputs[2].dims);
  } catch (const ShapeError& error) {
    throw ShapeError(problem_at(request.node, error.problem().what, {}, error.problem().hint));
  }
  return task;
}

// Returns "" if all requested statistics have a type that the kernels write.
std::string wrong_statistics(const KernelRequest& request) {
  for (std::size_t i = 1; i < request.outputs.size(); ++i) {
    const DataType dtype = request.outputs[i].dtype;
    if (request.outputs[i].is_present() && dtype != DataType::kFloat32) {
      return decline_dtype(request, dtype).declined;
    }
  }
  return {};
}

KernelOffer offer_layer_normalization(const KernelRequest& request) {
  if (auto reason = wrong_statistics(request); !reason.empty()) return KernelOffer::decline(reason);
  return offer_typed<run_layer_normalization<float>, run_layer_normalization<double>>(
      request, layer_task(request));
}

LayerTask grad_task(const KernelRequest& request) {
  LayerTask task = make_task(request, 1);
  const bool fits = request.inputs[0].dims == request.inputs[1].dims &&
                    request.inputs[2].dims.num_elements() == task.size;
  if (!fits) {
    throw ShapeError(problem_at(
        request.node,
        fmt::format("dy {}, x {} and scale {} do not match", request.inputs[0].dims.to_string(),
                    request.inputs[1].dims.to_string(), request.inputs[2].dims.to_string()),
        {}, "Give dy the shape of x, and scale that of the normalised axes."));
  }
  if (task.num_outputs != 3) {
    throw ModelError(problem_at(request.node, "the gradient function has three outputs", {},
                                "Give calls of this function three outputs."));
  }
  return task;
}

KernelOffer offer_grad(const KernelRequest& request) {
  return offer_typed<run_grad<float>, run_grad<double>>(request, grad_task(request));
}

}  // namespace

void register_layer_normalization_cpu(opdef::KernelRegistry& registry) {
  registry.add("", "LayerNormalization", 0, offer_layer_normalization);
  registry.add(ir::kFunctionDomain, "LayerNormalizationGrad", 0, offer_grad);
}

}  // namespace onnxgrad::ops::layer_normalization_cpu
