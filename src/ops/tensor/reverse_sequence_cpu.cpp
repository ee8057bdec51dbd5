#include <cstring>

#include "device/cpu/threads.h"
#include "onnxgrad/error.h"
#include "opdef/kernel.h"
#include "ops/kernel_support.h"
#include "ops/tensor/reverse_sequence_error.h"

// The data is [d0, d1, block]: time and batch are the first two axes, in either order.

namespace onnxgrad::ops {

void throw_sequence_length(std::int64_t length, std::int64_t times, const std::string& node) {
  throw DataError({.what = "sequence of length " + std::to_string(length) + ", expected 0 to " +
                           std::to_string(times) + ", in " + node,
                   .hint = "Give lengths of at most the size of the time axis."});
}

}  // namespace onnxgrad::ops

namespace onnxgrad::ops::reverse_sequence_cpu {
namespace {

struct ReverseData {
  std::int64_t times = 0;
  std::int64_t batch = 0;
  std::int64_t time_bytes = 0;   ///< stride of the time axis
  std::int64_t batch_bytes = 0;  ///< stride of the batch axis
  std::int64_t block_bytes = 0;
  int threads = 1;
  std::string node;
};

void run_reverse(const ReverseData& task, KernelArgs args) {
  const auto* lengths = args.at<std::int64_t>(1);
  for (std::int64_t b = 0; b < task.batch; ++b) {
    if (lengths[b] < 0 || lengths[b] > task.times) {
      throw_sequence_length(lengths[b], task.times, task.node);
    }
  }
  device::parallel_for(task.threads, task.times, [&](std::int64_t t) {
    for (std::int64_t b = 0; b < task.batch; ++b) {
      const std::int64_t from = t < lengths[b] ? lengths[b] - 1 - t : t;
      std::memcpy(args[2] + t * task.time_bytes + b * task.batch_bytes,
                  args[0] + from * task.time_bytes + b * task.batch_bytes,
                  static_cast<std::size_t>(task.block_bytes));
    }
  });
}

KernelOffer offer_reverse(const KernelRequest& request) {
  const Dims& dims = request.inputs[0].dims;
  const std::int64_t bytes = element_bytes(request.inputs[0].dtype);
  if (bytes == 0) return decline_dtype(request, request.inputs[0].dtype);
  const auto time = static_cast<std::size_t>(request.node.int_attribute("time_axis"));
  const auto batch = static_cast<std::size_t>(request.node.int_attribute("batch_axis"));
  if (dims.rank() < 2 || time == batch || request.inputs[1].dims != Dims{dims[batch]}) {
    throw ShapeError({.what = "sequence_lens of shape " + request.inputs[1].dims.to_string() +
                              " for an input of shape " + dims.to_string(),
                      .where = {.node = request.node.name, .op_type = request.node.op_type},
                      .detail = "Batch axis " + std::to_string(batch) + ", time axis " +
                                std::to_string(time) + ".",
                      .hint = "Give one length for each sequence; one of the first two axes is the "
                              "batch, the other one time."});
  }
  ReverseData data{.times = dims[time],
                   .batch = dims[batch],
                   .block_bytes = dims.product(2, dims.rank()) * bytes,
                   .node = request.node.describe()};
  data.time_bytes = data.block_bytes * (time == 0 ? dims[1] : 1);
  data.batch_bytes = data.block_bytes * (batch == 0 ? dims[1] : 1);
  constexpr std::int64_t kParallelBytes = 1 << 20;
  if (dims.num_elements() * bytes >= kParallelBytes) data.threads = request.threads;
  const std::int64_t times = data.times;
  KernelOffer offer = prepared<run_reverse>(std::move(data), "plain reversal");
  note_index_check(request, offer, 1, {times + 1}, /*from_zero=*/true);
  return offer;
}

}  // namespace

void register_reverse_sequence_cpu(opdef::KernelRegistry& registry) {
  registry.add("", "ReverseSequence", 0, offer_reverse);
}

}  // namespace onnxgrad::ops::reverse_sequence_cpu
