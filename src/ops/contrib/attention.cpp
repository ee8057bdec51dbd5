#include "ops/contrib/attention.h"

#include <fmt/format.h>

#include <utility>

#include "ops/contrib/attention_graph.h"

// Attention and MultiHeadAttention (com.microsoft 1). Masked scores get mask_filter_value, a finite
// number, so a row without any key that counts is the mean over all of them, as in onnxruntime.

namespace onnxgrad::ops {
namespace {

double filter_value(const Node& node) {
  return static_cast<double>(node.float_attribute("mask_filter_value", -10000.0F));
}

// Query s sees keys 0 to s + (T - S).
Value* causal_bias(GraphBuilder& g, Value* q, Value* k) {
  Value* before = g.sub(dim_value(g, k, 2), dim_value(g, q, 2));
  Value* last = g.unsqueeze(g.add(positions_along(g, q, 2), before), {1});
  Value* allowed = g.op("LessOrEqual", {positions_along(g, k, 2), last});
  return mask_bias(g, allowed, q, kNever);
}

// Keys from first[b] (0 if absent) to last[b] - 1 count; int32 or int64 [B].
Value* length_bias(GraphBuilder& g, Value* k, Value* first, Value* last, double filter) {
  Value* positions = positions_along(g, k, 2);
  const auto column = [&](Value* x) { return g.unsqueeze(g.cast(x, DataType::kInt64), {1}); };
  Value* allowed = g.less(positions, column(last));
  if (first != nullptr) {
    allowed = g.op("And", {allowed, g.op("GreaterOrEqual", {positions, column(first)})});
  }
  return g.unsqueeze(mask_bias(g, allowed, k, filter), {1, 2});
}

// [B, T] or [B, S, T], positive where a key counts.
Value* flag_bias(GraphBuilder& g, Value* mask, std::size_t rank, Value* like, double filter) {
  Value* allowed = g.greater(mask, g.scalar_like(mask, 0));
  return g.unsqueeze(mask_bias(g, allowed, like, filter),
                     rank == 2 ? std::vector<std::int64_t>{1, 2} : std::vector<std::int64_t>{1});
}

// What a mask in one of onnxruntime's forms adds to the scores; nullptr for one that masks nothing.
Value* bias_of_mask(const Node& node, GraphBuilder& g, Value* mask, Value* input, Value* k) {
  const double filter = filter_value(node);
  const auto rank = known_rank(mask);
  if (!rank) {
    refuse_form(node, fmt::format("the rank of the mask '{}' is not known", mask->name),
                "Give the mask a shape in the model; its dimensions may be symbols.");
  }
  if (*rank == 1) {
    const auto batch = known_dim(input, 0);
    const auto size = known_dim(mask, 0);
    if (!batch || !size || *batch == *size) return length_bias(g, k, nullptr, mask, filter);
    if (*size % 2 == 0 && *size / 2 == *batch) {
      return length_bias(g, k, g.slice(mask, {*batch}, {*size}, {0}),
                         g.slice(mask, {0}, {*batch}, {0}), filter);
    }
  } else if (*rank == 2 && known_dim(mask, 1) == 1 && known_dim(k, 2) != 1) {
    return nullptr;  // a placeholder for no mask
  } else if (*rank == 2 || *rank == 3) {
    return flag_bias(g, mask, *rank, k, filter);
  }
  refuse_form(node, fmt::format("the mask '{}' is {}", mask->name, mask->type.to_string()),
              "Give it as [batch] lengths, [2 * batch] ends and starts, or flags [batch, keys] or "
              "[batch, queries, keys].");
}

// The widths of queries, keys and values.
std::vector<std::int64_t> projected_sizes(const Node& node, std::int64_t width) {
  std::vector<std::int64_t> sizes = node.ints_attribute("qkv_hidden_sizes");
  if (sizes.empty()) sizes.assign(3, width / 3);
  const std::int64_t heads = node.int_attribute("num_heads");
  bool fits = sizes.size() == 3 && sizes[0] == sizes[1];
  std::int64_t left = width;
  for (const std::int64_t size : sizes) {
    fits = fits && size > 0 && size % heads == 0 && size <= left;
    if (fits) left -= size;
  }
  fits = fits && left == 0;
  if (fits) return sizes;
  throw ModelError(
      {.what = fmt::format("{} columns of weights cannot be split into queries, keys and "
                           "values for {} heads",
                           width, heads),
       .where = {.node = node.name, .op_type = node.op_type},
       .hint = "Set num_heads and qkv_hidden_sizes to match the weights."});
}

Value* half_of_past(GraphBuilder& g, Value* past, std::int64_t which) {
  if (past == nullptr) return nullptr;
  return g.squeeze(g.slice(past, {which}, {which + 1}, {0}), {0});
}

Value* optional_input(const Node& node, int i) {
  return i < 0 ? nullptr : node.input(static_cast<std::size_t>(i));
}

}  // namespace

Lowered attend_projected(const Node& node, GraphBuilder& g, const ProjectedInputs& inputs) {
  refuse_attribute(node, "do_rotary");
  refuse_attribute(node, "past_present_share_buffer");
  const std::int64_t heads = node.int_attribute("num_heads");
  const std::vector<std::int64_t> sizes = projected_sizes(node, inputs.width);
  const std::vector<Value*> parts =
      g.ops("Split", {inputs.qkv, g.ints(sizes)}, 3, {{"axis", std::int64_t{-1}}});
  Value* past = optional_input(node, inputs.past);
  Attention a{.q = split_heads(g, parts[0], heads, sizes[0] / heads),
              .k = append_past(g, half_of_past(g, past, 0),
                               split_heads(g, parts[1], heads, sizes[1] / heads)),
              .v = append_past(g, half_of_past(g, past, 1),
                               split_heads(g, parts[2], heads, sizes[2] / heads)),
              .heads = heads,
              .key_heads = heads,
              .scale = attention_scale(node, sizes[0] / heads),
              .biases = {}};
  if (Value* mask = optional_input(node, inputs.mask)) {
    Value* bias = bias_of_mask(node, g, mask, node.input(0), a.k);
    if (bias != nullptr) a.biases.push_back(bias);
  }
  if (node.int_attribute("unidirectional") != 0) a.biases.push_back(causal_bias(g, a.q, a.k));
  if (Value* bias = optional_input(node, inputs.bias)) a.biases.push_back(bias);
  Value* y = merge_heads(g, attend(g, a), heads, sizes[2] / heads);
  Value* present = nullptr;
  if (node.output(1) != nullptr) {
    present = g.concat({g.unsqueeze(a.k, {0}), g.unsqueeze(a.v, {0})}, 0);
  }
  return {{y, present}};
}

namespace {

Lowered lower_attention(const Node& node, GraphBuilder& g) {
  check_inputs(
      node, 2,
      {"input", "weights", "bias", "mask_index", "past", "attention_bias", "past_sequence_length"});
  refuse_input(node, 6, "past_sequence_length");
  Value* qkv = add_if(g, g.matmul(node.input(0), node.input(1)), node.input(2));
  return attend_projected(node, g,
                          {.qkv = qkv,
                           .width = required_dim(node, node.input(1), 1, "weights"),
                           .mask = 3,
                           .past = 4,
                           .bias = 5});
}

// Queries, keys and values as [B, N, S, D], and whether keys and values came that way.
struct Operands {
  Value* q = nullptr;
  Value* k = nullptr;
  Value* v = nullptr;
  std::int64_t size = 0;        // of a head of queries and keys
  std::int64_t value_size = 0;  // of a head of values
};

// Element `which` of the axis before the last one: [B, S, N, which, D] to [B, N, S, D].
Value* take_packed(GraphBuilder& g, Value* x, std::int64_t which) {
  Value* part = g.squeeze(g.slice(x, {which}, {which + 1}, {3}), {3});
  return g.transpose(part, {0, 2, 1, 3});
}

// The part of `bias` for heads [N, 1, D].
Value* head_bias(GraphBuilder& g, Value* bias, std::int64_t first, std::int64_t heads,
                 std::int64_t size) {
  Value* part = g.slice(bias, {first}, {first + heads * size}, {0});
  return g.reshape(part, {heads, 1, size});
}

Operands operands_of(const Node& node, GraphBuilder& g, std::int64_t heads) {
  Value* query = node.input(0);
  Value* key = node.input(1);
  Value* value = node.input(2);
  const auto query_rank = known_rank(query);
  Operands o;
  if (query_rank == 5) {  // [B, S, N, 3, D]
    o.size = o.value_size = required_dim(node, query, 4, "query");
    o.q = take_packed(g, query, 0);
    o.k = take_packed(g, query, 1);
    o.v = take_packed(g, query, 2);
    return o;
  }
  o.size = head_size(node, required_dim(node, query, 2, "query"), heads, "query");
  o.q = split_heads(g, query, heads, o.size);
  const auto key_rank = key == nullptr ? query_rank : known_rank(key);
  if (key != nullptr && value == nullptr && key_rank == 5) {  // [B, T, N, 2, D]
    o.value_size = required_dim(node, key, 4, "key");
    o.k = take_packed(g, key, 0);
    o.v = take_packed(g, key, 1);
  } else if (key != nullptr && value != nullptr && key_rank == 4) {  // [B, N, T, D] as it is
    o.value_size = required_dim(node, value, 3, "value");
    o.k = key;
    o.v = value;
  } else if (key != nullptr && value != nullptr && key_rank == 3) {
    o.value_size = head_size(node, required_dim(node, value, 2, "value"), heads, "value");
    o.k = split_heads(g, key, heads, o.size);
    o.v = split_heads(g, value, heads, o.value_size);
  } else {
    refuse_form(node, "query, key and value have shapes that do not go together",
                "Give query [B, S, N * D] with key and value [B, T, N * D] or [B, N, T, D], or key "
                "alone as [B, T, N, 2, D], or query alone as [B, S, N, 3, D].");
  }
  return o;
}

void add_biases(const Node& node, GraphBuilder& g, std::int64_t heads, Operands& o) {
  Value* bias = node.input(3);
  if (bias == nullptr) return;
  o.q = g.add(o.q, head_bias(g, bias, 0, heads, o.size));
  const bool is_projected = node.input(1) == nullptr || known_rank(node.input(1)) != 4;
  if (!is_projected) return;  // keys and values that another step has projected have theirs
  o.k = g.add(o.k, head_bias(g, bias, heads * o.size, heads, o.size));
  o.v = g.add(o.v, head_bias(g, bias, 2 * heads * o.size, heads, o.value_size));
}

Lowered lower_multi_head_attention(const Node& node, GraphBuilder& g) {
  check_inputs(node, 1,
               {"query", "key", "value", "bias", "key_padding_mask", "attention_bias", "past_key",
                "past_value", "past_sequence_length", "cache_indirection"});
  check_both_or_none(node, 6, "past_key", 7, "past_value");
  refuse_input(node, 8, "past_sequence_length");
  refuse_input(node, 9, "cache_indirection");
  const std::int64_t heads = node.int_attribute("num_heads");
  Operands o = operands_of(node, g, heads);
  add_biases(node, g, heads, o);
  Attention a{.q = o.q,
              .k = append_past(g, node.input(6), o.k),
              .v = append_past(g, node.input(7), o.v),
              .heads = heads,
              .key_heads = heads,
              .scale = attention_scale(node, o.size),
              .biases = {}};
  if (Value* mask = node.input(4)) {
    Value* bias = bias_of_mask(node, g, mask, node.input(0), a.k);
    if (bias != nullptr) a.biases.push_back(bias);
  }
  if (node.int_attribute("unidirectional") != 0) a.biases.push_back(causal_bias(g, a.q, a.k));
  if (node.input(5) != nullptr) a.biases.push_back(node.input(5));
  Value* y = merge_heads(g, attend(g, a), heads, o.value_size);
  return {{y, a.k, a.v, a.scores}};
}

}  // namespace

}  // namespace onnxgrad::ops

namespace onnxgrad::ops::attention_op {

void register_attention(opdef::OpRegistry& registry) {
  constexpr std::int64_t kMaxHeads = 1 << 16;
  const std::vector<opdef::AttributeSpec> common = {{.name = "num_heads",
                                                     .type = opdef::AttributeType::kInt,
                                                     .required = true,
                                                     .min = 1,
                                                     .max = kMaxHeads},
                                                    flag_attribute("unidirectional", false),
                                                    float_attribute("mask_filter_value"),
                                                    float_attribute("scale")};
  std::vector<opdef::AttributeSpec> of_input = common;
  of_input.push_back(int_attribute("do_rotary", 0, 1));
  of_input.push_back(int_attribute("past_present_share_buffer", 0, 1));
  of_input.push_back(int_attribute("rotary_embedding_dim", 0, 1 << 16));
  of_input.push_back(ints_attribute("qkv_hidden_sizes"));
  registry.add({.domain = kMicrosoft,
                .op_type = "Attention",
                .attributes = std::move(of_input),
                .lower = lower_attention});
  registry.add({.domain = kMicrosoft,
                .op_type = "MultiHeadAttention",
                .attributes = common,
                .lower = lower_multi_head_attention});
}

}  // namespace onnxgrad::ops::attention_op
