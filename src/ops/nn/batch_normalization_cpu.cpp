#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <concepts>

#include "device/cpu/threads.h"
#include "device/cpu_options.h"
#include "ops/kernel_support.h"
#include "ops/nn/norm_stretches_simd.h"
#include "ops/nn/window.h"

// Kernels of BatchNormalization, InstanceNormalization and their gradients: reference kernels, and
// float32 SIMD kernels for long contiguous runs. The elements of a group share statistics:
// `segments` runs of `length` elements with stride `stride`, the first at group * length.

namespace onnxgrad::ops::batch_normalization_cpu {

namespace {

struct NormTask {
  std::int64_t groups = 0;
  std::int64_t segments = 1;
  std::int64_t stride = 0;
  std::int64_t length = 0;
  std::int64_t channels = 0;  ///< group g has channel g % channels
  double epsilon = 0;
  double momentum = 0;
  bool uses_batch = true;  ///< false: mean and variance are inputs
  int running = 0;         ///< number of outputs among running mean and variance
  int outputs = 0;         ///< argument of the first output
  int threads = 1;
  device::Isa isa = {};
  /// Types of scale and bias, and of mean and variance, if not x's.
  DataType scale_dtype = DataType::kUndefined;
  DataType statistics_dtype = DataType::kUndefined;

  std::int64_t count() const { return segments * length; }
};

// Minimum number of elements for a second thread.
constexpr std::int64_t kParallelElements = 1 << 15;  // per thread

// Calls f(channel) for all channels, on several threads if that pays off.
template <class F>
void visit_channels(const NormTask& task, F&& f) {
  device::parallel_for(
      device::useful_threads(task.groups * task.count(), kParallelElements, task.threads),
      task.channels, f);
}

// Calls f(first element) for the runs of a group.
template <class F>
void visit_stretches(const NormTask& task, std::int64_t group, F&& f) {
  for (std::int64_t s = 0; s < task.segments; ++s) f(group * task.length + s * task.stride);
}

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

// Computes the statistics in double, in two passes, since sums over a whole batch lose precision.
// Zeros if the batch is empty.
template <std::floating_point T>
Statistics batch_statistics(const NormTask& task, const T* x, std::int64_t group) {
  if (task.count() == 0) return {};
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

// Computes the statistics as batch_statistics does, with SIMD.
Statistics stretch_statistics(const NormTask& task, const float* x, std::int64_t group) {
  if (task.count() == 0) return {};
  const auto count = static_cast<double>(task.count());
  double sum = 0;
  visit_stretches(task, group,
                  [&](auto i) { sum += stretches::sum(task.isa, x + i, task.length); });
  const double mean = sum / count;
  const auto rounded = static_cast<float>(mean);
  double squares = 0;
  visit_stretches(task, group, [&](auto i) {
    squares += stretches::centred_square_sum(task.isa, x + i, rounded, task.length);
  });
  const double error = mean - static_cast<double>(rounded);
  return {.mean = mean, .variance = std::max(squares / count - error * error, 0.0)};
}

Statistics given_statistics(const NormTask& task, KernelArgs args, std::int64_t c) {
  return {.mean = read_float(args[3], task.statistics_dtype, c),
          .variance = read_float(args[4], task.statistics_dtype, c)};
}

// running = old * momentum + batch * (1 - momentum)
void update_running(const NormTask& task, KernelArgs args, std::int64_t c,
                    const Statistics& batch) {
  for (int i = 0; i < task.running; ++i) {
    std::byte* running = args[task.outputs + 1 + i];
    if (running == nullptr) continue;
    const double old = read_float(args[3 + i], task.statistics_dtype, c);
    const double current = i == 0 ? batch.mean : batch.variance;
    const double next = old * task.momentum + current * (1 - task.momentum);
    if (task.statistics_dtype == DataType::kFloat64) {
      reinterpret_cast<double*>(running)[c] = next;
    } else {
      reinterpret_cast<float*>(running)[c] = static_cast<float>(next);
    }
  }
}

// args: x, scale, bias[, mean, variance], y[, running mean, running variance].
template <std::floating_point T>
void run_normalization(const NormTask& task, KernelArgs args) {
  const T* x = args.at<T>(0);
  T* y = args.at<T>(task.outputs);
  for (std::int64_t group = 0; group < task.groups; ++group) {
    const std::int64_t c = group % task.channels;
    const Statistics batch =
        task.uses_batch ? batch_statistics(task, x, group) : given_statistics(task, args, c);
    update_running(task, args, c, batch);
    if (y == nullptr) continue;
    const double scale = read_float(args[1], task.scale_dtype, c);
    const auto factor = static_cast<T>(scale / std::sqrt(batch.variance + task.epsilon));
    const auto mean = static_cast<T>(batch.mean);
    const auto bias = static_cast<T>(read_float(args[2], task.scale_dtype, c));
    visit_group(task, group, [&](std::int64_t i) { y[i] = (x[i] - mean) * factor + bias; });
  }
}

// Normalizes float32 runs as run_normalization does, with SIMD.
void run_stretches(const NormTask& task, KernelArgs args) {
  const auto* x = args.at<float>(0);
  const auto* scale = args.at<float>(1);
  const auto* bias = args.at<float>(2);
  auto* y = args.at<float>(task.outputs);
  visit_channels(task, [&](std::int64_t c) {
    for (std::int64_t group = c; group < task.groups; group += task.channels) {
      const Statistics batch =
          task.uses_batch ? stretch_statistics(task, x, group) : given_statistics(task, args, c);
      update_running(task, args, c, batch);
      if (y == nullptr) continue;
      const double slope = static_cast<double>(scale[c]) / std::sqrt(batch.variance + task.epsilon);
      visit_stretches(task, group, [&](auto i) {
        stretches::normalize(task.isa, x + i, static_cast<float>(batch.mean),
                             static_cast<float>(slope), bias[c], y + i, task.length);
      });
    }
  });
}

// Factors of dx = a * dy + b * (x - mean) + d, from the sums over a group of dy and dy * h, where h
// = (x - mean) * inverse.
struct GradFactors {
  double a = 0;
  double b = 0;
  double d = 0;

  GradFactors(double scale, double inverse, double sum, double dot, double count)
      : a(scale * inverse), b(-a * inverse * dot / count), d(-a * sum / count) {}
};

// Computes the gradient of float32 runs as run_grad does, with SIMD.
void run_grad_stretches(const NormTask& task, KernelArgs args) {
  const auto* dy = args.at<float>(0);
  const auto* x = args.at<float>(1);
  const auto* scale = args.at<float>(2);
  auto* dx = args.at<float>(task.outputs);
  auto* dscale = args.at<float>(task.outputs + 1);
  auto* dbias = args.at<float>(task.outputs + 2);
  const auto count = static_cast<double>(task.count());
  visit_channels(task, [&](std::int64_t c) {
    double scale_sum = 0;
    double bias_sum = 0;
    for (std::int64_t group = c; group < task.groups; group += task.channels) {
      const Statistics batch = stretch_statistics(task, x, group);
      const double inverse = 1 / std::sqrt(batch.variance + task.epsilon);
      const auto mean = static_cast<float>(batch.mean);
      stretches::GradSums sums;
      visit_stretches(task, group, [&](auto i) {
        const auto more = stretches::grad_sums(task.isa, dy + i, x + i, mean, task.length);
        sums.dy += more.dy;
        sums.dot += more.dot;
      });
      const double dot = sums.dot * inverse;
      scale_sum += dot;
      bias_sum += sums.dy;
      if (dx == nullptr) continue;
      const GradFactors f(static_cast<double>(scale[c]), inverse, sums.dy, dot, count);
      visit_stretches(task, group, [&](auto i) {
        stretches::normalize_grad(task.isa, dy + i, x + i, mean, static_cast<float>(f.a),
                                  static_cast<float>(f.b), static_cast<float>(f.d), dx + i,
                                  task.length);
      });
    }
    if (dscale != nullptr) dscale[c] = static_cast<float>(scale_sum);
    if (dbias != nullptr) dbias[c] = static_cast<float>(bias_sum);
  });
}

// args: dy, x, scale, dx, dscale, dbias; results may be absent. See normalization_grad_body.
template <std::floating_point T>
void run_grad(const NormTask& task, KernelArgs args) {
  const T* dy = args.at<T>(0);
  const T* x = args.at<T>(1);
  const T* scale = args.at<T>(2);
  T* dx = args.at<T>(task.outputs);
  T* dscale = args.at<T>(task.outputs + 1);
  T* dbias = args.at<T>(task.outputs + 2);
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
      const auto v = static_cast<double>(dy[i]);
      sum += v;
      dot += v * (static_cast<double>(x[i]) - batch.mean) * inverse;
    });
    if (dscale != nullptr) dscale[c] += static_cast<T>(dot);
    if (dbias != nullptr) dbias[c] += static_cast<T>(sum);
    if (dx == nullptr) continue;
    const GradFactors f(static_cast<double>(scale[c]), inverse, sum, dot, count);
    const auto a = static_cast<T>(f.a);
    const auto b = static_cast<T>(f.b);
    const auto d = static_cast<T>(f.d);
    const auto mean = static_cast<T>(batch.mean);
    visit_group(task, group, [&](std::int64_t i) { dx[i] = a * dy[i] + b * (x[i] - mean) + d; });
  }
}

NormTask make_task(const KernelRequest& request, std::size_t x_input, bool per_instance) {
  const Dims& x = request.inputs[x_input].dims;
  if (x.rank() < 2) {
    throw ShapeError(problem_at(request.node,
                                "input X has shape " + x.to_string() + ", expected [N, C, D...]",
                                {}, "Reshape it so that axis 1 counts the channels."));
  }
  const std::int64_t length = x.product(2, x.rank());
  NormTask task{.groups = per_instance ? x[0] * x[1] : x[1],
                .segments = per_instance ? 1 : x[0],
                .stride = x[1] * length,
                .length = length,
                .channels = x[1],
                .epsilon = static_cast<double>(request.node.float_attribute("epsilon")),
                .momentum = static_cast<double>(request.node.float_attribute("momentum", 0)),
                .outputs = static_cast<int>(request.inputs.size()),
                .threads = request.threads,
                .isa = device::isa_of(request),
                .scale_dtype = request.inputs[1].dtype,
                .statistics_dtype = request.inputs.back().dtype};
  return task;
}

void check_operand(const KernelRequest& request, std::size_t input, const Dims& expected) {
  const Dims& given = request.inputs[input].dims;
  if (given == expected) return;
  throw ShapeError(problem_at(request.node,
                              fmt::format("input {} has shape {}, expected {}", input,
                                          given.to_string(), expected.to_string()),
                              "There is one number for each channel of X.",
                              "Give X the number of channels of the weights."));
}

template <auto kFloat, auto kDouble>
KernelOffer offer_typed(const KernelRequest& request, const NormTask& task,
                        bool takes_several_types = false) {
  const DataType dtype = request.inputs[0].dtype;
  for (const TensorDesc& input : request.inputs) {
    if (input.dtype != dtype && !takes_several_types) {
      return KernelOffer::decline("inputs of different types");
    }
    if (input.dtype != DataType::kFloat32 && input.dtype != DataType::kFloat64) {
      return decline_dtype(request, input.dtype);
    }
  }
  if (dtype == DataType::kFloat32) return prepared<kFloat>(task, "reference");
  if (dtype == DataType::kFloat64) return prepared<kDouble>(task, "reference");
  return decline_dtype(request, dtype);
}

NormTask batch_task(const KernelRequest& request) {
  NormTask task = make_task(request, 0, /*per_instance=*/false);
  for (std::size_t i = 1; i < 5; ++i) check_operand(request, i, Dims{task.channels});
  task.uses_batch = request.node.int_attribute("training_mode") != 0;
  if (task.uses_batch) task.running = static_cast<int>(request.outputs.size()) - 1;
  return task;
}

NormTask instance_task(const KernelRequest& request) {
  const NormTask task = make_task(request, 0, /*per_instance=*/true);
  for (std::size_t i = 1; i < 3; ++i) check_operand(request, i, Dims{task.channels});
  return task;
}

NormTask grad_task(const KernelRequest& request, bool per_instance) {
  const NormTask task = make_task(request, 1, per_instance);
  check_operand(request, 0, request.inputs[1].dims);
  check_operand(request, 2, Dims{task.channels});
  if (request.outputs.size() != 3) {
    throw ModelError(problem_at(request.node, "the gradient function has three outputs", {},
                                "Give calls of this function three outputs."));
  }
  return task;
}

// Offers the kernel `fn` for float32 and runs of at least a vector.
KernelOffer offer_simd(const KernelRequest& request, NormTask task, opdef::KernelFn fn) {
  constexpr std::int64_t kShortest = 16;
  for (const TensorDesc& input : request.inputs) {
    if (input.dtype != DataType::kFloat32) return KernelOffer::decline("float32 only");
  }
  if (task.length < kShortest) return KernelOffer::decline("stretches shorter than 16 elements");
  return prepared(fn, task, "simd");
}

KernelOffer offer_batch(const KernelRequest& request) {
  return offer_typed<run_normalization<float>, run_normalization<double>>(
      request, batch_task(request), /*takes_several_types=*/true);
}

KernelOffer offer_batch_simd(const KernelRequest& request) {
  return offer_simd(request, batch_task(request), kKernel<run_stretches>);
}

KernelOffer offer_instance(const KernelRequest& request) {
  return offer_typed<run_normalization<float>, run_normalization<double>>(request,
                                                                          instance_task(request));
}

KernelOffer offer_instance_simd(const KernelRequest& request) {
  return offer_simd(request, instance_task(request), kKernel<run_stretches>);
}

KernelOffer offer_batch_grad(const KernelRequest& request) {
  return offer_typed<run_grad<float>, run_grad<double>>(request, grad_task(request, false));
}

KernelOffer offer_batch_grad_simd(const KernelRequest& request) {
  return offer_simd(request, grad_task(request, false), kKernel<run_grad_stretches>);
}

KernelOffer offer_instance_grad(const KernelRequest& request) {
  return offer_typed<run_grad<float>, run_grad<double>>(request, grad_task(request, true));
}

KernelOffer offer_instance_grad_simd(const KernelRequest& request) {
  return offer_simd(request, grad_task(request, true), kKernel<run_grad_stretches>);
}

}  // namespace

void register_batch_normalization_cpu(opdef::KernelRegistry& registry) {
  registry.add("", "BatchNormalization", 0, offer_batch);
  registry.add("", "InstanceNormalization", 0, offer_instance);
  registry.add(ir::kFunctionDomain, "BatchNormalizationGrad", 0, offer_batch_grad);
  registry.add(ir::kFunctionDomain, "InstanceNormalizationGrad", 0, offer_instance_grad);
  registry.add("", "BatchNormalization", 10, offer_batch_simd);
  registry.add("", "InstanceNormalization", 10, offer_instance_simd);
  registry.add(ir::kFunctionDomain, "BatchNormalizationGrad", 10, offer_batch_grad_simd);
  registry.add(ir::kFunctionDomain, "InstanceNormalizationGrad", 10, offer_instance_grad_simd);
}

}  // namespace onnxgrad::ops::batch_normalization_cpu
