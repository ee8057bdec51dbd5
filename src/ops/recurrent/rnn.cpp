#include <utility>

#include "ops/recurrent/cell.h"

// RNN (ai.onnx 22) and the functions RNNGates and RNNGradient:
//   y = f(s), with clip before f,  s = x W^T + y' R^T + Wb + Rb,
// where y' is from the step before.

namespace onnxgrad::ops::recurrent::rnn {

using Values = std::vector<Value*>;

Value* before_of(CellBody& body, int d) {
  return body.previous(d, body.at(body.in("Y"), 1, d), body.at(body.in("initial_h"), 0, d));
}

// Returns gates [D, T, N, H] = the pre-activations s.
ir::Function gates_body(std::string_view base_name, const Values& inputs,
                        const std::vector<ir::Attribute>& call) {
  CellBody body(base_name, Cell::kRnn, inputs, call,
                {"X", "W", "R", "B", "sequence_lens", "initial_h", "Y"});
  auto& f = body.f;
  Values gates;
  for (int d = 0; d < body.attributes.directions; ++d) {
    Value* sums = f.add(body.times_transposed(body.in("X"), body.at(body.in("W"), 0, d)),
                        body.times_transposed(before_of(body, d), body.at(body.in("R"), 0, d)));
    if (Value* biases = body.at(body.in("B"), 0, d)) {
      const Values both = body.split(biases, 0, 2, body.attributes.gates());
      sums = f.add(sums, f.add(both[0], both[1]));
    }
    gates.push_back(sums);
  }
  Values outputs = {body.stack(gates, 0)};
  return std::move(body.f).finish(std::move(outputs));
}

// Runs the steps backward: ds = dh f'(s), dh' = ds R. Padding passes dh through.
Values go_back(CellBody& body, int d) {
  Value* r = body.at(body.in("R"), 0, d);
  Value* dy = body.only_valid(body.at(body.in("dY"), 1, d));
  Value* passing = body.passing();
  Value* sums = body.at(body.in("gates"), 0, d);
  Values sequences = {
      body.only_valid(body.gate_point(body.attributes.activation(d, 0), sums).slope)};
  for (Value* value : {passing, dy}) {
    if (value != nullptr) sequences.push_back(value);
  }
  const auto step = [&](GraphBuilder& g, const Values& states, const Values& at) {
    Value* dh = dy == nullptr ? states[0] : g.add(states[0], at.back());
    Value* ds = g.mul(dh, at[0]);
    Value* dh_before = g.matmul(ds, r);
    if (passing != nullptr) dh_before = g.add(dh_before, g.mul(states[0], at[1]));
    return Values{dh_before, ds};
  };
  return body.scan({body.last_cotangent("dY_h", d)}, sequences, 1, !body.attributes.goes_back(d),
                   step);
}

ir::Function gradient_body(std::string_view base_name, const Values& inputs,
                           const std::vector<ir::Attribute>& call) {
  CellBody body(base_name, Cell::kRnn, inputs, call,
                {"X", "W", "R", "sequence_lens", "initial_h", "Y", "gates", "dY", "dY_h"});
  auto& f = body.f;
  Value* dx = nullptr;
  Value* x = body.only_valid(body.in("X"));
  std::vector<Values> stacked(4);  // dW, dR, dB, dinitial_h
  for (int d = 0; d < body.attributes.directions; ++d) {
    const Values back = go_back(body, d);
    Value* ds = back[1];
    Value* dx_d = f.matmul(ds, body.at(body.in("W"), 0, d));
    dx = dx == nullptr ? dx_d : f.add(dx, dx_d);
    Value* sum = body.sum_products(ds, nullptr);
    const Values results = {body.sum_products(ds, x), body.sum_products(ds, before_of(body, d)),
                            f.concat({sum, sum}, 0), back[0]};
    for (std::size_t k = 0; k < results.size(); ++k) stacked[k].push_back(results[k]);
  }
  Values outputs = {dx};
  for (const Values& values : stacked) outputs.push_back(body.stack(values, 0));
  return std::move(body.f).finish(std::move(outputs));
}

}  // namespace onnxgrad::ops::recurrent::rnn

namespace onnxgrad::ops::rnn_op {

void register_rnn(opdef::OpRegistry& registry) {
  recurrent::register_cell(registry, {.cell = recurrent::Cell::kRnn,
                                      .op_type = "RNN",
                                      .gates = "RNNGates",
                                      .gradient = "RNNGradient",
                                      .gates_body = recurrent::rnn::gates_body,
                                      .gradient_body = recurrent::rnn::gradient_body});
}

}  // namespace onnxgrad::ops::rnn_op
