#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "ir/builder.h"
#include "ops/block_text_cuda.h"
#include "ops/fault_text_cuda.h"
#include "ops/kernel_support.h"
#include "ops/kernel_support_cuda.h"
#include "ops/loss/cross_entropy.h"
#include "ops/loss/label_error.h"

// SoftmaxCrossEntropyLoss, NegativeLogLikelihoodLoss, their gradients and the forms that keep sums
// of exponentials instead of probabilities (passes/keep_log_sums.cpp). Scores are [batch, classes,
// inner], labels [batch, inner]: a column is a row of scores. A label out of range is refused.

namespace onnxgrad::ops::cross_entropy_cuda {
namespace {

using device::cuda::TextKernel;
using device::cuda::Word;

// Words of all kernels: scores, labels, weights, dloss, result, log p, log sums, numbers of rows
// (in scratch); rows, classes, inner, whether there is an ignored label, the label, reduction (0:
// none, 1: sum, 2: mean), whether there is a softmax, 0; where labels are refused.
constexpr const char* kText = R"(
template <class W>
OG_FUNCTION og_i64 og_label_of(const W& a, og_i64 row) {
  const og_i64 label = (og_i64)a.template pointer<og_label>(1)[row];
  if (a.integer(11) != 0 && label == a.integer(12)) return -1;
  if (label >= 0 && label < a.integer(9)) return label;
  og_refuse(a.template pointer<og_u64>(16), a.integer(17), label, row);
  return -1;
}

template <class W>
OG_FUNCTION og_t og_weight_of(const W& a, og_i64 label) {
  if (label < 0) return 0;
  const og_t* const weights = a.template pointer<og_t>(2);
  return weights == 0 ? (og_t)1 : weights[label];
}

OG_KERNEL(og_rows, 18) {
  const og_scores* const scores = a.pointer<og_scores>(0);
  og_t* const log_prob = a.pointer<og_t>(5);
  og_t* const log_sums = a.pointer<og_t>(6);
  og_t* const losses = a.pointer<og_t>(4);
  double* const numbers = a.pointer<double>(7);
  const og_i64 rows = a.integer(8), classes = a.integer(9), inner = a.integer(10);
  for (og_i64 first = (og_i64)blockIdx.x * blockDim.x; first < rows; first += og_columns()) {
    const og_i64 row = first + threadIdx.x;
    const og_i64 end = row < rows ? classes : 0;
    const og_scores* const x = scores + row / inner * classes * inner + row % inner;
    og_t shift = 0;
    if (a.integer(14) != 0) {
      og_t most = -(og_t)og_infinity();
      for (og_i64 i = threadIdx.y; i < end; i += blockDim.y) {
        most = og_max(most, (og_t)og_get(x[i * inner]));
      }
      most = og_fold_rows<og_largest>(most);
      double sum = 0;
      for (og_i64 i = threadIdx.y; i < end; i += blockDim.y) {
        sum += og_exp((og_t)og_get(x[i * inner]) - most);
      }
      shift = most + (og_t)log(og_fold_rows<og_sum>(sum));
    }
    if (log_prob != 0) {
      og_t* const to = log_prob + (x - scores);
      for (og_i64 i = threadIdx.y; i < end; i += blockDim.y) {
        to[i * inner] = (og_t)og_get(x[i * inner]) - shift;
      }
    }
    if (threadIdx.y != 0 || row >= rows) continue;
    if (log_sums != 0) log_sums[row] = shift;
    const og_i64 label = og_label_of(a, row);
    const og_t weight = og_weight_of(a, label);
    og_t value = 0;
    if (label >= 0) value = weight * (shift - (og_t)og_get(x[label * inner]));
    if (a.integer(13) == 0) {
      if (losses != 0) losses[row] = value;
    } else {
      numbers[row] = (double)value;
      numbers[rows + row] = (double)weight;
    }
  }
}

// One block: sums of the numbers of the rows.
OG_KERNEL(og_loss, 18) {
  const double* const numbers = a.pointer<double>(7);
  const og_i64 rows = a.integer(8);
  double sum = 0, total = 0;
  for (og_i64 row = threadIdx.y; row < rows; row += blockDim.y) {
    sum += numbers[row];
    total += numbers[rows + row];
  }
  sum = og_fold_rows<og_sum>(sum);
  total = og_fold_rows<og_sum>(total);
  if (threadIdx.x + threadIdx.y == 0) a.pointer<og_t>(4)[0] = (og_t)(a.integer(13) == 2 ? sum / total : sum);
}

OG_KERNEL(og_total, 18) {
  double total = 0;
  for (og_i64 row = threadIdx.y; row < a.integer(8); row += blockDim.y) {
    total += (double)og_weight_of(a, og_label_of(a, row));
  }
  total = og_fold_rows<og_sum>(total);
  if (threadIdx.x + threadIdx.y == 0) a.pointer<double>(7)[0] = total;
}

OG_KERNEL(og_gradient, 18) {
  const og_scores* const scores = a.pointer<og_scores>(0);
  const og_t* const dloss = a.pointer<og_t>(3);
  const og_t* const log_sums = a.pointer<og_t>(6);
  og_result* const result = a.pointer<og_result>(4);
  const og_i64 rows = a.integer(8), classes = a.integer(9), inner = a.integer(10);
  for (og_i64 first = (og_i64)blockIdx.x * blockDim.x; first < rows; first += og_columns()) {
    const og_i64 row = first + threadIdx.x;
    if (row >= rows) continue;
    const og_i64 begin = row / inner * classes * inner + row % inner;
    const og_i64 label = og_label_of(a, row);
    const og_t scale = a.integer(13) == 0   ? dloss[row]
                       : a.integer(13) == 1 ? dloss[0]
                                            : dloss[0] / (og_t)*a.pointer<double>(7);
    const og_t factor = og_weight_of(a, label) * scale;
    const og_t shift = log_sums == 0 ? (og_t)0 : log_sums[row];
    for (og_i64 c = threadIdx.y; c < classes; c += blockDim.y) {
      const og_i64 i = begin + c * inner;
      const og_t p = a.integer(14) == 0 ? (og_t)0 : og_exp((og_t)og_get(scores[i]) - shift);
      og_set(result, i, label < 0 ? (og_t)0 : (p - (og_t)(c == label)) * factor);
    }
  }
}
)";

struct Places {
  int scores = 0, dloss = -1, result = -1, log_prob = -1, log_sums = -1;
};

struct Loss {
  Columns rows = {};
  std::vector<Word> words = {};
  std::string text = {};
  Refusal labels = {};
  Reduction reduction = Reduction::kMean;
  std::string declined = {};
};

Loss loss_of(const KernelRequest& request, const Places& at, DataType numbers, DataType result) {
  const auto first = static_cast<std::size_t>(at.scores);
  const TensorDesc& scores = request.inputs[first];
  const TensorDesc& labels = request.inputs[first + 1];
  const Dims& x = scores.dims;
  if (numbers != DataType::kFloat32 && numbers != DataType::kFloat64) {
    return {.declined = "float32 and float64 only"};
  }
  if (x.rank() < 2 || labels.dims.num_elements() * x[1] != x.num_elements()) {
    return {.declined = "labels that do not fit the scores"};
  }
  const bool has_weights =
      request.has_input(first + 2) && first + 2 != static_cast<std::size_t>(at.log_sums);
  if (has_weights && request.inputs[first + 2].dims.num_elements() != x[1]) {
    return {.declined = "weights that do not fit the classes"};
  }
  const auto attrs = CrossEntropyAttrs::read(request.node);
  const std::int64_t inner = x.product(2, x.rank());
  const auto scratch = static_cast<int>(request.inputs.size() + request.outputs.size());
  Loss loss{.rows = {.count = x[0] * inner, .length = x[1], .are_adjacent = inner > 1},
            .reduction = attrs.reduction};
  loss.words = {Word::argument(at.scores),
                Word::argument(at.scores + 1),
                optional_argument(has_weights ? at.scores + 2 : -1),
                optional_argument(at.dloss),
                Word::argument(at.result),
                optional_argument(at.log_prob),
                optional_argument(at.log_sums),
                Word::argument(scratch)};
  add_integers(loss.words,
               {loss.rows.count, x[1], std::max<std::int64_t>(inner, 1), attrs.ignore_index ? 1 : 0,
                attrs.ignore_index.value_or(0), static_cast<std::int64_t>(attrs.reduction),
                request.node.op_type.starts_with("Softmax") ? 1 : 0, 0});
  const auto raise = [node = request.node.name, classes = x[1], ignored = attrs.ignore_index](
                         std::int64_t label, std::int64_t row) {
    throw_label_error(node, classes, ignored, row, label);
  };
  loss.labels = refusal(request, raise);
  loss.labels.append(loss.words);
  loss.text = std::string(fault_text()) +
              typedefs({{"og_t", text_type(numbers)},
                        {"og_scores", text_type(scores.dtype)},
                        {"og_result", text_type(result)},
                        {"og_label", text_type(labels.dtype)}}) +
              kText;
  return loss;
}

static_assert(static_cast<int>(Reduction::kNone) == 0 && static_cast<int>(Reduction::kSum) == 1 &&
              static_cast<int>(Reduction::kMean) == 2);

TextKernel over_rows(const KernelRequest& request, const Loss& loss, const char* name) {
  TextKernel kernel = column_kernel(request, loss.rows, loss.text, name, loss.words);
  kernel.keeps = loss.labels.record;
  return kernel;
}

TextKernel in_one_block(const KernelRequest& request, const Loss& loss, const char* name) {
  TextKernel kernel =
      column_kernel(request, {.count = 1, .length = loss.rows.count}, loss.text, name, loss.words);
  kernel.keeps = loss.labels.record;
  return kernel;
}

KernelOffer offer_forward(const KernelRequest& request, const Places& at) {
  const DataType scores = request.inputs[0].dtype;
  const DataType numbers = is_f16(scores) ? DataType::kFloat32 : scores;
  if (is_f16(scores) && at.log_sums < 0) return decline_dtype(request, scores);
  for (std::size_t i = 0; i < request.outputs.size(); ++i) {
    if (request.has_output(i) && request.outputs[i].dtype != numbers) {
      return decline_dtype(request, request.outputs[i].dtype);
    }
  }
  const Loss loss = loss_of(request, at, numbers, numbers);
  if (!loss.declined.empty()) return KernelOffer::decline(loss.declined);
  std::vector<TextKernel> launches{over_rows(request, loss, "og_rows")};
  const bool is_summed = loss.reduction != Reduction::kNone;
  if (is_summed && request.has_output(0))
    launches.push_back(in_one_block(request, loss, "og_loss"));
  KernelOffer offer;
  offer.kernel = prepared(std::move(launches), "rows of " + std::to_string(loss.rows.length));
  if (is_summed) offer.kernel.scratch_bytes = loss.rows.count * 16;
  offer.kernel.checks = {{.input = 1}};
  return offer;
}

KernelOffer offer_loss(const KernelRequest& request) {
  const auto result = static_cast<int>(request.inputs.size());
  return offer_forward(request,
                       {.result = result, .log_prob = request.has_output(1) ? result + 1 : -1});
}

KernelOffer offer_loss_with_sums(const KernelRequest& request) {
  const auto result = static_cast<int>(request.inputs.size());
  return offer_forward(request, {.result = result, .log_sums = result + 1});
}

KernelOffer offer_backward(const KernelRequest& request, int log_sums) {
  const DataType scores = request.inputs[1].dtype;
  const DataType result = request.outputs[0].dtype;
  const DataType numbers = is_f16(scores) ? DataType::kFloat32 : scores;
  const bool may_be_f16 = log_sums >= 0;
  if (!may_be_f16 && (is_f16(scores) || result != scores)) return decline_dtype(request, result);
  if (result != numbers && !is_f16(result)) return decline_dtype(request, result);
  for (const std::size_t i : {std::size_t{0}, std::size_t{3}, std::size_t{4}}) {
    if (request.has_input(i) && request.inputs[i].dtype != numbers) {
      return decline_dtype(request, request.inputs[i].dtype);
    }
  }
  const Places at{.scores = 1,
                  .dloss = 0,
                  .result = static_cast<int>(request.inputs.size()),
                  .log_sums = log_sums};
  const Loss loss = loss_of(request, at, numbers, result);
  if (!loss.declined.empty()) return KernelOffer::decline(loss.declined);
  std::vector<TextKernel> launches;
  const bool is_mean = loss.reduction == Reduction::kMean;
  if (is_mean) launches.push_back(in_one_block(request, loss, "og_total"));
  launches.push_back(over_rows(request, loss, "og_gradient"));
  KernelOffer offer;
  offer.kernel = prepared(std::move(launches), "rows of " + std::to_string(loss.rows.length));
  if (is_mean) offer.kernel.scratch_bytes = 8;
  if (scores == result) offer.kernel.in_place = {{1, 0}};
  return offer;
}

KernelOffer offer_grad(const KernelRequest& request) { return offer_backward(request, -1); }
KernelOffer offer_grad_from_sums(const KernelRequest& request) {
  return offer_backward(request, 4);
}

}  // namespace

void register_cross_entropy_cuda(opdef::KernelRegistry& registry) {
  registry.add("", "SoftmaxCrossEntropyLoss", 0, offer_loss);
  registry.add("", "NegativeLogLikelihoodLoss", 0, offer_loss);
  registry.add(ir::kFunctionDomain, "SoftmaxCrossEntropyLossGrad", 0, offer_grad);
  registry.add(ir::kFunctionDomain, "NegativeLogLikelihoodLossGrad", 0, offer_grad);
  registry.add(ir::kFusedDomain, "SoftmaxCrossEntropyLoss", 0, offer_loss_with_sums);
  registry.add(ir::kFusedDomain, "SoftmaxCrossEntropyLossGrad", 0, offer_grad_from_sums);
}

}  // namespace onnxgrad::ops::cross_entropy_cuda
