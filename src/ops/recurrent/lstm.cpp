#include <utility>

#include "ops/recurrent/cell.h"

// LSTM (ai.onnx 22) and the functions LSTMGates and LSTMGradient. With clip before each f and g:
//   i = f(s_i + P_i c'),  o = f(s_o + P_o c),  u = f(s_f + P_f c'),  n = g(s_c),
//   c = u c' + i n,  y = o h(c),
// where s = x W^T + y' R^T + Wb + Rb, and y', c' are from the step before. u = 1 - i if
// input_forget.

namespace onnxgrad::ops::recurrent::lstm {

using Values = std::vector<Value*>;

struct Peepholes {
  Value* i = nullptr;
  Value* o = nullptr;
  Value* u = nullptr;
};

Peepholes peepholes_of(CellBody& body, int d) {
  const Values parts = body.split(body.at(body.in("P"), 0, d), -1, 3);
  return {.i = parts[0], .o = parts[1], .u = parts[2]};
}

Value* with_peephole(GraphBuilder& g, Value* sum, Value* peephole, Value* cell) {
  return peephole == nullptr ? sum : g.add(sum, g.mul(peephole, cell));
}

// Returns s of direction d for all steps, [T, N, 4 H].
Value* sums_of(CellBody& body, int d) {
  auto& f = body.f;
  Value* before =
      body.previous(d, body.at(body.in("Y"), 1, d), body.at(body.in("initial_h"), 0, d));
  Value* sums = f.add(body.times_transposed(body.in("X"), body.at(body.in("W"), 0, d)),
                      body.times_transposed(before, body.at(body.in("R"), 0, d)));
  Value* biases = body.at(body.in("B"), 0, d);
  if (biases == nullptr) return sums;
  const Values both = body.split(biases, 0, 2, body.attributes.gates());
  return f.add(sums, f.add(both[0], both[1]));
}

// Returns c of direction d for all steps, [T, N, H], from s.
Value* cells_of(CellBody& body, int d, Value* sums) {
  auto& f = body.f;
  const auto& attributes = body.attributes;
  const Activation& of_gates = attributes.activation(d, 0);
  const Peepholes peepholes = peepholes_of(body, d);
  const Values parts = body.split(sums, -1, 4);
  Value* n = body.gate(f, attributes.activation(d, 1), parts[3]);
  const auto gates = [&](GraphBuilder& g, Value* sum_i, Value* sum_u) {
    Value* i = body.gate(g, of_gates, sum_i);
    Value* u = attributes.input_forget ? g.sub(g.ones_like(i), i) : body.gate(g, of_gates, sum_u);
    return std::pair(i, u);
  };
  // Without peepholes, the gates of all steps are independent of the state.
  Values sequences;
  if (peepholes.i != nullptr) {
    sequences = {parts[0], parts[2], n};
    if (Value* passing = body.passing()) sequences.push_back(passing);
  } else {
    const auto [i, u] = gates(f, parts[0], parts[2]);
    sequences = {body.only_valid(u, 1), body.only_valid(f.mul(i, n))};
  }
  const auto step = [&](GraphBuilder& g, const Values& states, const Values& at) {
    Value* c = states[0];
    Value* next = nullptr;
    if (peepholes.i != nullptr) {
      const auto [i, u] = gates(g, with_peephole(g, at[0], peepholes.i, c),
                                with_peephole(g, at[1], peepholes.u, c));
      next = g.add(g.mul(u, c), g.mul(i, at[2]));
      if (at.size() > 3) next = g.where(g.cast(at[3], DataType::kBool), c, next);
    } else {
      next = g.add(g.mul(at[0], c), at[1]);
    }
    return Values{next, g.identity(next)};
  };
  Value* first = body.or_zeros(body.at(body.in("initial_c"), 0, d));
  return body.scan({first}, sequences, 1, attributes.goes_back(d), step)[1];
}

// Returns gates [D, T, N, 4 H] = the pre-activations s, and cells [D, T, N, H] = the states c after
// each step.
ir::Function gates_body(std::string_view base_name, const Values& inputs,
                        const std::vector<ir::Attribute>& call) {
  CellBody body(base_name, Cell::kLstm, inputs, call,
                {"X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P", "Y"});
  Values gates;
  Values cells;
  for (int d = 0; d < body.attributes.directions; ++d) {
    gates.push_back(sums_of(body, d));
    cells.push_back(cells_of(body, d, gates.back()));
  }
  Values outputs = {body.stack(gates, 0), body.stack(cells, 0)};
  return std::move(body.f).finish(std::move(outputs));
}

// Factors of the backward pass of one direction for all steps: from the cotangents dh of y and dc
// of c,
//   ds_o = dh o,  dc += dh c + ds_o P_o,  ds_i = dc i,  ds_f = dc u,  ds_c = dc n,
//   dc' = dc keep + ds_i P_i + ds_f P_f,  dh' = ds R.
// Padding passes both through.
struct Factors {
  Value* o = nullptr;
  Value* c = nullptr;
  Value* i = nullptr;
  Value* u = nullptr;  // nullptr: input_forget
  Value* n = nullptr;
  Value* keep = nullptr;
};

Factors factors_of(CellBody& body, int d, const Peepholes& peepholes, Value* before, Value* cells) {
  auto& f = body.f;
  const auto& attributes = body.attributes;
  const Activation& of_gates = attributes.activation(d, 0);
  const Values sums = body.split(body.at(body.in("gates"), 0, d), -1, 4);
  const auto i = body.gate_point(of_gates, with_peephole(f, sums[0], peepholes.i, before));
  const auto o = body.gate_point(of_gates, with_peephole(f, sums[1], peepholes.o, cells));
  const auto n = body.gate_point(attributes.activation(d, 1), sums[3]);
  const auto h = body.point(attributes.activation(d, 2), cells);
  Factors factors{.o = f.mul(h.y, o.slope), .c = f.mul(o.y, h.slope), .n = f.mul(i.y, n.slope)};
  if (attributes.input_forget) {
    factors.i = f.mul(f.sub(n.y, before), i.slope);
    factors.keep = f.sub(f.ones_like(i.y), i.y);
  } else {
    const auto u = body.gate_point(of_gates, with_peephole(f, sums[2], peepholes.u, before));
    factors.i = f.mul(n.y, i.slope);
    factors.u = body.only_valid(f.mul(before, u.slope));
    factors.keep = u.y;
  }
  factors.o = body.only_valid(factors.o);
  factors.c = body.only_valid(factors.c);
  factors.i = body.only_valid(factors.i);
  factors.n = body.only_valid(factors.n);
  factors.keep = body.only_valid(factors.keep, 1);
  return factors;
}

// Runs the steps backward. Returns the cotangents of the initial states, then ds of all steps.
Values go_back(CellBody& body, int d, const Peepholes& peepholes, const Factors& factors) {
  Value* r = body.at(body.in("R"), 0, d);
  Value* dy = body.only_valid(body.at(body.in("dY"), 1, d));
  Value* passing = body.passing();
  Values sequences = {factors.o, factors.c, factors.i, factors.n, factors.keep};
  for (Value* value : {factors.u, passing, dy}) {
    if (value != nullptr) sequences.push_back(value);
  }
  const auto step = [&](GraphBuilder& g, const Values& states, const Values& at) {
    std::size_t next = 5;
    Value* u = factors.u == nullptr ? nullptr : at[next++];
    Value* passes = passing == nullptr ? nullptr : at[next++];
    Value* dh = dy == nullptr ? states[0] : g.add(states[0], at[next]);
    Value* ds_o = g.mul(dh, at[0]);
    Value* dc = with_peephole(g, g.add(states[1], g.mul(dh, at[1])), peepholes.o, ds_o);
    Value* ds_i = g.mul(dc, at[2]);
    Value* ds_u = u == nullptr ? g.zeros_like(ds_i) : g.mul(dc, u);
    Value* ds = g.concat({ds_i, ds_o, ds_u, g.mul(dc, at[3])}, -1);
    Value* dc_before = with_peephole(g, g.mul(dc, at[4]), peepholes.i, ds_i);
    dc_before = with_peephole(g, dc_before, peepholes.u, ds_u);
    Value* dh_before = g.matmul(ds, r);
    if (passes != nullptr) dh_before = g.add(dh_before, g.mul(states[0], passes));
    return Values{dh_before, dc_before, ds};
  };
  return body.scan({body.last_cotangent("dY_h", d), body.last_cotangent("dY_c", d)}, sequences, 1,
                   !body.attributes.goes_back(d), step);
}

ir::Function gradient_body(std::string_view base_name, const Values& inputs,
                           const std::vector<ir::Attribute>& call) {
  CellBody body(base_name, Cell::kLstm, inputs, call,
                {"X", "W", "R", "sequence_lens", "initial_h", "initial_c", "P", "Y", "gates",
                 "cells", "dY", "dY_h", "dY_c"});
  auto& f = body.f;
  Value* dx = nullptr;
  Value* x = body.only_valid(body.in("X"));
  std::vector<Values> stacked(6);  // dW, dR, dB, dinitial_h, dinitial_c, dP
  for (int d = 0; d < body.attributes.directions; ++d) {
    const Peepholes peepholes = peepholes_of(body, d);
    Value* cells = body.at(body.in("cells"), 0, d);
    Value* before = body.previous(d, cells, body.at(body.in("initial_c"), 0, d));
    const Values back = go_back(body, d, peepholes, factors_of(body, d, peepholes, before, cells));
    Value* ds = back[2];
    Value* dx_d = f.matmul(ds, body.at(body.in("W"), 0, d));
    dx = dx == nullptr ? dx_d : f.add(dx, dx_d);
    Value* y_before =
        body.previous(d, body.at(body.in("Y"), 1, d), body.at(body.in("initial_h"), 0, d));
    Value* sum = body.sum_products(ds, nullptr);
    const Values parts = body.split(ds, -1, 4);
    Value* dp = f.concat({body.sum_products(f.mul(parts[0], before), nullptr),
                          body.sum_products(f.mul(parts[1], cells), nullptr),
                          body.sum_products(f.mul(parts[2], before), nullptr)},
                         0);
    const Values results = {body.sum_products(ds, x),
                            body.sum_products(ds, y_before),
                            f.concat({sum, sum}, 0),
                            back[0],
                            back[1],
                            dp};
    for (std::size_t k = 0; k < results.size(); ++k) stacked[k].push_back(results[k]);
  }
  Values outputs = {dx};
  for (const Values& values : stacked) outputs.push_back(body.stack(values, 0));
  return std::move(body.f).finish(std::move(outputs));
}

}  // namespace onnxgrad::ops::recurrent::lstm

namespace onnxgrad::ops::lstm_op {

void register_lstm(opdef::OpRegistry& registry) {
  recurrent::register_cell(registry, {.cell = recurrent::Cell::kLstm,
                                      .op_type = "LSTM",
                                      .gates = "LSTMGates",
                                      .gradient = "LSTMGradient",
                                      .gates_body = recurrent::lstm::gates_body,
                                      .gradient_body = recurrent::lstm::gradient_body});
}

}  // namespace onnxgrad::ops::lstm_op
