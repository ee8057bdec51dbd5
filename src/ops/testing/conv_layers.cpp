#include "ops/testing/conv_layers.h"

#include <algorithm>
#include <utility>

namespace onnxgrad::ops_test::conv {

KernelCall call_of(const Layer& layer, std::string_view op_type, std::vector<Tensor> inputs,
                   const Dims& result, std::string_view domain) {
  const DataType dtype = inputs.front().dtype();
  return {.op_type = op_type,
          .attributes = {{.name = "strides", .value = layer.strides},
                         {.name = "pads", .value = layer.pads},
                         {.name = "dilations", .value = layer.dilations},
                         {.name = "group", .value = layer.group}},
          .inputs = std::move(inputs),
          .outputs = {{.dtype = dtype, .dims = result}},
          .domain = domain};
}

Layer random_layer(base::PhiloxStream& stream, std::int64_t work) {
  const auto pick = [&](std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(stream.uniform() * static_cast<double>(high - low + 1));
  };
  for (;;) {
    Layer layer;
    layer.group = pick(0, 3) == 0 ? pick(2, 4) : 1;
    std::int64_t channels = pick(0, 1) == 0 ? pick(1, 4) : pick(5, 40);
    std::int64_t out_channels = pick(0, 1) == 0 ? pick(1, 4) : pick(5, 70);
    if (pick(0, 4) == 0) {  // depthwise
      layer.group = pick(2, 40);
      channels = out_channels = 1;
    }
    const std::int64_t rank = pick(1, 3);
    std::vector<std::int64_t> x{pick(1, 5), layer.group * channels};
    std::vector<std::int64_t> w{layer.group * out_channels, channels};
    std::vector<std::int64_t> y{x[0], w[0]};
    std::vector<std::int64_t> ends;
    std::int64_t cost = y[0] * y[1] * channels;
    for (std::int64_t i = 0; i < rank; ++i) {
      const std::int64_t kernel = pick(1, 5);
      layer.strides.push_back(pick(0, 2) == 0 ? pick(2, 3) : 1);
      layer.dilations.push_back(pick(0, 3) == 0 ? pick(2, 3) : 1);
      layer.pads.push_back(pick(0, 3));
      ends.push_back(pick(0, 3));
      const std::int64_t extent = (kernel - 1) * layer.dilations.back() + 1;
      const std::int64_t size = pick(1, 40 / rank);
      const std::int64_t room = size + layer.pads.back() + ends.back() - extent;
      if (room < 0) cost = work + 1;
      x.push_back(size);
      w.push_back(kernel);
      y.push_back(std::max<std::int64_t>(room, 0) / layer.strides.back() + 1);
      cost *= y.back() * kernel;
    }
    layer.pads.insert(layer.pads.end(), ends.begin(), ends.end());
    if (cost > work) continue;
    layer.x = Dims(x);
    layer.w = Dims(w);
    layer.y = Dims(y);
    return layer;
  }
}

}  // namespace onnxgrad::ops_test::conv
