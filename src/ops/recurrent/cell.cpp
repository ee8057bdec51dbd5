#include "ops/recurrent/cell.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cctype>
#include <limits>
#include <string_view>

#include "ops/nn/window.h"
#include "ops/rules.h"

namespace onnxgrad::ops::recurrent {

namespace {

struct ActRow {
  std::string_view name;
  bool has_alpha = false;
  bool has_beta = false;
  float alpha = 0;
  float beta = 0;
};

// Activations in the order of Act: whether they have alpha and beta, and the defaults from the
// operators of these names.
constexpr std::array<ActRow, 11> kActs = {{
    {"Sigmoid"},
    {"Tanh"},
    {"Relu"},
    {"Affine", true, true, 1.0F, 0.0F},
    {"LeakyRelu", true, false, 0.01F},
    {"ThresholdedRelu", true, false, 1.0F},
    {"ScaledTanh", true, true, 1.0F, 1.0F},
    {"HardSigmoid", true, true, 0.2F, 0.5F},
    {"Elu", true, false, 1.0F},
    {"Softsign"},
    {"Softplus"},
}};

bool equals_ignoring_case(std::string_view a, std::string_view b) {
  return std::ranges::equal(
      a, b, [](unsigned char x, unsigned char y) { return std::tolower(x) == std::tolower(y); });
}

Act act_of(const Node& node, const std::string& name) {
  std::vector<std::string_view> names;
  for (std::size_t i = 0; i < kActs.size(); ++i) {
    if (equals_ignoring_case(kActs[i].name, name)) return static_cast<Act>(i);
    names.push_back(kActs[i].name);
  }
  throw ModelError(problem_at(node,
                              fmt::format("attribute activations has '{}', expected one of {}",
                                          name, fmt::join(names, ", ")),
                              {}, "Use one of these functions, or write the cell as a Scan."));
}

std::vector<std::string> activation_names(const Node& node, Cell cell, std::size_t wanted) {
  std::vector<std::string> names;
  if (const ir::AttributeValue* value = node.find_attribute("activations")) {
    names = std::get<std::vector<std::string>>(*value);
  }
  if (names.empty()) {
    static const std::vector<std::string> kPerCell[] = {
        {"Tanh"}, {"Sigmoid", "Tanh"}, {"Sigmoid", "Tanh", "Tanh"}};
    const auto& defaults = kPerCell[static_cast<std::size_t>(cell)];
    while (names.size() < wanted) names.insert(names.end(), defaults.begin(), defaults.end());
  }
  // The default of RNN's schema names both directions, even if the node has one.
  const bool fits = names.size() == wanted || (cell == Cell::kRnn && names.size() == 2 * wanted);
  if (!fits) {
    throw ModelError(problem_at(
        node,
        fmt::format("attribute activations has {} functions, expected {}", names.size(), wanted),
        "Each direction has its own functions.",
        "Give as many functions, or leave the attribute out."));
  }
  names.resize(wanted);
  return names;
}

CellAttributes read_call(std::string_view base_name, const std::vector<Attribute>& call,
                         Cell cell) {
  Node node;
  node.op_type = base_name;
  node.attributes = call;
  return CellAttributes::read(node, cell);
}

// Returns "_in1101": which of `count` inputs a call has.
std::string presence_key(const std::vector<Value*>& given, std::size_t count) {
  std::string key = "_in";
  for (std::size_t i = 0; i < count; ++i) {
    key += i < given.size() && given[i] != nullptr ? '1' : '0';
  }
  return key;
}

std::uint32_t bits(double value) { return std::bit_cast<std::uint32_t>(static_cast<float>(value)); }

}  // namespace

CellAttributes CellAttributes::read(const Node& node, Cell cell) {
  CellAttributes read{.cell = cell};
  const std::string direction = node.string_attribute("direction", "forward");
  read.directions = direction == "bidirectional" ? 2 : 1;
  read.is_reverse = direction == "reverse";
  read.hidden = node.int_attribute("hidden_size", 0);
  read.clip = static_cast<double>(node.float_attribute("clip", 0.0F));
  read.input_forget = node.int_attribute("input_forget", 0) != 0;
  read.linear_before_reset = node.int_attribute("linear_before_reset", 0) != 0;
  const std::vector<float> alphas = node.floats_attribute("activation_alpha");
  const std::vector<float> betas = node.floats_attribute("activation_beta");
  std::size_t alpha = 0;
  std::size_t beta = 0;
  const auto wanted = static_cast<std::size_t>(read.directions) * read.functions();
  for (const std::string& name : activation_names(node, cell, wanted)) {
    Activation activation{.act = act_of(node, name)};
    const ActRow& row = kActs[static_cast<std::size_t>(activation.act)];
    // Functions without alpha or beta do not consume an element of the lists.
    if (row.has_alpha) activation.alpha = alpha < alphas.size() ? alphas[alpha++] : row.alpha;
    if (row.has_beta) activation.beta = beta < betas.size() ? betas[beta++] : row.beta;
    read.activations.push_back(activation);
  }
  return read;
}

std::string CellAttributes::key() const {
  std::string key = directions == 2 ? "bidirectional" : is_reverse ? "reverse" : "forward";
  for (const Activation& activation : activations) {
    const ActRow& row = kActs[static_cast<std::size_t>(activation.act)];
    key += '_';
    for (const char c : row.name) {
      key += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    }
    if (row.has_alpha) key += fmt::format("{:08x}", bits(activation.alpha));
    if (row.has_beta) key += fmt::format("{:08x}", bits(activation.beta));
  }
  if (hidden > 0) key += fmt::format("_h{}", hidden);
  if (clip > 0) key += fmt::format("_clip{:08x}", bits(clip));
  if (input_forget) key += "_coupled";
  if (linear_before_reset) key += "_linear";
  return key;
}

std::vector<AttributeSpec> cell_attribute_specs(Cell cell, bool with_layout) {
  std::vector<AttributeSpec> specs = {
      {.name = "activation_alpha", .type = AttributeType::kFloats},
      {.name = "activation_beta", .type = AttributeType::kFloats},
      {.name = "activations", .type = AttributeType::kStrings, .min_count = 1},
      {.name = "clip",
       .type = AttributeType::kFloat,
       .min_float = 0,
       .max_float = static_cast<double>(std::numeric_limits<float>::max())},
      choice_attribute("direction", {"forward", "reverse", "bidirectional"}),
      {.name = "hidden_size", .type = AttributeType::kInt, .min = 1, .max = std::int64_t{1} << 31},
  };
  if (cell == Cell::kGru) specs.push_back(flag_attribute("linear_before_reset", false));
  if (cell == Cell::kLstm) specs.push_back(flag_attribute("input_forget", false));
  if (with_layout) specs.push_back(flag_attribute("layout", false));
  return specs;
}

std::vector<Attribute> call_attributes(const Node& node) {
  std::vector<Attribute> call;
  for (const Attribute& attribute : node.attributes) {
    if (attribute.name != "layout") call.push_back({attribute.name, attribute.value});
  }
  return call;
}

std::optional<std::vector<Value*>> lower_layout(const Node& node, GraphBuilder& g) {
  if (node.int_attribute("layout", 0) == 0) return std::nullopt;
  std::vector<Value*> inputs = node.inputs;
  const auto swap_first_axes = [&](Value* value) {
    return value == nullptr ? nullptr : g.transpose(value, {1, 0, 2});
  };
  inputs[0] = swap_first_axes(inputs[0]);
  for (const std::size_t state : {std::size_t{5}, std::size_t{6}}) {
    if (state < inputs.size()) inputs[state] = swap_first_axes(inputs[state]);
  }
  std::vector<Value*> outputs =
      g.ops(node.op_type, std::move(inputs), node.outputs.size(), call_attributes(node));
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (node.outputs[i] == nullptr) {
      outputs[i] = nullptr;
    } else {
      // Transposes Y [T, D, N, H] to [N, T, D, H] and states [D, N, H] to [N, D, H].
      outputs[i] = i == 0 ? g.transpose(outputs[i], {2, 0, 1, 3}) : swap_first_axes(outputs[i]);
    }
  }
  return outputs;
}

CellBody::CellBody(std::string_view base_name, Cell cell, const std::vector<Value*>& given,
                   const std::vector<Attribute>& call, const std::vector<std::string>& names)
    : attributes(read_call(base_name, call, cell)),
      f(base_name, attributes.key() + presence_key(given, names.size()), call),
      names_(names) {
  for (std::size_t i = 0; i < names.size(); ++i) {
    Value* formal = f.input(names[i]);
    inputs.push_back(i < given.size() && given[i] != nullptr ? formal : nullptr);
  }
  Value* lengths = in("sequence_lens");
  if (lengths == nullptr) return;
  // Compares 0, 1, ... with the lengths, both broadcast to [T, N, 1].
  Value* ones = f.expand(f.ints({1}), f.dims_of(inputs[0], 0, 1));
  Value* position = f.unsqueeze(f.op("CumSum", {ones, f.int_scalar(0)}), {1, 2});
  Value* length = f.unsqueeze(f.cast(lengths, DataType::kInt64), {0, 2});
  valid_ = f.less(f.sub(position, f.ints({1})), length);
  next_valid_ = f.less(position, length);
}

Value* CellBody::in(std::string_view name) const {
  const auto found = std::ranges::find(names_, name);
  return found == names_.end() ? nullptr : inputs[static_cast<std::size_t>(found - names_.begin())];
}

Value* CellBody::at(Value* value, std::int64_t axis, int d) {
  if (value == nullptr) return nullptr;
  if (attributes.directions == 1) return f.squeeze(value, {axis});
  return f.gather(value, f.int_scalar(d), axis);
}

Value* CellBody::stack(const std::vector<Value*>& per_direction, std::int64_t axis) {
  std::vector<Value*> parts;
  for (Value* value : per_direction) parts.push_back(f.unsqueeze(value, {axis}));
  return parts.size() == 1 ? parts[0] : f.concat(parts, axis);
}

std::vector<Value*> CellBody::split(Value* value, std::int64_t axis, std::size_t parts,
                                    std::int64_t size) {
  if (value == nullptr) return std::vector<Value*>(parts, nullptr);
  if (parts == 1) return {value};
  std::vector<Attribute> call = {{.name = "axis", .value = axis}};
  if (attributes.hidden == 0) {
    call.push_back({.name = "num_outputs", .value = static_cast<std::int64_t>(parts)});
    return f.ops("Split", {value}, parts, std::move(call));
  }
  // Before opset 18 sizes must be given, and types are inferred only from constants.
  const std::vector<std::int64_t> sizes(parts, size * attributes.hidden);
  return f.ops("Split", {value, f.ints(sizes)}, parts, std::move(call));
}

Value* CellBody::or_zeros(Value* value) {
  return value != nullptr ? value : f.expand(scalar(0), f.dims_of(in("Y"), 2, 4));
}

Value* CellBody::only_valid(Value* value, double otherwise) {
  if (valid_ == nullptr || value == nullptr) return value;
  return f.where(valid_, value, scalar(otherwise));
}

Value* CellBody::last_cotangent(std::string_view name, int d) {
  Value* given = at(in(name), 0, d);
  if (given == nullptr) return or_zeros(nullptr);
  if (valid_ == nullptr) return given;
  Value* lengths = f.unsqueeze(f.cast(in("sequence_lens"), DataType::kInt64), {1});
  return f.where(f.greater(lengths, f.int_scalar(0)), given, scalar(0));
}

Value* CellBody::passing() {
  if (valid_ == nullptr) return nullptr;
  return f.where(valid_, scalar(0), scalar(1));
}

Value* CellBody::previous(int d, Value* after, Value* initial) {
  Value* first = f.unsqueeze(or_zeros(initial), {0});
  if (!attributes.goes_back(d)) return f.slice(f.concat({first, after}, 0), {0}, {-1}, {0});
  Value* shifted =
      f.slice(f.concat({after, first}, 0), {1}, {std::numeric_limits<std::int64_t>::max()}, {0});
  return next_valid_ == nullptr ? shifted : f.where(next_valid_, shifted, first);
}

Value* CellBody::sum_products(Value* a, Value* b) {
  if (b == nullptr) return f.reduce_sum(a, {0, 1}, /*keepdims=*/false);
  const auto as_matrix = [&](Value* x) {
    return f.op("Flatten", {x}, {{"axis", std::int64_t{2}}});
  };
  return f.matmul(f.transpose(as_matrix(a), {1, 0}), as_matrix(b));
}

Value* CellBody::bounded(GraphBuilder& g, Value* x) {
  if (attributes.clip <= 0) return x;
  return g.op("Clip", {x, scalar(-attributes.clip), scalar(attributes.clip)});
}

Value* CellBody::activate(GraphBuilder& g, const Activation& a, Value* x) {
  const auto below = [&] { return g.op("Min", {x, scalar(0)}); };
  switch (a.act) {
    case Act::kSigmoid:
      return g.op("Sigmoid", {x});
    case Act::kTanh:
      return g.op("Tanh", {x});
    case Act::kRelu:
      return g.op("Relu", {x});
    case Act::kAffine:
      return g.add(g.mul(x, scalar(a.alpha)), scalar(a.beta));
    case Act::kLeakyRelu:
      return g.where(g.less(x, scalar(0)), g.mul(x, scalar(a.alpha)), x);
    case Act::kThresholdedRelu:
      return g.where(g.greater(x, scalar(a.alpha)), x, scalar(0));
    case Act::kScaledTanh:
      return g.mul(g.op("Tanh", {g.mul(x, scalar(a.beta))}), scalar(a.alpha));
    case Act::kHardSigmoid:
      return g.op("Clip", {g.add(g.mul(x, scalar(a.alpha)), scalar(a.beta)), scalar(0), scalar(1)});
    case Act::kElu:
      return g.where(g.less(x, scalar(0)), g.mul(g.sub(g.exp(below()), scalar(1)), scalar(a.alpha)),
                     x);
    case Act::kSoftsign:
      return g.div(x, g.add(g.abs(x), scalar(1)));
    case Act::kSoftplus:
      return g.op("Softplus", {x});
  }
  throw InternalError("an activation without a formula");
}

Value* CellBody::slope(GraphBuilder& g, const Activation& a, Value* x, Value* y) {
  const auto one_minus_square = [&](Value* t) { return g.sub(scalar(1), g.mul(t, t)); };
  switch (a.act) {
    case Act::kSigmoid:
      return g.mul(y, g.sub(scalar(1), y));
    case Act::kTanh:
      return one_minus_square(y);
    case Act::kRelu:
      return g.where(g.greater(x, scalar(0)), scalar(1), scalar(0));
    case Act::kAffine:
      return g.expand(scalar(a.alpha), g.shape_of(x));
    case Act::kLeakyRelu:
      return g.where(g.less(x, scalar(0)), scalar(a.alpha), scalar(1));
    case Act::kThresholdedRelu:
      return g.where(g.greater(x, scalar(a.alpha)), scalar(1), scalar(0));
    case Act::kScaledTanh:
      return g.mul(one_minus_square(g.op("Tanh", {g.mul(x, scalar(a.beta))})),
                   scalar(a.alpha * a.beta));
    case Act::kHardSigmoid: {
      Value* line = g.add(g.mul(x, scalar(a.alpha)), scalar(a.beta));
      Value* inside = g.op("And", {g.greater(line, scalar(0)), g.less(line, scalar(1))});
      return g.where(inside, scalar(a.alpha), scalar(0));
    }
    case Act::kElu: {
      Value* below = g.mul(g.exp(g.op("Min", {x, scalar(0)})), scalar(a.alpha));
      return g.where(g.less(x, scalar(0)), below, scalar(1));
    }
    case Act::kSoftsign: {
      Value* size = g.add(g.abs(x), scalar(1));
      return g.div(scalar(1), g.mul(size, size));
    }
    case Act::kSoftplus:
      return g.op("Sigmoid", {x});
  }
  throw InternalError("an activation without a derivative");
}

Value* CellBody::gate(GraphBuilder& g, const Activation& activation, Value* x) {
  return activate(g, activation, bounded(g, x));
}

CellBody::Point CellBody::point(const Activation& activation, Value* x) {
  Point point{.y = activate(f, activation, x)};
  point.slope = slope(f, activation, x, point.y);
  return point;
}

CellBody::Point CellBody::gate_point(const Activation& activation, Value* x) {
  Point inside = point(activation, bounded(f, x));
  if (attributes.clip > 0) {
    Value* is_clipped = f.greater(f.abs(x), scalar(attributes.clip));
    inside.slope = f.where(is_clipped, scalar(0), inside.slope);
  }
  return inside;
}

std::vector<Value*> CellBody::scan(const std::vector<Value*>& states,
                                   const std::vector<Value*>& sequences, std::size_t num_stacked,
                                   bool backward, const Step& step) {
  const ir::GraphPtr body = f.subgraph("step", [&](GraphBuilder& g) {
    std::vector<Value*> formal_states;
    std::vector<Value*> elements;
    for (std::size_t i = 0; i < states.size(); ++i) {
      formal_states.push_back(g.graph().add_input("state", ir::Type{}));
    }
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      elements.push_back(g.graph().add_input("element", ir::Type{}));
    }
    return step(g, formal_states, elements);
  });
  std::vector<Value*> all = states;
  all.insert(all.end(), sequences.begin(), sequences.end());
  const auto count = static_cast<std::int64_t>(sequences.size());
  std::vector<Attribute> call = {{.name = "body", .value = body},
                                 {.name = "num_scan_inputs", .value = count}};
  if (backward) {
    call.push_back(
        {.name = "scan_input_directions", .value = std::vector<std::int64_t>(sequences.size(), 1)});
    call.push_back(
        {.name = "scan_output_directions", .value = std::vector<std::int64_t>(num_stacked, 1)});
  }
  return f.ops("Scan", all, states.size() + num_stacked, std::move(call));
}

std::vector<Value*> cell_vjp(VjpContext& ctx, GraphBuilder& g) {
  const Node& node = ctx.node();
  const bool is_lstm = node.op_type == "LSTM";
  const bool is_linear = node.int_attribute("linear_before_reset", 0) != 0;
  const std::size_t num_inputs = is_lstm ? 8 : 6;
  std::vector<Attribute> call = call_attributes(node);
  if (node.find_attribute("hidden_size") == nullptr) {
    if (const auto hidden = known_dim(ctx.input(2), 2)) {
      call.push_back({.name = "hidden_size", .value = *hidden});
    }
  }

  std::vector<Value*> gates_inputs;
  for (std::size_t i = 0; i < num_inputs; ++i) gates_inputs.push_back(ctx.input(i));
  Value* y = ctx.require_output(0);
  gates_inputs.push_back(y);
  const std::size_t num_kept = is_lstm || is_linear ? 2 : 1;
  std::vector<Value*> kept = g.call(node.op_type + "Gates", gates_inputs, num_kept, call);
  if (node.op_type == "GRU") kept.resize(2);

  std::vector<Value*> inputs = std::move(gates_inputs);
  inputs.erase(inputs.begin() + 3);  // the bias
  inputs.insert(inputs.end(), kept.begin(), kept.end());
  for (std::size_t i = 0; i < (is_lstm ? 3U : 2U); ++i) inputs.push_back(ctx.cotangent(i));
  const std::vector<Value*> given =
      g.call(node.op_type + "Gradient", std::move(inputs), is_lstm ? 7 : 5, call);
  std::vector<Value*> gradients(given.begin(), given.begin() + 4);
  gradients.push_back(nullptr);  // sequence_lens
  gradients.insert(gradients.end(), given.begin() + 4, given.end());
  gradients.resize(ctx.num_inputs());
  return gradients;
}

void register_cell(opdef::OpRegistry& registry, const CellRecord& record) {
  const bool is_lstm = record.cell == Cell::kLstm;
  registry.add(
      {.op_type = record.op_type,
       .since_version = 22,
       .differentiable_inputs =
           is_lstm ? std::vector<int>{0, 1, 2, 3, 5, 6, 7} : std::vector<int>{0, 1, 2, 3, 5},
       .attributes = cell_attribute_specs(record.cell, /*with_layout=*/true),
       .vjp = cell_vjp,
       .lower = lower_layout,
       .weight_inputs = is_lstm ? std::vector<int>{1, 2, 3, 7} : std::vector<int>{1, 2, 3}});
  // The gradient functions have no rule: second derivatives go through their bodies.
  registry.add({.domain = ir::kFunctionDomain,
                .op_type = record.gates,
                .attributes = cell_attribute_specs(record.cell, /*with_layout=*/false),
                .function_body = record.gates_body});
  registry.add({.domain = ir::kFunctionDomain,
                .op_type = record.gradient,
                .attributes = cell_attribute_specs(record.cell, /*with_layout=*/false),
                .function_body = record.gradient_body});
}

}  // namespace onnxgrad::ops::recurrent
