#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <concepts>
#include <string>
#include <utility>

#include "opdef/registry.h"
#include "ops/kernel_support.h"
#include "ops/random/draws.h"
#include "ops/random/dropout_ratio.h"
#include "ops/random/random_errors.h"

// Reference kernel of Dropout. Element i (of the whole batch) uses word i % 4 of block i / 4 and is
// dropped if that word is below ratio * 2^32.

namespace onnxgrad::ops {

double read_dropout_ratio(const std::byte* ratio, DataType dtype, const std::string& node) {
  if (ratio == nullptr) return 0.5;
  const double number = read_float(ratio, dtype);
  if (number >= 0 && number < 1) return number;
  throw_dropout_ratio(number, node);
}

void throw_dropout_ratio(double ratio, const std::string& node) {
  throw DataError({.what = fmt::format("ratio is {}", ratio),
                   .where = {.node = node, .op_type = "Dropout", .value = "ratio"},
                   .detail = "The fraction of elements to drop must be at least 0 and below 1.",
                   .hint = "Give a fraction such as 0.5."});
}

void note_dropout_check(const KernelRequest& request, KernelOffer& offer, std::size_t input,
                        std::size_t training_mode) {
  const auto constant = [&](std::size_t i) {
    return i < request.constants.size() ? request.constants[i] : nullptr;
  };
  const bool has_mode =
      training_mode < request.inputs.size() && request.inputs[training_mode].is_present();
  const Tensor* mode = constant(training_mode);
  if (!has_mode || (mode != nullptr && mode->to_int64s().front() == 0)) return;
  if (input >= request.inputs.size() || !request.inputs[input].is_present()) return;
  const Tensor* ratio = constant(input);
  if (ratio != nullptr && ratio->num_elements() == 1) {
    const double number = ratio->to_doubles().front();
    if (number >= 0 && number < 1) return;
  }
  offer.kernel.checks.push_back({.input = static_cast<int>(input)});
}

}  // namespace onnxgrad::ops

namespace onnxgrad::ops::dropout_cpu {

namespace {

struct DropoutTask {
  std::int64_t count = 0;
  RandomStream draws = {};
  RowStretches rows = {};
  int ratio = -1;  ///< argument; -1: the ratio is 0.5
  DataType ratio_dtype = DataType::kUndefined;
  int training_mode = -1;  ///< argument; -1: false
  int output = 0;          ///< argument of y
  bool has_mask = false;
  std::string node;
};

template <std::floating_point T>
void run_dropout(const DropoutTask& task, KernelArgs args, const Launch& launch) {
  const T* x = args.at<T>(0);
  T* y = args.at<T>(task.output);
  auto* mask = task.has_mask ? args.at<std::uint8_t>(task.output + 1) : nullptr;
  const bool is_training = task.training_mode >= 0 && args[task.training_mode][0] != std::byte{0};
  const std::byte* given = task.ratio < 0 ? nullptr : args[task.ratio];
  const double ratio = is_training ? read_dropout_ratio(given, task.ratio_dtype, task.node) : 0;
  if (!is_training || ratio == 0) {
    if (y != nullptr && y != x) std::copy_n(x, task.count, y);
    if (mask != nullptr) std::fill_n(mask, task.count, std::uint8_t{1});
    return;
  }
  const auto threshold = static_cast<std::uint64_t>(std::ldexp(ratio, 32));
  const auto scale = static_cast<T>(1 / (1 - ratio));
  task.rows.visit(launch, [&](std::int64_t begin, std::int64_t number, std::int64_t count) {
    // The first block may start before this stretch.
    for (std::int64_t i = -(number % 4); i < count; i += 4) {
      const auto words = task.draws.block(launch, static_cast<std::uint64_t>(number + i) / 4);
      const std::int64_t end = std::min<std::int64_t>(count - i, 4);
      for (std::int64_t k = std::max<std::int64_t>(-i, 0); k < end; ++k) {
        const bool keep = words[static_cast<std::size_t>(k)] >= threshold;
        const std::int64_t at = begin + i + k;
        if (y != nullptr) y[at] = keep ? x[at] * scale : T{0};
        if (mask != nullptr) mask[at] = keep ? 1 : 0;
      }
    }
  });
}

void check_scalar(const KernelRequest& request, std::size_t input) {
  if (request.inputs[input].dims.num_elements() == 1) return;
  throw ShapeError({.what = fmt::format("input {} has shape {}, expected a scalar", input,
                                        request.inputs[input].dims.to_string()),
                    .where = {.node = request.node.name, .op_type = "Dropout"},
                    .hint = "Give one number for all elements."});
}

KernelOffer offer_dropout(const KernelRequest& request) {
  const auto& in = request.inputs;
  DropoutTask task{.count = in[0].dims.num_elements(),
                   .draws = RandomStream::of(request.node),
                   .rows = RowStretches::of(request.node, in[0].dims),
                   .output = static_cast<int>(in.size()),
                   .has_mask = request.has_output(1),
                   .node = request.node.name};
  if (in.size() > 1 && in[1].is_present()) {
    check_scalar(request, 1);
    task.ratio = 1;
    task.ratio_dtype = in[1].dtype;
    if (task.ratio_dtype != DataType::kFloat32 && task.ratio_dtype != DataType::kFloat64) {
      return decline_dtype(request, task.ratio_dtype);
    }
  }
  if (in.size() > 2 && in[2].is_present()) {
    check_scalar(request, 2);
    task.training_mode = 2;
  }
  KernelOffer offer = offer_for_types<float, double>(request, in[0].dtype, [&]<class T>(T) {
    return prepared<run_dropout<T>>(std::move(task), "reference");
  });
  offer.kernel.in_place = {{0, 0}};
  note_dropout_check(request, offer, 1, 2);
  return offer;
}

}  // namespace

void register_dropout_cpu(opdef::KernelRegistry& registry) {
  registry.add("", "Dropout", 0, offer_dropout);
}

}  // namespace onnxgrad::ops::dropout_cpu
