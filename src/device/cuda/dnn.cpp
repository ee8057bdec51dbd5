#include "device/cuda/dnn.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace onnxgrad::device::cuda {
namespace {

std::string key_of_convolution(const DnnConvSpec& spec) {
  return fmt::format("convolution {} {} {} {} {} {} {} {} {} {} {} {} {} {}",
                     static_cast<int>(spec.pass), dnn_type(spec.dtype), fmt::join(spec.x, ","),
                     fmt::join(spec.w, ","), fmt::join(spec.y, ","), fmt::join(spec.strides, ","),
                     fmt::join(spec.dilations, ","), fmt::join(spec.pads_begin, ","),
                     fmt::join(spec.pads_end, ","), spec.has_channels_last, spec.has_bias,
                     spec.has_residual, spec.low, spec.high);
}

}  // namespace

void add_convolution(DnnGraph& graph, const DnnConvSpec& spec) {
  const int type = dnn_type(spec.dtype);
  const bool is_wide = spec.dtype == DataType::kFloat64;
  const auto in_memory = [&](const DnnGraph::Dims& dims) {
    return graph.memory(dims, DnnGraph::strides(dims, spec.has_channels_last), type);
  };
  DnnGraph::Tensor x = in_memory(spec.x);
  DnnGraph::Tensor w = in_memory(spec.w);
  DnnGraph::Tensor y = in_memory(spec.y);
  const int operation = spec.pass == DnnConvSpec::Pass::kForward        ? dnn_api::kForward
                        : spec.pass == DnnConvSpec::Pass::kBackwardData ? dnn_api::kBackwardData
                                                                        : dnn_api::kBackwardFilter;
  const bool is_forward = spec.pass == DnnConvSpec::Pass::kForward;
  const DnnGraph::Dims& dims = is_forward ? spec.y : spec.x;
  DnnGraph::Tensor& result = is_forward ? y : x;
  const DnnGraph::Tensor last = result;
  const int precision = is_wide ? dnn_api::kDataDouble : dnn_api::kDataFloat;
  const auto next = [&] {
    return graph.between(dims, DnnGraph::strides(dims, spec.has_channels_last), precision);
  };
  if (spec.has_epilogue()) result = next();
  graph.convolve(operation,
                 {.strides = spec.strides,
                  .dilations = spec.dilations,
                  .pads_begin = spec.pads_begin,
                  .pads_end = spec.pads_end,
                  .precision = precision},
                 x, w, y);
  if (spec.has_bias) {
    DnnGraph::Dims row(dims.size(), 1);
    row[1] = dims[1];
    const DnnGraph::Tensor bias = in_memory(row);
    const DnnGraph::Tensor sum = spec.has_residual || spec.has_clamp() ? next() : last;
    graph.pointwise(dnn_api::kAdd, result, bias, sum, precision);
    result = sum;
  }
  if (spec.has_residual) {
    const DnnGraph::Tensor residual = in_memory(dims);
    const DnnGraph::Tensor sum = spec.has_clamp() ? next() : last;
    graph.pointwise(dnn_api::kAdd, result, residual, sum, precision);
    result = sum;
  }
  if (spec.has_clamp()) graph.clamp(result, spec.low, spec.high, last);
}

std::shared_ptr<const DnnPlan> dnn_convolution(const std::shared_ptr<Context>& context,
                                               const DnnConvSpec& spec, std::string& declined) {
  const bool is_strict = spec.dtype == DataType::kFloat32 && !spec.allows_tf32;
  return DnnPlan::of(
      context, key_of_convolution(spec),
      {.is_strict = is_strict, .is_deterministic = spec.is_deterministic},
      [&](DnnGraph& graph) { add_convolution(graph, spec); }, declined);
}

void add_pool(DnnGraph& graph, const DnnPoolSpec& spec) {
  const int type = dnn_type(spec.dtype);
  const DnnGraph::Tensor x = graph.memory(spec.x, DnnGraph::strides(spec.x), type);
  const DnnGraph::Tensor y = graph.memory(spec.y, DnnGraph::strides(spec.y), type);
  const int precision =
      spec.dtype == DataType::kFloat64 ? dnn_api::kDataDouble : dnn_api::kDataFloat;
  graph.pool(spec.mode, spec.kernel,
             {.strides = spec.strides,
              .dilations = {},
              .pads_begin = spec.pads_begin,
              .pads_end = spec.pads_end,
              .precision = precision},
             spec.is_gradient, x, y);
}

std::shared_ptr<const DnnPlan> dnn_pool(const std::shared_ptr<Context>& context,
                                        const DnnPoolSpec& spec, std::string& declined) {
  const std::string key = fmt::format(
      "pool {} {} {} {} {} {} {} {} {}", spec.mode, spec.is_gradient, dnn_type(spec.dtype),
      fmt::join(spec.x, ","), fmt::join(spec.y, ","), fmt::join(spec.kernel, ","),
      fmt::join(spec.strides, ","), fmt::join(spec.pads_begin, ","), fmt::join(spec.pads_end, ","));
  return DnnPlan::of(
      context, key, {.is_strict = true, .is_deterministic = spec.is_deterministic},
      [&](DnnGraph& graph) { add_pool(graph, spec); }, declined);
}

}  // namespace onnxgrad::device::cuda
