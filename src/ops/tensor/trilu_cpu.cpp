#include <algorithm>
#include <cstring>

#include "opdef/kernel.h"
#include "ops/kernel_support.h"

namespace onnxgrad::ops::trilu_cpu {
namespace {

struct TriluData {
  std::int64_t matrices = 0;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t element_bytes = 0;
  bool is_upper = true;
  bool has_k = false;
  std::size_t output_arg = 1;
};

// Row i keeps columns [i + k, columns) or [0, i + k + 1); k is clamped to the range where it
// matters.
void run_trilu(const TriluData& t, KernelArgs args) {
  const std::int64_t given = t.has_k ? *args.at<const std::int64_t>(1) : 0;
  const std::int64_t k = std::clamp(given, -t.rows - 1, t.columns + 1);
  const std::byte* x = args[0];
  std::byte* y = args[t.output_arg];
  const std::int64_t row_bytes = t.columns * t.element_bytes;
  for (std::int64_t m = 0; m < t.matrices; ++m) {
    for (std::int64_t i = 0; i < t.rows; ++i) {
      const std::int64_t edge =
          std::clamp<std::int64_t>(t.is_upper ? i + k : i + k + 1, 0, t.columns) * t.element_bytes;
      const auto head = static_cast<std::size_t>(edge);
      const auto tail = static_cast<std::size_t>(row_bytes - edge);
      if (t.is_upper) {
        std::memset(y, 0, head);
        std::memcpy(y + edge, x + edge, tail);
      } else {
        std::memcpy(y, x, head);
        std::memset(y + edge, 0, tail);
      }
      x += row_bytes;
      y += row_bytes;
    }
  }
}

KernelOffer offer_trilu(const KernelRequest& request) {
  const Dims& dims = request.inputs[0].dims;
  const std::int64_t bytes = element_bytes(request.inputs[0].dtype);
  if (bytes == 0) return decline_dtype(request, request.inputs[0].dtype);
  if (dims.rank() < 2) {
    throw ShapeError({.what = "shape " + dims.to_string() + ", expected at least two axes",
                      .where = {.node = request.node.name, .op_type = "Trilu"},
                      .hint = "Reshape the input to matrices."});
  }
  const bool has_k = request.has_input(1);
  if (has_k && request.inputs[1].dims.num_elements() != 1) {
    throw ShapeError(
        {.what = "k has shape " + request.inputs[1].dims.to_string() + ", expected one number",
         .where = {.node = request.node.name, .op_type = "Trilu"},
         .hint = "Give one diagonal for all matrices."});
  }
  return prepared<run_trilu>(TriluData{.matrices = dims.product(0, dims.rank() - 2),
                                       .rows = dims[dims.rank() - 2],
                                       .columns = dims[dims.rank() - 1],
                                       .element_bytes = bytes,
                                       .is_upper = request.node.int_attribute("upper") != 0,
                                       .has_k = has_k,
                                       .output_arg = request.inputs.size()},
                             "plain triangle");
}

}  // namespace

void register_trilu_cpu(opdef::KernelRegistry& registry) {
  registry.add("", "Trilu", 0, offer_trilu);
}

}  // namespace onnxgrad::ops::trilu_cpu
