#include <algorithm>
#include <array>
#include <cstring>

#include "opdef/kernel.h"
#include "ops/kernel_support.h"
#include "ops/tensor/strided_copy_cpu.h"

// Reference kernels of the gathering operators. Every index is checked when the step runs.

namespace onnxgrad::ops::gather_cpu {
namespace {

// y [outer, indices, block] is gathered from x [outer, length, block]; block in bytes.
struct GatherData {
  std::int64_t outer = 0;
  std::int64_t length = 0;
  std::int64_t num_indices = 0;
  std::int64_t block_bytes = 0;
  IndexSource source;
};

template <class Index>
void run_gather(const GatherData& gather, KernelArgs args) {
  const auto* indices = args.at<Index>(1);
  std::byte* y = args[2];
  const auto bytes = static_cast<std::size_t>(gather.block_bytes);
  for (std::int64_t o = 0; o < gather.outer; ++o) {
    const std::byte* x = args[0] + o * gather.length * gather.block_bytes;
    for (std::int64_t i = 0; i < gather.num_indices; ++i) {
      const std::int64_t index =
          checked_index(static_cast<std::int64_t>(indices[i]), gather.length, gather.source, i);
      std::memcpy(y, x + index * gather.block_bytes, bytes);
      y += gather.block_bytes;
    }
  }
}

KernelOffer offer_gather(const KernelRequest& request) {
  const std::int64_t bytes = element_bytes(request.inputs[0].dtype);
  if (bytes == 0) return decline_dtype(request, request.inputs[0].dtype);
  const Dims& dims = request.inputs[0].dims;
  const auto axis =
      static_cast<std::size_t>(normalize_axis(request.node.int_attribute("axis"), dims.rank()));
  GatherData data{.outer = dims.product(0, axis),
                  .length = dims[axis],
                  .num_indices = request.inputs[1].dims.num_elements(),
                  .block_bytes = dims.product(axis + 1, dims.rank()) * bytes,
                  .source = index_source(request, 1)};
  const bool is_wide = request.inputs[1].dtype == DataType::kInt64;
  KernelOffer offer =
      prepared(is_wide ? kKernel<run_gather<std::int64_t>> : kKernel<run_gather<std::int32_t>>,
               std::move(data), "plain gather");
  note_index_check(request, offer, 1, {dims[axis]});
  return offer;
}

// y[i] = x[i with i_axis = indices[i]]. The output is traversed in rows along its last axis.
struct GatherElementsData {
  std::vector<std::int64_t> sizes;           // sizes of the output
  std::vector<std::int64_t> source_strides;  // elements; 0 along the axis
  std::int64_t axis_stride = 0;
  std::int64_t length = 0;
  IndexSource source;
};

template <class T, class Index>
void run_gather_elements(const GatherElementsData& gather, KernelArgs args) {
  const auto* x = args.at<T>(0);
  const auto* const begin = args.at<Index>(1);
  const Index* indices = begin;
  auto* y = args.at<T>(2);
  if (std::ranges::find(gather.sizes, 0) != gather.sizes.end()) return;
  const std::size_t outer = gather.sizes.size() - 1;
  const std::int64_t step = gather.source_strides[outer];
  std::array<std::int64_t, Dims::kMaxRank> position;
  std::fill_n(position.begin(), outer, 0);
  while (true) {
    for (std::int64_t i = 0; i < gather.sizes[outer]; ++i) {
      const std::int64_t index = checked_index(static_cast<std::int64_t>(*indices), gather.length,
                                               gather.source, indices - begin);
      ++indices;
      *y++ = x[index * gather.axis_stride + i * step];
    }
    std::size_t axis = outer;
    while (axis > 0) {
      x += gather.source_strides[axis - 1];
      if (++position[axis - 1] < gather.sizes[axis - 1]) break;
      x -= gather.source_strides[axis - 1] * gather.sizes[axis - 1];
      position[axis - 1] = 0;
      --axis;
    }
    if (axis == 0) return;
  }
}

template <class Index>
opdef::KernelFn choose_gather_elements(std::int64_t bytes) {
  if (bytes == 1) return kKernel<run_gather_elements<std::uint8_t, Index>>;
  if (bytes == 2) return kKernel<run_gather_elements<std::uint16_t, Index>>;
  if (bytes == 4) return kKernel<run_gather_elements<std::uint32_t, Index>>;
  if (bytes == 8) return kKernel<run_gather_elements<std::uint64_t, Index>>;
  return nullptr;
}

// Along other axes there may be fewer indices than data, never more.
void check_index_shape(const KernelRequest& request, const Dims& data, const Dims& indices,
                       std::size_t axis) {
  bool fits = indices.rank() == data.rank();
  for (std::size_t i = 0; fits && i < data.rank(); ++i) fits = i == axis || indices[i] <= data[i];
  if (fits) return;
  throw ShapeError({.what = "indices of shape " + indices.to_string() +
                            " do not match data of shape " + data.to_string(),
                    .where = {.node = request.node.name, .op_type = request.node.op_type},
                    .hint = "Give indices of the shape that the operator requires."});
}

KernelOffer offer_gather_elements(const KernelRequest& request) {
  const Dims& dims = request.inputs[0].dims;
  const Dims& to = request.inputs[1].dims;
  const std::int64_t bytes = element_bytes(request.inputs[0].dtype);
  const bool is_wide = request.inputs[1].dtype == DataType::kInt64;
  const opdef::KernelFn fn = is_wide ? choose_gather_elements<std::int64_t>(bytes)
                                     : choose_gather_elements<std::int32_t>(bytes);
  if (fn == nullptr) return decline_dtype(request, request.inputs[0].dtype);
  const auto axis =
      static_cast<std::size_t>(normalize_axis(request.node.int_attribute("axis"), dims.rank()));
  check_index_shape(request, dims, to, axis);
  GatherElementsData data{.sizes = {to.begin(), to.end()},
                          .source_strides = dense_strides(dims.values()),
                          .axis_stride = 0,
                          .length = dims[axis],
                          .source = index_source(request, 1)};
  data.axis_stride = std::exchange(data.source_strides[axis], 0);
  KernelOffer offer = prepared(fn, std::move(data), "plain gather");
  note_index_check(request, offer, 1, {dims[axis]});
  return offer;
}

// y[b, t] = x[b, indices[b, t, :]] for b in batches, t in tuples; blocks of bytes.
struct GatherNdData {
  std::int64_t batches = 0;
  std::int64_t tuples = 0;                  // number of tuples per batch
  std::vector<std::int64_t> sizes;          // sizes of the indexed axes
  std::vector<std::int64_t> strides_bytes;  // strides of the indexed axes
  std::int64_t batch_bytes = 0;
  std::int64_t block_bytes = 0;
  IndexSource source;
};

void run_gather_nd(const GatherNdData& gather, KernelArgs args) {
  const auto* const begin = args.at<std::int64_t>(1);
  const std::int64_t* indices = begin;
  std::byte* y = args[2];
  for (std::int64_t b = 0; b < gather.batches; ++b) {
    const std::byte* x = args[0] + b * gather.batch_bytes;
    for (std::int64_t t = 0; t < gather.tuples; ++t) {
      std::int64_t offset = 0;
      for (std::size_t k = 0; k < gather.sizes.size(); ++k) {
        offset += checked_index(*indices, gather.sizes[k], gather.source, indices - begin) *
                  gather.strides_bytes[k];
        ++indices;
      }
      std::memcpy(y, x + offset, static_cast<std::size_t>(gather.block_bytes));
      y += gather.block_bytes;
    }
  }
}

KernelOffer offer_gather_nd(const KernelRequest& request) {
  const std::int64_t bytes = element_bytes(request.inputs[0].dtype);
  if (bytes == 0) return decline_dtype(request, request.inputs[0].dtype);
  const Dims& dims = request.inputs[0].dims;
  const Dims& index_dims = request.inputs[1].dims;
  const auto batch_rank = static_cast<std::size_t>(request.node.int_attribute("batch_dims"));
  const std::size_t last = index_dims.rank() - 1;
  const bool fits = batch_rank <= last && batch_rank < dims.rank() && index_dims[last] >= 0 &&
                    static_cast<std::size_t>(index_dims[last]) <= dims.rank() - batch_rank &&
                    dims.product(0, batch_rank) == index_dims.product(0, batch_rank);
  if (!fits) {
    throw ShapeError({.what = "indices of shape " + index_dims.to_string() +
                              " do not match data of shape " + dims.to_string(),
                      .where = {.node = request.node.name, .op_type = request.node.op_type},
                      .hint = "Give indices of the shape that the operator requires."});
  }
  const auto depth = static_cast<std::size_t>(index_dims[last]);
  GatherNdData data{.batches = dims.product(0, batch_rank),
                    .tuples = index_dims.product(batch_rank, last),
                    .sizes = {},
                    .strides_bytes = {},
                    .batch_bytes = dims.product(batch_rank, dims.rank()) * bytes,
                    .block_bytes = dims.product(batch_rank + depth, dims.rank()) * bytes,
                    .source = index_source(request, 1)};
  for (std::size_t k = batch_rank; k < batch_rank + depth; ++k) {
    data.sizes.push_back(dims[k]);
    data.strides_bytes.push_back(dims.product(k + 1, dims.rank()) * bytes);
  }
  const std::vector<std::int64_t> sizes = data.sizes;
  KernelOffer offer = prepared<run_gather_nd>(std::move(data), "plain gather");
  note_index_check(request, offer, 1, sizes);
  return offer;
}

}  // namespace

void register_gather_cpu(opdef::KernelRegistry& registry) {
  registry.add("", "Gather", 0, offer_gather);
  registry.add("", "GatherElements", 0, offer_gather_elements);
  registry.add("", "GatherND", 0, offer_gather_nd);
}

}  // namespace onnxgrad::ops::gather_cpu
