#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <concepts>
#include <numbers>
#include <string>
#include <utility>

#include "opdef/registry.h"
#include "ops/kernel_support.h"
#include "ops/random/draws.h"
#include "ops/random/random_errors.h"

// Reference kernels of the random generators. Elements 2 b and 2 b + 1 of the batch come from block
// b, as two 53-bit uniform numbers or, by the Box-Muller transform (1958), two normal numbers.

namespace onnxgrad::ops {

void throw_probability(double probability, const std::string& node) {
  throw DataError({.what = fmt::format("a probability is {}", probability),
                   .where = {.node = node, .op_type = "Bernoulli", .value = "input"},
                   .detail = "Probabilities are between 0 and 1.",
                   .hint = "Apply Sigmoid to scores first."});
}

void throw_row_without_class(std::int64_t row, const std::string& node) {
  throw DataError({.what = fmt::format("row {} has no class with a probability", row),
                   .where = {.node = node, .op_type = "Multinomial", .value = "input"},
                   .detail = "Rows are scores, of which softmax makes probabilities.",
                   .hint = "Give finite numbers; -infinity leaves out a class, not all of a row."});
}

}  // namespace onnxgrad::ops

namespace onnxgrad::ops::random_numbers_cpu {

namespace {

struct RandomTask {
  RandomStream draws = {};
  RowStretches rows = {};
  double first = 0;   ///< mean or low
  double second = 1;  ///< scale or high
  int output = 0;
  std::string node;
};

struct Pair {
  double a = 0;
  double b = 0;
};

// Returns two uniform numbers in (0, 1).
Pair uniform_pair(const RandomTask& task, const Launch& launch, std::int64_t block) {
  const auto words = task.draws.block(launch, static_cast<std::uint64_t>(block));
  const auto unit = [](std::uint64_t high, std::uint64_t low) {
    return (static_cast<double>((high << 32 | low) >> 11) + 0.5) * 0x1p-53;
  };
  return {.a = unit(words[0], words[1]), .b = unit(words[2], words[3])};
}

Pair normal_pair(const RandomTask& task, const Launch& launch, std::int64_t block) {
  const Pair unit = uniform_pair(task, launch, block);
  const double radius = std::sqrt(-2 * std::log(unit.a));
  const double angle = 2 * std::numbers::pi * unit.b;
  return {.a = radius * std::cos(angle), .b = radius * std::sin(angle)};
}

// Calls f(element, its uniform or normal random number) for each element.
template <auto kPair, class F>
void visit_draws(const RandomTask& task, const Launch& launch, F&& f) {
  task.rows.visit(launch, [&](std::int64_t begin, std::int64_t number, std::int64_t count) {
    for (std::int64_t i = -(number % 2); i < count; i += 2) {
      const Pair pair = kPair(task, launch, (number + i) / 2);
      if (i >= 0) f(begin + i, pair.a);
      if (i + 1 < count) f(begin + i + 1, pair.b);
    }
  });
}

template <std::floating_point T>
void run_uniform(const RandomTask& task, KernelArgs args, const Launch& launch) {
  T* y = args.at<T>(task.output);
  visit_draws<uniform_pair>(task, launch, [&](std::int64_t i, double unit) {
    y[i] = static_cast<T>(task.first + (task.second - task.first) * unit);
  });
}

template <std::floating_point T>
void run_normal(const RandomTask& task, KernelArgs args, const Launch& launch) {
  T* y = args.at<T>(task.output);
  visit_draws<normal_pair>(task, launch, [&](std::int64_t i, double number) {
    y[i] = static_cast<T>(task.first + task.second * number);
  });
}

// args: probabilities, samples.
template <std::floating_point P, class T>
void run_bernoulli(const RandomTask& task, KernelArgs args, const Launch& launch) {
  const P* p = args.at<P>(0);
  T* y = args.at<T>(task.output);
  visit_draws<uniform_pair>(task, launch, [&](std::int64_t i, double unit) {
    const auto probability = static_cast<double>(p[i]);
    if (!(probability >= 0 && probability <= 1)) throw_probability(probability, task.node);
    y[i] = static_cast<T>(unit < probability ? 1 : 0);
  });
}

struct MultinomialTask {
  RandomTask draw;
  std::int64_t samples = 1;  ///< samples per row
  std::int64_t classes = 0;
};

// sums[c] = sum over j <= c of exp(logits[j] - max), for one row of scores.
template <std::floating_point P>
void add_up_row(const MultinomialTask& task, const P* logits, std::int64_t row, double* sums) {
  const P largest = task.classes == 0 ? P{0} : *std::max_element(logits, logits + task.classes);
  double total = 0;
  for (std::int64_t c = 0; c < task.classes; ++c) {
    sums[c] = total += std::exp(static_cast<double>(logits[c]) - static_cast<double>(largest));
  }
  if (total > 0 && std::isfinite(total)) return;
  throw_row_without_class(row, task.draw.node);
}

// args: scores [rows, classes], sampled classes [rows, samples], scratch for the sums of a row.
template <std::floating_point P, class T>
void run_multinomial(const MultinomialTask& task, KernelArgs args, const Launch& launch) {
  const P* logits = args.at<P>(0);
  T* y = args.at<T>(1);
  auto* sums = args.at<double>(2);
  std::int64_t summed = -1;
  visit_draws<uniform_pair>(task.draw, launch, [&](std::int64_t i, double unit) {
    const std::int64_t row = i / task.samples;
    if (row != summed) add_up_row(task, logits + row * task.classes, row, sums);
    summed = row;
    const double wanted = unit * sums[task.classes - 1];
    const auto* found = std::upper_bound(sums, sums + task.classes - 1, wanted);
    y[i] = static_cast<T>(found - sums);
  });
}

RandomTask make_task(const KernelRequest& request) {
  return {.draws = RandomStream::of(request.node),
          .rows = RowStretches::of(request.node, request.outputs[0].dims),
          .output = static_cast<int>(request.inputs.size()),
          .node = request.node.name};
}

template <auto kFloat, auto kDouble>
KernelOffer offer_numbers(const KernelRequest& request, const char* first, const char* second) {
  RandomTask task = make_task(request);
  task.first = static_cast<double>(request.node.float_attribute(first));
  task.second = static_cast<double>(request.node.float_attribute(second));
  const DataType dtype = request.outputs[0].dtype;
  if (dtype == DataType::kFloat32) return prepared<kFloat>(std::move(task), "reference");
  if (dtype == DataType::kFloat64) return prepared<kDouble>(std::move(task), "reference");
  return decline_dtype(request, dtype);
}

KernelOffer offer_normal(const KernelRequest& request) {
  return offer_numbers<run_normal<float>, run_normal<double>>(request, "mean", "scale");
}

KernelOffer offer_uniform(const KernelRequest& request) {
  return offer_numbers<run_uniform<float>, run_uniform<double>>(request, "low", "high");
}

template <std::floating_point P>
opdef::KernelFn bernoulli_kernel(DataType dtype) {
  switch (dtype) {
    case DataType::kBool:
    case DataType::kUint8:
    case DataType::kInt8:
      return kKernel<run_bernoulli<P, std::uint8_t>>;
    case DataType::kInt16:
    case DataType::kUint16:
      return kKernel<run_bernoulli<P, std::uint16_t>>;
    case DataType::kInt32:
    case DataType::kUint32:
      return kKernel<run_bernoulli<P, std::uint32_t>>;
    case DataType::kInt64:
    case DataType::kUint64:
      return kKernel<run_bernoulli<P, std::uint64_t>>;
    case DataType::kFloat32:
      return kKernel<run_bernoulli<P, float>>;
    case DataType::kFloat64:
      return kKernel<run_bernoulli<P, double>>;
    default:
      return nullptr;
  }
}

KernelOffer offer_bernoulli(const KernelRequest& request) {
  const DataType given = request.inputs[0].dtype;
  const DataType wanted = request.outputs[0].dtype;
  opdef::KernelFn fn = nullptr;
  if (given == DataType::kFloat32) fn = bernoulli_kernel<float>(wanted);
  if (given == DataType::kFloat64) fn = bernoulli_kernel<double>(wanted);
  if (fn == nullptr) return decline_dtype(request, wanted);
  KernelOffer offer = prepared(fn, make_task(request), "reference");
  offer.kernel.checks = {{.input = 0}};
  return offer;
}

template <std::floating_point P>
opdef::KernelFn multinomial_kernel(DataType dtype) {
  if (dtype == DataType::kInt32) return kKernel<run_multinomial<P, std::int32_t>>;
  return dtype == DataType::kInt64 ? kKernel<run_multinomial<P, std::int64_t>> : nullptr;
}

KernelOffer offer_multinomial(const KernelRequest& request) {
  const DataType given = request.inputs[0].dtype;
  const DataType wanted = request.outputs[0].dtype;
  opdef::KernelFn fn = nullptr;
  if (given == DataType::kFloat32) fn = multinomial_kernel<float>(wanted);
  if (given == DataType::kFloat64) fn = multinomial_kernel<double>(wanted);
  if (fn == nullptr) return decline_dtype(request, given);
  const Dims& x = request.inputs[0].dims;
  if (x.rank() != 2) {
    throw ShapeError({.what = "scores of shape " + x.to_string() + ", expected [rows, classes]",
                      .where = {.value = "input"},
                      .hint = "Give one row of scores for each row of samples."});
  }
  const MultinomialTask task{.draw = make_task(request),
                             .samples = request.node.int_attribute("sample_size"),
                             .classes = x[1]};
  KernelOffer offer = prepared(fn, task, "reference");
  offer.kernel.scratch_bytes = std::max<std::int64_t>(x[1], 1) * std::int64_t{sizeof(double)};
  return offer;
}

}  // namespace

void register_random_numbers_cpu(opdef::KernelRegistry& registry) {
  registry.add("", "RandomNormal", 0, offer_normal);
  registry.add("", "RandomNormalLike", 0, offer_normal);
  registry.add("", "RandomUniform", 0, offer_uniform);
  registry.add("", "RandomUniformLike", 0, offer_uniform);
  registry.add("", "Bernoulli", 0, offer_bernoulli);
  registry.add("", "Multinomial", 0, offer_multinomial);
}

}  // namespace onnxgrad::ops::random_numbers_cpu
