#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <concepts>
#include <utility>

#include "opdef/registry.h"
#include "ops/kernel_support.h"
#include "ops/nn/window.h"

// Plain kernels of BatchNormalization, InstanceNormalization and their gradients. A group is what
// shares statistics: `segments` stretches of `length` elements, the first at group * length,
// `stride` apart.

namespace onnxgrad::ops {

using opdef::KernelOffer;
using opdef::KernelRequest;
using opdef::Launch;

namespace {

struct NormTask {
  std::int64_t groups = 0;
  std::int64_t segments = 1;
  std::int64_t stride = 0;
  std::int64_t length = 0;
  std::int64_t channels = 0;  ///< group g has channel g % channels
  double epsilon = 0;
  double momentum = 0;
  bool uses_batch = true;  ///< else mean and variance are inputs
  int running = 0;         ///< how many of running mean and variance are outputs
  int outputs = 0;         ///< argument of the first output

  std::int64_t count() const { return segments * length; }
};

// Calls f(index) for all elements of a group, in order.
template <class F>
void visit_group(const NormTask& task, std::int64_t group, F&& f) {
  for (std::int64_t s = 0; s < task.segments; ++s) {
    const std::int64_t first = group * task.length + s * task.stride;
    for (std::int64_t i = first; i < first + task.length; ++i) f(i);
  }
}

struct Statistics {
  double mean = 0;
  double variance = 0;
};

// In double, two passes: the sums of a whole batch lose too much otherwise.
template <std::floating_point T>
Statistics batch_statistics(const NormTask& task, const T* x, std::int64_t group) {
  double sum = 0;
  visit_group(task, group, [&](std::int64_t i) { sum += static_cast<double>(x[i]); });
  const auto count = static_cast<double>(task.count());
  const double mean = sum / count;
  double squares = 0;
  visit_group(task, group, [&](std::int64_t i) {
    const double centred = static_cast<double>(x[i]) - mean;
    squares += centred * centred;
  });
  return {.mean = mean, .variance = squares / count};
}

// args: x, scale, bias[, mean, variance], y[, running mean, running variance].
template <std::floating_point T>
void run_normalization(const void* data, std::byte* const* args, const Launch&) {
  const auto& task = *static_cast<const NormTask*>(data);
  const T* x = reinterpret_cast<const T*>(args[0]);
  const T* scale = reinterpret_cast<const T*>(args[1]);
  const T* bias = reinterpret_cast<const T*>(args[2]);
  T* y = reinterpret_cast<T*>(args[task.outputs]);
  for (std::int64_t group = 0; group < task.groups; ++group) {
    const std::int64_t c = group % task.channels;
    Statistics batch;
    if (task.uses_batch) {
      batch = batch_statistics(task, x, group);
    } else {
      batch = {.mean = static_cast<double>(reinterpret_cast<const T*>(args[3])[c]),
               .variance = static_cast<double>(reinterpret_cast<const T*>(args[4])[c])};
    }
    if (task.running > 0) {
      const auto update = [&](int old_arg, int new_arg, double current) {
        T* running = reinterpret_cast<T*>(args[new_arg]);
        if (running == nullptr) return;
        const double old = static_cast<double>(reinterpret_cast<const T*>(args[old_arg])[c]);
        running[c] = static_cast<T>(old * task.momentum + current * (1 - task.momentum));
      };
      update(3, task.outputs + 1, batch.mean);
      if (task.running > 1) update(4, task.outputs + 2, batch.variance);
    }
    if (y == nullptr) continue;
    const double slope = static_cast<double>(scale[c]) / std::sqrt(batch.variance + task.epsilon);
    const auto factor = static_cast<T>(slope);
    const auto mean = static_cast<T>(batch.mean);
    visit_group(task, group, [&](std::int64_t i) { y[i] = (x[i] - mean) * factor + bias[c]; });
  }
}

// args: dy, x, scale, dx, dscale, dbias; results may be absent. See normalization_grad_body.
template <std::floating_point T>
void run_grad(const void* data, std::byte* const* args, const Launch&) {
  const auto& task = *static_cast<const NormTask*>(data);
  const T* dy = reinterpret_cast<const T*>(args[0]);
  const T* x = reinterpret_cast<const T*>(args[1]);
  const T* scale = reinterpret_cast<const T*>(args[2]);
  T* dx = reinterpret_cast<T*>(args[task.outputs]);
  T* dscale = reinterpret_cast<T*>(args[task.outputs + 1]);
  T* dbias = reinterpret_cast<T*>(args[task.outputs + 2]);
  if (dscale != nullptr) std::fill_n(dscale, task.channels, T{0});
  if (dbias != nullptr) std::fill_n(dbias, task.channels, T{0});
  const auto count = static_cast<double>(task.count());
  for (std::int64_t group = 0; group < task.groups; ++group) {
    const std::int64_t c = group % task.channels;
    const Statistics batch = batch_statistics(task, x, group);
    const double inverse = 1 / std::sqrt(batch.variance + task.epsilon);
    double sum = 0;
    double dot = 0;
    visit_group(task, group, [&](std::int64_t i) {
      const double v = static_cast<double>(dy[i]);
      sum += v;
      dot += v * (static_cast<double>(x[i]) - batch.mean) * inverse;
    });
    if (dscale != nullptr) dscale[c] += static_cast<T>(dot);
    if (dbias != nullptr) dbias[c] += static_cast<T>(sum);
    if (dx == nullptr) continue;
    // dx = a * dy + b * (x - mean) + d
    const double slope = static_cast<double>(scale[c]) * inverse;
    const auto a = static_cast<T>(slope);
    const auto b = static_cast<T>(-slope * inverse * dot / count);
    const auto d = static_cast<T>(-slope * sum / count);
    const auto mean = static_cast<T>(batch.mean);
    visit_group(task, group, [&](std::int64_t i) { dx[i] = a * dy[i] + b * (x[i] - mean) + d; });
  }
}

NormTask make_task(const KernelRequest& request, std::size_t x_input, bool per_instance) {
  const Dims& x = request.inputs[x_input].dims;
  if (x.rank() < 2) {
    throw ShapeError(
        problem_at(request.node, "input X has shape " + x.to_string() + ", expected [N, C, D...]"));
  }
  const std::int64_t length = x.product(2, x.rank());
  NormTask task{.groups = per_instance ? x[0] * x[1] : x[1],
                .segments = per_instance ? 1 : x[0],
                .stride = x[1] * length,
                .length = length,
                .channels = x[1],
                .epsilon = static_cast<double>(request.node.float_attribute("epsilon", 1e-5f)),
                .momentum = static_cast<double>(request.node.float_attribute("momentum", 0.9f)),
                .outputs = static_cast<int>(request.inputs.size())};
  return task;
}

void check_operand(const KernelRequest& request, std::size_t input, const Dims& expected) {
  const Dims& given = request.inputs[input].dims;
  if (given == expected) return;
  throw ShapeError(problem_at(request.node, fmt::format("input {} has shape {}, expected {}", input,
                                                        given.to_string(), expected.to_string())));
}

template <opdef::KernelFn kFloat, opdef::KernelFn kDouble>
KernelOffer offer_typed(const KernelRequest& request, NormTask task) {
  const DataType dtype = request.inputs[0].dtype;
  for (const opdef::TensorDesc& input : request.inputs) {
    if (input.dtype != dtype) return KernelOffer::decline("inputs of different types");
  }
  if (dtype == DataType::kFloat32) return prepared(kFloat, std::move(task), "reference");
  if (dtype == DataType::kFloat64) return prepared(kDouble, std::move(task), "reference");
  return decline_dtype(request, dtype);
}

KernelOffer offer_batch(const KernelRequest& request) {
  NormTask task = make_task(request, 0, /*per_instance=*/false);
  for (std::size_t i = 1; i < 5; ++i) check_operand(request, i, Dims{task.channels});
  task.uses_batch = request.node.int_attribute("training_mode", 0) != 0;
  if (task.uses_batch) task.running = static_cast<int>(request.outputs.size()) - 1;
  return offer_typed<run_normalization<float>, run_normalization<double>>(request, task);
}

KernelOffer offer_instance(const KernelRequest& request) {
  const NormTask task = make_task(request, 0, /*per_instance=*/true);
  for (std::size_t i = 1; i < 3; ++i) check_operand(request, i, Dims{task.channels});
  return offer_typed<run_normalization<float>, run_normalization<double>>(request, task);
}

KernelOffer offer_grad(const KernelRequest& request, bool per_instance) {
  const NormTask task = make_task(request, 1, per_instance);
  check_operand(request, 0, request.inputs[1].dims);
  check_operand(request, 2, Dims{task.channels});
  if (request.outputs.size() != 3) return KernelOffer::decline("expects three outputs");
  return offer_typed<run_grad<float>, run_grad<double>>(request, task);
}

KernelOffer offer_batch_grad(const KernelRequest& request) { return offer_grad(request, false); }

KernelOffer offer_instance_grad(const KernelRequest& request) { return offer_grad(request, true); }

}  // namespace

void register_batch_normalization_cpu(opdef::KernelRegistry& registry) {
  registry.add("", "BatchNormalization", 0, offer_batch);
  registry.add("", "InstanceNormalization", 0, offer_instance);
  registry.add(ir::kFunctionDomain, "BatchNormalizationGrad", 0, offer_batch_grad);
  registry.add(ir::kFunctionDomain, "InstanceNormalizationGrad", 0, offer_instance_grad);
}

}  // namespace onnxgrad::ops
