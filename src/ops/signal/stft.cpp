#include <vector>

#include "opdef/registry.h"
#include "ops/rules.h"

namespace onnxgrad::ops::stft_op {
namespace {

// Reshapes a scalar to int64 [1].
Value* as_list(GraphBuilder& g, Value* number) {
  if (const auto given = constant_int(number)) return g.ints({*given});
  return g.reshape(g.cast(number, DataType::kInt64), {1});
}

// y[b, f] = DFT(window * x[b, f step : f step + length]): the frames are gathered, [N, F, length,
// 1 or 2], and transformed.
std::optional<std::vector<Value*>> lower_stft(const Node& node, GraphBuilder& g) {
  Value* signal = node.inputs[0];
  Value* step = as_list(g, node.inputs[1]);
  Value* window = node.input(2);
  Value* length = node.input(3) != nullptr ? as_list(g, node.inputs[3])
                  : window != nullptr      ? dim_value(g, window, 0)
                                           : dim_value(g, signal, 1);
  const bool onesided = node.int_attribute("onesided") != 0;
  Value* one = g.ints({1});
  Value* frames = g.add(g.div(g.sub(dim_value(g, signal, 1), length), step), one);
  Value* zero = g.ints({0});
  Value* starts = g.unsqueeze(g.mul(range_value(g, zero, frames), step), {1});
  Value* places = g.add(starts, range_value(g, zero, length));
  Value* framed = g.gather(signal, places, 1);
  if (window != nullptr) framed = g.mul(framed, g.unsqueeze(window, {1}));
  std::vector<Attribute> attributes;
  if (onesided) attributes.push_back({"onesided", std::int64_t{1}});
  return {{g.op("DFT", {framed, nullptr, g.int_scalar(2)}, std::move(attributes))}};
}

}  // namespace

void register_stft(opdef::OpRegistry& registry) {
  registry.add({.op_type = "STFT",
                .since_version = 17,
                .attributes = {flag_attribute("onesided", true)},
                .lower = lower_stft,
                .shape_inputs = {1, 3}});
}

}  // namespace onnxgrad::ops::stft_op
