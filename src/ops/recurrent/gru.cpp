#include <utility>

#include "ops/recurrent/cell.h"

// GRU (ai.onnx 22) and the functions GRUGates and GRUGradient. With clip before each f and g:
//   z = f(s_z),  r = f(s_r),  s_z, s_r, s_x = x W^T + ... as in any recurrent operator,
//   n = g(s_n), s_n = x W_n^T + Wb_n + Rb_n + (r y') R_n^T, or with linear_before_reset
//   n = g(s_n + r m), s_n = x W_n^T + Wb_n, m = y' R_n^T + Rb_n,
//   y = (1 - z) n + z y'.

namespace onnxgrad::ops::recurrent::gru {

using Values = std::vector<Value*>;

// Returns the state before each step of direction d.
Value* before_of(CellBody& body, int d) {
  return body.previous(d, body.at(body.in("Y"), 1, d), body.at(body.in("initial_h"), 0, d));
}

// Pre-activations s_z, s_r, s_n, and m.
struct Sums {
  Value* gates = nullptr;   // [T, N, 3 H]
  Value* hidden = nullptr;  // [T, N, H]
};

Sums sums_of(CellBody& body, int d) {
  auto& f = body.f;
  Value* before = before_of(body, d);
  const Values x_parts =
      body.split(body.times_transposed(body.in("X"), body.at(body.in("W"), 0, d)), -1, 3);
  const Values r = body.split(body.at(body.in("R"), 0, d), 0, 3);
  const Values biases = body.split(body.at(body.in("B"), 0, d), 0, 6);
  const auto biased = [&](Value* sum, std::size_t i) {
    return biases[i] == nullptr ? sum : f.add(sum, biases[i]);
  };
  const auto gate_sum = [&](std::size_t i) {
    Value* sum = f.add(x_parts[i], body.times_transposed(before, r[i]));
    return biased(biased(sum, i), i + 3);
  };
  Value* s_z = gate_sum(0);
  Value* s_r = gate_sum(1);
  Value* s_n = biased(x_parts[2], 2);
  Sums sums;
  if (body.attributes.linear_before_reset) {
    sums.hidden = biased(body.times_transposed(before, r[2]), 5);
  } else {
    Value* reset = body.gate(f, body.attributes.activation(d, 0), s_r);
    s_n = biased(f.add(s_n, body.times_transposed(f.mul(reset, before), r[2])), 5);
  }
  sums.gates = f.concat({s_z, s_r, s_n}, -1);
  return sums;
}

// Returns gates [D, T, N, 3 H] = s_z, s_r, s_n; with linear_before_reset also hidden [D, T, N, H] =
// m.
ir::Function gates_body(std::string_view base_name, const Values& inputs,
                        const std::vector<ir::Attribute>& call) {
  CellBody body(base_name, Cell::kGru, inputs, call,
                {"X", "W", "R", "B", "sequence_lens", "initial_h", "Y"});
  Values gates;
  Values hidden;
  for (int d = 0; d < body.attributes.directions; ++d) {
    const Sums sums = sums_of(body, d);
    gates.push_back(sums.gates);
    hidden.push_back(sums.hidden);
  }
  Values outputs = {body.stack(gates, 0)};
  if (body.attributes.linear_before_reset) outputs.push_back(body.stack(hidden, 0));
  return std::move(body.f).finish(std::move(outputs));
}

// Factors of the backward pass for all steps: from the cotangent dh of y,
//   ds_z = dh z,  ds_n = dh n,  dh' = dh keep + ds_z R_z + ds_r R_r + ...
//   linear_before_reset: ds_r = ds_n r,  dm = ds_n reset,  ... = dm R_n
//   otherwise: dq = ds_n R_n,  ds_r = dq r,  ... = dq reset, with q = r y'.
// Padding passes dh through.
struct Factors {
  Value* z = nullptr;
  Value* n = nullptr;
  Value* r = nullptr;
  Value* reset = nullptr;
  Value* keep = nullptr;
};

Factors factors_of(CellBody& body, int d, Value* before) {
  auto& f = body.f;
  const auto& attributes = body.attributes;
  const Values sums = body.split(body.at(body.in("gates"), 0, d), -1, 3);
  const auto z = body.gate_point(attributes.activation(d, 0), sums[0]);
  const auto r = body.gate_point(attributes.activation(d, 0), sums[1]);
  Value* s_n = sums[2];
  Value* scaled_by_r = before;
  if (attributes.linear_before_reset) {
    scaled_by_r = body.at(body.in("hidden"), 0, d);
    s_n = f.add(s_n, f.mul(r.y, scaled_by_r));
  }
  const auto n = body.gate_point(attributes.activation(d, 1), s_n);
  return {.z = body.only_valid(f.mul(f.sub(before, n.y), z.slope)),
          .n = body.only_valid(f.mul(f.sub(f.ones_like(z.y), z.y), n.slope)),
          .r = body.only_valid(f.mul(scaled_by_r, r.slope)),
          .reset = body.only_valid(r.y),
          .keep = body.only_valid(z.y, 1)};
}

// Runs the steps backward. Returns the cotangent of the initial state; then ds_z, ds_r, ds_n and,
// with linear_before_reset, dm of all steps, [T, N, 3 H] or [T, N, 4 H].
Values go_back(CellBody& body, int d, const Values& r, const Factors& factors) {
  const bool is_linear = body.attributes.linear_before_reset;
  Value* dy = body.only_valid(body.at(body.in("dY"), 1, d));
  Values sequences = {factors.z, factors.n, factors.r, factors.reset, factors.keep};
  if (dy != nullptr) sequences.push_back(dy);
  const auto step = [&](GraphBuilder& g, const Values& states, const Values& at) {
    Value* dh = dy == nullptr ? states[0] : g.add(states[0], at[5]);
    Value* ds_z = g.mul(dh, at[0]);
    Value* ds_n = g.mul(dh, at[1]);
    Values parts;
    Value* through = nullptr;
    if (is_linear) {
      Value* dm = g.mul(ds_n, at[3]);
      parts = {ds_z, g.mul(ds_n, at[2]), ds_n, dm};
      through = g.matmul(dm, r[2]);
    } else {
      Value* dq = g.matmul(ds_n, r[2]);
      parts = {ds_z, g.mul(dq, at[2]), ds_n};
      through = g.mul(dq, at[3]);
    }
    Value* by_gates = g.add(g.matmul(ds_z, r[0]), g.matmul(parts[1], r[1]));
    Value* dh_before = g.add(g.mul(dh, at[4]), g.add(by_gates, through));
    return Values{dh_before, g.concat(parts, -1)};
  };
  return body.scan({body.last_cotangent("dY_h", d)}, sequences, 1, !body.attributes.goes_back(d),
                   step);
}

ir::Function gradient_body(std::string_view base_name, const Values& inputs,
                           const std::vector<ir::Attribute>& call) {
  CellBody body(
      base_name, Cell::kGru, inputs, call,
      {"X", "W", "R", "sequence_lens", "initial_h", "Y", "gates", "hidden", "dY", "dY_h"});
  auto& f = body.f;
  const bool is_linear = body.attributes.linear_before_reset;
  Value* dx = nullptr;
  Value* x = body.only_valid(body.in("X"));
  std::vector<Values> stacked(4);  // dW, dR, dB, dinitial_h
  for (int d = 0; d < body.attributes.directions; ++d) {
    Value* before = before_of(body, d);
    const Factors factors = factors_of(body, d, before);
    const Values r = body.split(body.at(body.in("R"), 0, d), 0, 3);
    const Values back = go_back(body, d, r, factors);
    const Values parts = body.split(back[1], -1, is_linear ? 4 : 3);
    Value* ds = is_linear ? f.concat({parts[0], parts[1], parts[2]}, -1) : back[1];
    Value* dx_d = f.matmul(ds, body.at(body.in("W"), 0, d));
    dx = dx == nullptr ? dx_d : f.add(dx, dx_d);
    Value* dr_n = is_linear ? body.sum_products(parts[3], before)
                            : body.sum_products(parts[2], f.mul(factors.reset, before));
    Value* dr = f.concat(
        {body.sum_products(parts[0], before), body.sum_products(parts[1], before), dr_n}, 0);
    Values sums;
    for (Value* part : parts) sums.push_back(body.sum_products(part, nullptr));
    Value* db = f.concat({sums[0], sums[1], sums[2], sums[0], sums[1], sums.back()}, 0);
    const Values results = {body.sum_products(ds, x), dr, db, back[0]};
    for (std::size_t k = 0; k < results.size(); ++k) stacked[k].push_back(results[k]);
  }
  Values outputs = {dx};
  for (const Values& values : stacked) outputs.push_back(body.stack(values, 0));
  return std::move(body.f).finish(std::move(outputs));
}

}  // namespace onnxgrad::ops::recurrent::gru

namespace onnxgrad::ops::gru_op {

void register_gru(opdef::OpRegistry& registry) {
  recurrent::register_cell(registry, {.cell = recurrent::Cell::kGru,
                                      .op_type = "GRU",
                                      .gates = "GRUGates",
                                      .gradient = "GRUGradient",
                                      .gates_body = recurrent::gru::gates_body,
                                      .gradient_body = recurrent::gru::gradient_body});
}

}  // namespace onnxgrad::ops::gru_op
