#include <fmt/format.h>
#include <algorithm>
#include <cmath>
#include <concepts>
#include <limits>
#include <string>

#include "device/cpu/convert.h"
#include "device/cpu/scratch_layout.h"
#include "device/cpu/threads.h"
#include "device/cpu_options.h"
#include "ir/builder.h"
#include "opdef/registry.h"
#include "ops/kernel_support.h"
#include "ops/loss/cross_entropy.h"
#include "ops/loss/label_error.h"
#include "ops/nn/softmax_rows_simd.h"

// Kernels of SoftmaxCrossEntropyLoss, NegativeLogLikelihoodLoss and their gradients: reference
// kernels, and SIMD kernels for contiguous rows. The elements of a row have stride `inner`: scores
// [batch, classes, inner], labels [batch, inner].

namespace onnxgrad::ops {

void throw_label_error(const std::string& node, std::int64_t classes,
                       std::optional<std::int64_t> ignored, std::int64_t row, std::int64_t label) {
  throw DataError(
      {.what = fmt::format("label {} of row {} is out of range", label, row),
       .where = {.node = node},
       .detail = fmt::format("There are {} classes: labels are 0 to {}.", classes, classes - 1),
       .hint = ignored ? fmt::format("Rows to be ignored have label {}.", *ignored)
                       : "Give rows that should be ignored the label set by ignore_index."});
}

}  // namespace onnxgrad::ops

namespace onnxgrad::ops::cross_entropy_cpu {

namespace {

struct LossTask {
  CrossEntropyAttrs attrs = {};
  bool is_softmax = false;
  std::int64_t batch = 0;
  std::int64_t classes = 0;
  std::int64_t inner = 1;
  bool labels_are_int32 = false;
  int scores = 0;  ///< argument; of a gradient: log p, or the input of the loss
  int labels = 1;
  int weights = -1;
  int dloss = -1;
  int result = -1;  ///< argument of the loss, or of the gradient
  int log_prob = -1;
  int log_sums = -1;  ///< fused operators only: log(sum(exp(scores))) of each row
  int scratch = -1;
  int threads = 1;
  device::Isa isa = {};
  // Conversions of f16/bf16 scores and gradients, for the fused operators; nullptr: float32.
  device::ConvertFn widen = nullptr;
  device::ConvertFn narrow = nullptr;
  device::ScratchArray<float> lines = {};  ///< one row per thread
  std::string node;

  std::int64_t rows() const { return batch * inner; }
};

// Returns the label of a row; -1 if the row is ignored. Throws: DataError.
std::int64_t label_of(const LossTask& task, const std::byte* labels, std::int64_t row) {
  const std::int64_t label = task.labels_are_int32
                                 ? reinterpret_cast<const std::int32_t*>(labels)[row]
                                 : reinterpret_cast<const std::int64_t*>(labels)[row];
  if (task.attrs.ignore_index && label == *task.attrs.ignore_index) return -1;
  if (label < 0 || label >= task.classes) {
    throw_label_error(task.node, task.classes, task.attrs.ignore_index, row, label);
  }
  return label;
}

// Calls f(row, offset of its first element).
template <class F>
void visit_rows(const LossTask& task, F&& f) {
  for (std::int64_t n = 0; n < task.batch; ++n) {
    for (std::int64_t d = 0; d < task.inner; ++d) {
      f(n * task.inner + d, n * task.classes * task.inner + d);
    }
  }
}

template <std::floating_point T>
T log_sum_exp(const T* x, std::int64_t size, std::int64_t stride) {
  T most = -std::numeric_limits<T>::infinity();
  for (std::int64_t i = 0; i < size; ++i) most = std::max(most, x[i * stride]);
  T sum = 0;
  for (std::int64_t i = 0; i < size; ++i) sum += std::exp(x[i * stride] - most);
  return most + std::log(sum);
}

template <std::floating_point T>
void run_loss(const LossTask& task, KernelArgs args) {
  const T* scores = args.at<T>(task.scores);
  const T* weights = args.find<T>(task.weights);
  T* loss = args.at<T>(task.result);  // nullptr: only log p is wanted
  T* log_prob = args.find<T>(task.log_prob);
  double sum = 0;
  double total_weight = 0;
  visit_rows(task, [&](std::int64_t row, std::int64_t first) {
    const T* x = scores + first;
    const T shift = task.is_softmax ? log_sum_exp(x, task.classes, task.inner) : T{0};
    if (log_prob != nullptr) {
      for (std::int64_t c = 0; c < task.classes; ++c) {
        log_prob[first + c * task.inner] = x[c * task.inner] - shift;
      }
    }
    const std::int64_t label = label_of(task, args[task.labels], row);
    if (loss == nullptr) return;
    const T weight = label < 0 ? T{0} : weights == nullptr ? T{1} : weights[label];
    const T value = label < 0 ? T{0} : weight * (shift - x[label * task.inner]);
    if (task.attrs.reduction == Reduction::kNone) loss[row] = value;
    sum += static_cast<double>(value);
    total_weight += static_cast<double>(weight);
  });
  if (loss == nullptr) return;
  if (task.attrs.reduction == Reduction::kSum) loss[0] = static_cast<T>(sum);
  if (task.attrs.reduction == Reduction::kMean) loss[0] = static_cast<T>(sum / total_weight);
}

template <std::floating_point T>
void run_grad(const LossTask& task, KernelArgs args) {
  const T* log_prob = args.at<T>(task.scores);
  const T* dloss = args.at<T>(task.dloss);
  const T* weights = args.find<T>(task.weights);
  T* grad = args.at<T>(task.result);
  const auto weight_of = [&](std::int64_t label) {
    return label < 0 ? T{0} : weights == nullptr ? T{1} : weights[label];
  };
  double total_weight = 1;
  if (task.attrs.reduction == Reduction::kMean) {
    total_weight = 0;
    for (std::int64_t row = 0; row < task.rows(); ++row) {
      total_weight += static_cast<double>(weight_of(label_of(task, args[task.labels], row)));
    }
  }
  const bool is_per_row = task.attrs.reduction == Reduction::kNone;
  visit_rows(task, [&](std::int64_t row, std::int64_t first) {
    const std::int64_t label = label_of(task, args[task.labels], row);
    const T scale = is_per_row ? dloss[row] : dloss[0] / static_cast<T>(total_weight);
    const T factor = weight_of(label) * scale;
    for (std::int64_t c = 0; c < task.classes; ++c) {
      const std::int64_t i = first + c * task.inner;
      const T probability = task.is_softmax ? std::exp(log_prob[i]) : T{0};
      grad[i] = label < 0 ? T{0} : (probability - (c == label ? T{1} : T{0})) * factor;
    }
  });
}

// Writes the weight of each row to `weights_out` and its label (-1: ignored) to `labels_out`;
// returns the sum of the weights. Throws: DataError.
template <std::floating_point T>
double read_rows(const LossTask& task, KernelArgs args, T* weights_out, std::int64_t* labels_out) {
  const T* weights = args.find<T>(task.weights);
  double total = 0;
  for (std::int64_t row = 0; row < task.rows(); ++row) {
    const std::int64_t label = label_of(task, args[task.labels], row);
    labels_out[row] = label;
    weights_out[row] = label < 0 ? T{0} : weights == nullptr ? T{1} : weights[label];
    total += static_cast<double>(weights_out[row]);
  }
  return total;
}

// Scratch of the kernels for contiguous rows: labels, weights, and one more scalar per row.
template <std::floating_point T>
struct RowScratch {
  std::int64_t* labels;
  T* weights;
  T* numbers;

  RowScratch(std::byte* scratch, std::int64_t rows)
      : labels(reinterpret_cast<std::int64_t*>(scratch)),
        weights(reinterpret_cast<T*>(labels + rows)),
        numbers(weights + rows) {}
  static std::int64_t bytes(std::int64_t rows) {
    return rows * static_cast<std::int64_t>(sizeof(std::int64_t) + 2 * sizeof(T));
  }
};

// Splits the rows into chunks: calls f(first row, number of rows, thread) for each.
template <class F>
void share_rows(const LossTask& task, const F& f) {
  const std::int64_t chunks = device::chunks_of(task.threads, task.rows());
  device::on_threads(task.threads, chunks, [&](const device::Chunk& chunk) {
    const std::int64_t first = chunk.first(task.rows());
    f(first, chunk.last(task.rows()) - first, chunk.thread);
  });
}

// Computes the loss as run_loss does, for softmax over contiguous rows.
template <std::floating_point T>
void run_loss_rows(const LossTask& task, KernelArgs args) {
  const T* scores = args.at<T>(task.scores);
  T* loss = args.at<T>(task.result);
  T* log_prob = args.find<T>(task.log_prob);
  const RowScratch<T> scratch(args[task.scratch], task.rows());
  const double total = read_rows(task, args, scratch.weights, scratch.labels);
  T* sums = task.log_sums < 0 ? scratch.numbers : args.at<T>(task.log_sums);
  if (log_prob == nullptr && loss == nullptr && task.log_sums < 0) return;
  share_rows(task, [&](std::int64_t first, std::int64_t count, std::int64_t /*thread*/) {
    const std::int64_t at = first * task.classes;
    if (log_prob != nullptr) {
      rows::log_softmax(task.isa, scores + at, log_prob + at, count, task.classes);
    } else {
      rows::log_sum_exp(task.isa, scores + at, sums + first, count, task.classes);
    }
  });
  if (loss == nullptr) return;
  double sum = 0;
  for (std::int64_t row = 0; row < task.rows(); ++row) {
    const std::int64_t label = scratch.labels[row];
    T value = 0;
    if (label >= 0) {
      const std::int64_t i = row * task.classes + label;
      const T log_p = log_prob != nullptr ? log_prob[i] : scores[i] - sums[row];
      value = -scratch.weights[row] * log_p;
    }
    if (task.attrs.reduction == Reduction::kNone) loss[row] = value;
    sum += static_cast<double>(value);
  }
  if (task.attrs.reduction == Reduction::kSum) loss[0] = static_cast<T>(sum);
  if (task.attrs.reduction == Reduction::kMean) loss[0] = static_cast<T>(sum / total);
}

// Fills labels and weights of the rows; each weight is multiplied by the cotangent of the row's
// loss.
template <std::floating_point T>
RowScratch<T> read_factors(const LossTask& task, KernelArgs args) {
  const T* dloss = args.at<T>(task.dloss);
  const RowScratch<T> scratch(args[task.scratch], task.rows());
  const double total = read_rows(task, args, scratch.weights, scratch.labels);
  const bool is_per_row = task.attrs.reduction == Reduction::kNone;
  const bool is_mean = task.attrs.reduction == Reduction::kMean;
  const T common = is_per_row ? T{1} : is_mean ? dloss[0] / static_cast<T>(total) : dloss[0];
  for (std::int64_t row = 0; row < task.rows(); ++row) {
    scratch.weights[row] *= is_per_row ? dloss[row] : common;
  }
  return scratch;
}

// Computes the gradient as run_grad does, for softmax over contiguous rows.
template <std::floating_point T>
void run_grad_rows(const LossTask& task, KernelArgs args) {
  const auto scratch = read_factors<T>(task, args);
  const T* scores = args.at<T>(task.scores);
  const T* sums = args.find<T>(task.log_sums);
  T* result = args.at<T>(task.result);
  share_rows(task, [&](std::int64_t first, std::int64_t count, std::int64_t /*thread*/) {
    const std::int64_t at = first * task.classes;
    rows::cross_entropy_grad(task.isa, scores + at, sums == nullptr ? nullptr : sums + first,
                             scratch.labels + first, scratch.weights + first, result + at, count,
                             task.classes);
  });
}

// Returns the thread's float32 buffer for one row of scores.
float* line_of(const LossTask& task, KernelArgs args, std::int64_t thread) {
  return task.lines.in(args[task.scratch]) + thread * task.classes;
}

// Computes loss and sums as run_loss_rows does, from f16 or bf16 scores.
void run_loss_halves(const LossTask& task, KernelArgs args) {
  const auto* scores = args.at<std::uint16_t>(task.scores);
  auto* loss = args.at<float>(task.result);
  auto* sums = args.at<float>(task.log_sums);
  const RowScratch<float> scratch(args[task.scratch], task.rows());
  const double total = read_rows(task, args, scratch.weights, scratch.labels);
  share_rows(task, [&](std::int64_t first, std::int64_t count, std::int64_t thread) {
    float* line = line_of(task, args, thread);
    for (std::int64_t row = first; row < first + count; ++row) {
      task.widen(line, scores + row * task.classes, task.classes);
      rows::log_sum_exp(task.isa, line, sums + row, 1, task.classes);
      scratch.numbers[row] = scratch.labels[row] < 0 ? 0.0F : line[scratch.labels[row]];
    }
  });
  if (loss == nullptr) return;
  double sum = 0;
  for (std::int64_t row = 0; row < task.rows(); ++row) {
    const float value =
        scratch.labels[row] < 0 ? 0.0F : scratch.weights[row] * (sums[row] - scratch.numbers[row]);
    if (task.attrs.reduction == Reduction::kNone) loss[row] = value;
    sum += static_cast<double>(value);
  }
  if (task.attrs.reduction == Reduction::kSum) loss[0] = static_cast<float>(sum);
  if (task.attrs.reduction == Reduction::kMean) loss[0] = static_cast<float>(sum / total);
}

// Computes the gradient from sums as run_grad_rows does; scores, gradient or both are f16 or bf16.
void run_grad_halves(const LossTask& task, KernelArgs args) {
  const auto scratch = read_factors<float>(task, args);
  const auto* sums = args.at<float>(task.log_sums);
  const std::byte* scores = args[task.scores];
  std::byte* result = args[task.result];
  share_rows(task, [&](std::int64_t first, std::int64_t count, std::int64_t thread) {
    float* line = line_of(task, args, thread);
    for (std::int64_t row = first; row < first + count; ++row) {
      const std::int64_t at = row * task.classes;
      const float* from = reinterpret_cast<const float*>(scores) + at;
      if (task.widen != nullptr) {
        task.widen(line, reinterpret_cast<const std::uint16_t*>(scores) + at, task.classes);
        from = line;
      }
      float* to = task.narrow != nullptr ? line : reinterpret_cast<float*>(result) + at;
      rows::cross_entropy_grad(task.isa, from, sums + row, scratch.labels + row,
                               scratch.weights + row, to, 1, task.classes);
      if (task.narrow == nullptr) continue;
      task.narrow(reinterpret_cast<std::uint16_t*>(result) + at, line, task.classes);
    }
  });
}

void check_operand(const LossTask& task, const std::string& name, const Dims& given,
                   const Dims& expected) {
  if (given == expected) return;
  throw ShapeError({.what = fmt::format("input {} has shape {}, expected {}", name,
                                        given.to_string(), expected.to_string()),
                    .where = {.node = task.node, .value = name},
                    .detail = "Scores are [N, C, D...], labels [N, D...], weights [C].",
                    .hint = "Give as many labels as rows, and as many weights as classes."});
}

Dims label_dims(const Dims& scores) {
  std::vector<std::int64_t> dims(scores.begin(), scores.end());
  dims.erase(dims.begin() + 1);
  return Dims(std::move(dims));
}

// Fills a task from the shapes; `first` is the argument of the scores, `result` of the first
// output.
LossTask make_task(const KernelRequest& request, int first) {
  const Dims& scores = request.inputs[static_cast<std::size_t>(first)].dims;
  const auto labels = static_cast<std::size_t>(first) + 1;
  LossTask task{.attrs = CrossEntropyAttrs::read(request.node),
                .isa = device::isa_of(request),
                .node = request.node.name};
  if (scores.rank() < 2) {
    throw ShapeError(
        {.what = "the scores have shape " + scores.to_string() + ", expected [N, C, D...]",
         .where = {.node = request.node.name, .op_type = request.node.op_type},
         .hint = "Give scores with a column per class."});
  }
  task.is_softmax = request.node.op_type.starts_with("Softmax");
  task.batch = scores[0];
  task.classes = scores[1];
  task.inner = scores.product(2, scores.rank());
  task.scores = first;
  task.labels = first + 1;
  task.labels_are_int32 = request.inputs[labels].dtype == DataType::kInt32;
  task.result = static_cast<int>(request.inputs.size());
  task.scratch = task.result + static_cast<int>(request.outputs.size());
  check_operand(task, "labels", request.inputs[labels].dims, label_dims(scores));
  if (labels + 1 < request.inputs.size() && request.inputs[labels + 1].is_present()) {
    task.weights = first + 2;
    check_operand(task, "weights", request.inputs[labels + 1].dims, Dims{scores[1]});
  }
  return task;
}

KernelOffer offer_typed(const KernelRequest& request, LossTask task, opdef::KernelFn for_float,
                        opdef::KernelFn for_double, const char* label) {
  const DataType dtype = request.inputs[static_cast<std::size_t>(task.scores)].dtype;
  if (dtype == DataType::kFloat32) return prepared(for_float, std::move(task), label);
  if (dtype == DataType::kFloat64) return prepared(for_double, std::move(task), label);
  return decline_dtype(request, dtype);
}

int row_threads(const LossTask& task, int most) {
  constexpr std::int64_t kParallelScores = 8192;  // minimum per thread
  return static_cast<int>(
      std::clamp<std::int64_t>(task.rows() * task.classes / kParallelScores, 1, most));
}

// Offers a kernel for contiguous rows, with RowScratch as scratch.
KernelOffer offer_rows(const KernelRequest& request, LossTask task, opdef::KernelFn for_float,
                       opdef::KernelFn for_double) {
  task.threads = row_threads(task, request.threads);
  if (!task.is_softmax) return KernelOffer::decline("no softmax to compute");
  if (task.inner != 1) return KernelOffer::decline("rows are not contiguous");
  KernelOffer offer = offer_typed(request, task, for_float, for_double, "simd rows");
  offer.kernel.scratch_bytes = RowScratch<double>::bytes(task.rows());
  return offer;
}

LossTask loss_task(const KernelRequest& request) {
  LossTask task = make_task(request, 0);
  if (request.has_output(1)) task.log_prob = task.result + 1;
  return task;
}

// Adds the check of the labels to a loss; its gradient reads the same labels, already checked.
KernelOffer with_label_check(KernelOffer offer) {
  offer.kernel.checks = {{.input = 1}};
  return offer;
}

KernelOffer offer_loss(const KernelRequest& request) {
  return with_label_check(offer_typed(request, loss_task(request), kKernel<run_loss<float>>,
                                      kKernel<run_loss<double>>, "reference"));
}

KernelOffer offer_loss_rows(const KernelRequest& request) {
  return with_label_check(offer_rows(request, loss_task(request), kKernel<run_loss_rows<float>>,
                                     kKernel<run_loss_rows<double>>));
}

// Offers a kernel for f16 or bf16 scores, with a float32 row per thread as additional scratch.
KernelOffer offer_f16(const KernelRequest& request, LossTask task, opdef::KernelFn fn) {
  task.threads = row_threads(task, request.threads);
  device::ScratchLayout layout;
  layout.reserve<std::byte>(RowScratch<double>::bytes(task.rows()));
  task.lines = layout.reserve<float>(task.threads * task.classes);
  KernelOffer offer = prepared(fn, std::move(task), "simd rows of halves");
  offer.kernel.scratch_bytes = layout.size_bytes();
  return offer;
}

// Whether the numbers beside the scores have the type that kernels read them in: that of the
// scores, float32 for 16 bits.
bool are_of_scores(const KernelRequest& request, DataType scores,
                   std::initializer_list<std::size_t> operands) {
  const DataType wanted = is_f16(scores) ? DataType::kFloat32 : scores;
  return std::ranges::all_of(operands, [&](std::size_t i) {
    return !request.has_input(i) || request.inputs[i].dtype == wanted;
  });
}

KernelOffer offer_loss_with_sums(const KernelRequest& request) {
  // With fewer scores, the time of a step is in other things.
  constexpr std::int64_t kFewestScores = std::int64_t{1} << 14;
  if (request.is_candidate && request.inputs[0].dims.num_elements() < kFewestScores) {
    return KernelOffer::decline(
        fmt::format("sums instead of probabilities do not pay below {} scores", kFewestScores));
  }
  LossTask task = make_task(request, 0);
  task.log_sums = task.result + 1;
  const DataType dtype = request.inputs[0].dtype;
  if (is_f16(dtype) && task.inner == 1) {
    task.widen = device::find_conversion(task.isa, dtype, DataType::kFloat32);
    return with_label_check(offer_f16(request, std::move(task), kKernel<run_loss_halves>));
  }
  return with_label_check(
      offer_rows(request, task, kKernel<run_loss_rows<float>>, kKernel<run_loss_rows<double>>));
}

LossTask grad_task(const KernelRequest& request) {
  LossTask task = make_task(request, 1);
  task.dloss = 0;
  const Dims& dloss = request.inputs[0].dims;
  const bool is_per_row = task.attrs.reduction == Reduction::kNone;
  if (is_per_row) check_operand(task, "dloss", dloss, request.inputs[2].dims);
  if (!is_per_row && dloss.num_elements() != 1) check_operand(task, "dloss", dloss, Dims{});
  return task;
}

KernelOffer offer_grad(const KernelRequest& request) {
  KernelOffer offer = offer_typed(request, grad_task(request), kKernel<run_grad<float>>,
                                  kKernel<run_grad<double>>, "reference");
  offer.kernel.in_place = {{1, 0}};
  return offer;
}

KernelOffer offer_grad_rows(const KernelRequest& request) {
  KernelOffer offer = offer_rows(request, grad_task(request), kKernel<run_grad_rows<float>>,
                                 kKernel<run_grad_rows<double>>);
  offer.kernel.in_place = {{1, 0}};
  return offer;
}

KernelOffer offer_grad_from_sums(const KernelRequest& request) {
  LossTask task = grad_task(request);
  task.log_sums = 4;
  const DataType from = request.inputs[1].dtype;
  const DataType to = request.outputs[0].dtype;
  if (!are_of_scores(request, from, {0, 3, 4})) {
    return KernelOffer::decline("the gradient of the loss has another type than the scores");
  }
  if (is_f16(from) || is_f16(to)) {
    if (task.inner != 1) return KernelOffer::decline("16 bits, and an axis after the classes");
    if (is_f16(from)) task.widen = device::find_conversion(task.isa, from, DataType::kFloat32);
    if (is_f16(to)) task.narrow = device::find_conversion(task.isa, DataType::kFloat32, to);
    KernelOffer offer = offer_f16(request, std::move(task), kKernel<run_grad_halves>);
    offer.kernel.in_place = {{1, 0}};
    return offer;
  }
  KernelOffer offer =
      offer_rows(request, task, kKernel<run_grad_rows<float>>, kKernel<run_grad_rows<double>>);
  offer.kernel.in_place = {{1, 0}};
  return offer;
}

}  // namespace

void register_cross_entropy_cpu(opdef::KernelRegistry& registry) {
  registry.add("", "SoftmaxCrossEntropyLoss", 0, offer_loss);
  registry.add("", "NegativeLogLikelihoodLoss", 0, offer_loss);
  registry.add(ir::kFunctionDomain, "SoftmaxCrossEntropyLossGrad", 0, offer_grad);
  registry.add("", "SoftmaxCrossEntropyLoss", 10, offer_loss_rows);
  registry.add(ir::kFunctionDomain, "SoftmaxCrossEntropyLossGrad", 10, offer_grad_rows);
  registry.add(ir::kFunctionDomain, "NegativeLogLikelihoodLossGrad", 0, offer_grad);
  // Operator of passes/keep_log_sums.cpp.
  registry.add(ir::kFusedDomain, "SoftmaxCrossEntropyLoss", 0, offer_loss_with_sums);
  registry.add(ir::kFusedDomain, "SoftmaxCrossEntropyLossGrad", 0, offer_grad_from_sums);
}

}  // namespace onnxgrad::ops::cross_entropy_cpu
