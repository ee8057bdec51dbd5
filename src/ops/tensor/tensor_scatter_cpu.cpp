#include <algorithm>
#include <cstring>

#include "onnxgrad/error.h"
#include "opdef/kernel.h"
#include "ops/kernel_support.h"

// The cache is [batch, prefixes, length, block], the update [batch, prefixes, count, block].

namespace onnxgrad::ops::tensor_scatter_cpu {
namespace {

struct TensorScatterData {
  std::int64_t batch = 0;
  std::int64_t prefixes = 0;
  std::int64_t length = 0;
  std::int64_t count = 0;
  std::int64_t block_bytes = 0;
  bool is_circular = false;
  bool has_starts = false;
  std::size_t output_arg = 2;
  std::string node;
};

std::int64_t start_of(const TensorScatterData& task, const std::int64_t* starts, std::int64_t b) {
  const std::int64_t start = task.has_starts ? starts[b] : 0;
  if (task.is_circular) return (start % task.length + task.length) % task.length;
  if (start < 0 || start > task.length - task.count) {  // their sum could overflow
    throw DataError({.what = "write index " + std::to_string(start) + " for " +
                             std::to_string(task.count) + " of " + std::to_string(task.length) +
                             " positions, in " + task.node,
                     .hint = "Give a larger cache, or smaller write indices."});
  }
  return start;
}

void run_tensor_scatter(const TensorScatterData& task, KernelArgs args) {
  const auto* starts = args.at<std::int64_t>(2);
  std::byte* present = args[task.output_arg];
  const std::int64_t cache_bytes = task.length * task.block_bytes;
  const std::int64_t update_bytes = task.count * task.block_bytes;
  const std::int64_t all_bytes = task.batch * task.prefixes * cache_bytes;
  if (present != args[0]) std::memcpy(present, args[0], static_cast<std::size_t>(all_bytes));
  if (update_bytes == 0) return;
  for (std::int64_t b = 0; b < task.batch; ++b) {
    const std::int64_t start = start_of(task, starts, b);
    const std::int64_t head = std::min(task.count, task.length - start);
    for (std::int64_t p = 0; p < task.prefixes; ++p) {
      std::byte* to = present + (b * task.prefixes + p) * cache_bytes;
      const std::byte* from = args[1] + (b * task.prefixes + p) * update_bytes;
      std::memcpy(to + start * task.block_bytes, from,
                  static_cast<std::size_t>(head * task.block_bytes));
      std::memcpy(to, from + head * task.block_bytes,
                  static_cast<std::size_t>((task.count - head) * task.block_bytes));
    }
  }
}

KernelOffer offer_tensor_scatter(const KernelRequest& request) {
  const Dims& dims = request.inputs[0].dims;
  const Dims& update = request.inputs[1].dims;
  const std::int64_t bytes = element_bytes(request.inputs[0].dtype);
  if (bytes == 0) return decline_dtype(request, request.inputs[0].dtype);
  const auto axis =
      static_cast<std::size_t>(normalize_axis(request.node.int_attribute("axis"), dims.rank()));
  const bool has_starts = request.has_input(2);
  bool fits = axis > 0 && update.rank() == dims.rank() && update[axis] <= dims[axis];
  for (std::size_t i = 0; fits && i < dims.rank(); ++i) fits = i == axis || update[i] == dims[i];
  if (fits && has_starts) fits = request.inputs[2].dims == Dims{dims[0]};
  if (!fits) {
    throw ShapeError(
        {.what = "an update of shape " + update.to_string() + " for a cache of shape " +
                 dims.to_string() + " along axis " + std::to_string(axis),
         .where = {.node = request.node.name, .op_type = request.node.op_type},
         .hint = "Only along the axis, which is not the first, may the update be smaller; give one "
                 "write index for each sample of the batch."});
  }
  KernelOffer offer = prepared<run_tensor_scatter>(
      TensorScatterData{.batch = dims[0],
                        .prefixes = dims.product(1, axis),
                        .length = dims[axis],
                        .count = update[axis],
                        .block_bytes = dims.product(axis + 1, dims.rank()) * bytes,
                        .is_circular = request.node.string_attribute("mode") == "circular",
                        .has_starts = has_starts,
                        .output_arg = request.inputs.size(),
                        .node = request.node.describe()},
      "plain copies");
  offer.kernel.in_place = {{0, 0}};
  if (has_starts && request.node.string_attribute("mode") != "circular") {
    note_index_check(request, offer, 2, {dims[axis] - update[axis] + 1}, /*from_zero=*/true);
  }
  return offer;
}

}  // namespace

void register_tensor_scatter_cpu(opdef::KernelRegistry& registry) {
  registry.add("", "TensorScatter", 0, offer_tensor_scatter);
}

}  // namespace onnxgrad::ops::tensor_scatter_cpu
