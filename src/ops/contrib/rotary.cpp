#include <fmt/format.h>

#include "ops/contrib/attention_graph.h"

// RotaryEmbedding and GroupQueryAttention (com.microsoft 1). Su et al., RoFormer: Enhanced
// Transformer with Rotary Position Embedding, 2021; Ainslie et al., GQA, 2023.

namespace onnxgrad::ops::rotary_op {
namespace {

// Throws: ShapeError unless `planes` cosines rotate `wanted` of the `size` columns of a head.
void check_planes(const Node& node, std::int64_t planes, std::int64_t wanted, std::int64_t size) {
  if (planes > 0 && wanted <= size && wanted % 2 == 0 && planes == wanted / 2) return;
  throw ShapeError(
      {.what = fmt::format("cos_cache has {} columns for {} of the {} columns of a head", planes,
                           wanted, size),
       .where = {.node = node.name, .op_type = node.op_type, .value = "cos_cache"},
       .hint = "Give caches with half as many columns as are rotated."});
}

// Shapes: input [B, S, N * D] or [B, N, S, D]; position_ids [B, S], or [1]: the first position of
// each row.
Lowered lower_rotary_embedding(const Node& node, GraphBuilder& g) {
  check_inputs(node, 4, {"input", "position_ids", "cos_cache", "sin_cache"});
  refuse_attribute(node, "is_packed_batching");
  const float scale = node.float_attribute("scale", 1.0F);
  if (scale != 1 && scale != 0) {
    refuse_form(node, fmt::format("scale = {} has no form in standard operators", scale),
                "Export the model with a scale of 1.");
  }
  Value* x = node.input(0);
  const auto rank = known_rank(x);
  if (rank != 3 && rank != 4) {
    refuse_form(node, "input '" + x->name + "' is " + x->type.to_string(),
                "Give it as [batch, sequence, heads * size] or [batch, heads, sequence, size].");
  }
  const std::int64_t planes = required_dim(node, node.input(2), 1, "cos_cache");
  const std::int64_t width = required_dim(node, x, -1, "input");
  const std::int64_t turned = node.int_attribute("rotary_embedding_dim", 0);
  std::int64_t heads = node.int_attribute("num_heads", 0);
  if (heads == 0 && turned > 0) {
    throw ModelError({.what = "rotary_embedding_dim without num_heads",
                      .where = {.node = node.name, .op_type = node.op_type},
                      .hint = "Give num_heads, or leave rotary_embedding_dim out."});
  }
  if (heads == 0 && planes > 0) heads = width / 2 / planes;
  const std::int64_t size = rank == 4 ? width : head_size(node, width, heads, "input");
  check_planes(node, planes, turned > 0 ? turned : size, size);
  const std::int64_t sequence_axis = rank == 4 ? 2 : 1;
  Value* positions = g.cast(node.input(1), DataType::kInt64);
  if (known_rank(positions) != 2) {
    positions = g.unsqueeze(g.add(positions_along(g, x, sequence_axis), positions), {0});
  }
  const bool interleaved = node.int_attribute("interleaved", 0) != 0;
  const std::int64_t head_axis = rank == 4 ? 1 : 2;
  const auto angles = [&](std::size_t input) {  // [B, 1, S, planes] or [B, S, 1, planes]
    return g.unsqueeze(g.gather(node.input(input), positions, 0), {head_axis});
  };
  if (rank == 4) return {{rotate(g, x, angles(2), angles(3), size, planes, interleaved)}};
  Value* parts = g.reshape(x, g.ints({0, 0, heads, size}), /*allow_zero=*/false);
  Value* y = rotate(g, parts, angles(2), angles(3), size, planes, interleaved);
  return {{g.reshape(y, shape_value(g, x))}};
}

struct GroupQuery {
  const Node& node;
  GraphBuilder& g;
  std::int64_t heads = 1;      // heads of queries
  std::int64_t key_heads = 1;  // heads of keys and values
  std::int64_t size = 0;       // columns of a head
  Value* q = nullptr;          // [B, N, S, D]
  Value* k = nullptr;          // [B, K, S, D]
  Value* v = nullptr;
  Value* past = nullptr;  // int64 [B, 1]: number of keys before; absent: none
};

void read_operands(GroupQuery& o) {
  const Node& node = o.node;
  Value* query = node.input(0);
  const std::int64_t width = required_dim(node, query, 2, "query");
  Value* key = node.input(1);
  Value* value = node.input(2);
  if (key == nullptr || value == nullptr) {
    o.size = head_size(node, width, o.heads + 2 * o.key_heads, "query");
    const std::vector<Value*> parts = o.g.ops(
        "Split", {query, o.g.ints({o.heads * o.size, o.key_heads * o.size, o.key_heads * o.size})},
        3, {{"axis", std::int64_t{-1}}});
    query = parts[0];
    key = parts[1];
    value = parts[2];
  } else {
    o.size = head_size(node, width, o.heads, "query");
  }
  o.q = split_heads(o.g, query, o.heads, o.size);
  o.k = split_heads(o.g, key, o.key_heads, o.size);
  o.v = split_heads(o.g, value, o.key_heads, o.size);
  const Value* past_key = node.input(3);
  if (past_key == nullptr || known_dim(past_key, 2) == 0) return;
  // seqlens_k is the number of keys minus one; the queries of a prompt have no keys before them.
  Value* lengths = o.g.cast(node.input(5), DataType::kInt64);
  Value* before = o.g.sub(o.g.add(lengths, o.g.int_scalar(1)), dim_value(o.g, o.q, 2));
  o.past = o.g.unsqueeze(o.g.op("Max", {before, o.g.int_scalar(0)}), {1});
}

void turn(GroupQuery& o) {
  const Node& node = o.node;
  if (node.int_attribute("do_rotary", 0) == 0) return;
  if (node.input(7) == nullptr || node.input(8) == nullptr) {
    throw ModelError({.what = "do_rotary is set, but cos_cache or sin_cache is missing",
                      .where = {.node = node.name, .op_type = node.op_type},
                      .hint = "Name both caches, or export the model again."});
  }
  GraphBuilder& g = o.g;
  Value* positions = node.input(9);
  if (positions == nullptr) {
    positions = g.unsqueeze(positions_along(g, o.q, 2), {0});
    if (o.past != nullptr) positions = g.add(positions, o.past);
  }
  const std::int64_t planes = required_dim(node, node.input(7), 1, "cos_cache");
  if (planes < 1 || planes > o.size / 2) check_planes(node, planes, o.size, o.size);
  const bool interleaved = node.int_attribute("rotary_interleaved", 0) != 0;
  Value* cos = g.unsqueeze(g.gather(node.input(7), positions, 0), {1});
  Value* sin = g.unsqueeze(g.gather(node.input(8), positions, 0), {1});
  o.q = rotate(g, o.q, cos, sin, o.size, planes, interleaved);
  o.k = rotate(g, o.k, cos, sin, o.size, planes, interleaved);
}

// Writes the rows of `x` [B, K, S, D] into past [B, K, P, D] from row o.past[b] on, with zeros
// after them; the result is as long as the larger of P and total_sequence_length.
Value* extend_cache(const GroupQuery& o, Value* past, Value* x) {
  GraphBuilder& g = o.g;
  Value* total = g.reshape(g.cast(o.node.input(6), DataType::kInt64), {1});
  Value* length = g.op("Max", {total, dim_value(g, past, 2)});
  Value* missing = g.concat(
      {g.dims_of(past, 0, 2), g.sub(length, dim_value(g, past, 2)), g.dims_of(past, 3, 4)}, 0);
  Value* old_rows = g.concat({past, zeros_of_shape(g, missing, past)}, 2);
  Value* number = g.sub(g.unsqueeze(range_value(g, g.ints({0}), length), {0}), o.past);  // [B, T]
  Value* last = g.sub(dim_value(g, x, 2), g.int_scalar(1));
  const auto by_row = [&g](Value* flags) { return g.unsqueeze(flags, {1, 3}); };
  Value* is_old = by_row(g.less(number, g.int_scalar(0)));
  Value* is_kept = by_row(g.op("LessOrEqual", {number, last}));
  Value* taken = g.op("Min", {g.op("Max", {number, g.int_scalar(0)}), last});
  Value* index = g.expand(g.unsqueeze(taken, {1, 3}), g.shape_of(old_rows));
  Value* new_rows = g.op("GatherElements", {x, index}, {{"axis", std::int64_t{2}}});
  return keep_where(g, is_kept, g.where(is_old, old_rows, new_rows));
}

// Query s has position past + s: it attends to keys up to that position, at most the last
// local_window_size of them.
Value* window_bias(const GroupQuery& o, Value* k) {
  GraphBuilder& g = o.g;
  const std::int64_t window = o.node.int_attribute("local_window_size");
  Value* own = positions_along(g, o.q, 2);
  Value* keys = positions_along(g, k, 2);
  if (o.past == nullptr) {
    own = g.unsqueeze(own, {1});  // [S, 1]
  } else {
    own = g.unsqueeze(g.add(o.past, own), {1, 3});  // [B, 1, S, 1]
  }
  Value* allowed = g.op("LessOrEqual", {keys, own});
  if (window > 0) {
    Value* first = g.sub(own, g.int_scalar(window));
    allowed = g.op("And", {allowed, g.greater(keys, first)});
  }
  return mask_bias(g, allowed, o.q, kNever);
}

void refuse_unusual(const Node& node) {
  for (const std::size_t i : {12U, 13U, 14U, 15U}) {
    refuse_input(node, i, "k_scale, v_scale, q_norm_weight or k_norm_weight");
  }
  refuse_attribute(node, "kv_cache_bit_width");
  for (const std::string_view name : {"k_quant_type", "v_quant_type"}) {
    const std::string type = node.string_attribute(name, "NONE");
    if (type == "NONE") continue;
    refuse_form(node, fmt::format("{} = '{}' has no form in standard operators", name, type),
                "Export the model with caches of the type of the query.");
  }
  refuse_attribute(node, "qk_output");
  refuse_attribute(node, "sliding_window_cache");
  if (node.int_attribute("causal") != 1) {
    refuse_form(node, "causal = 0 has no form in standard operators",
                "Export the model with MultiHeadAttention, or with causal attention.");
  }
}

Lowered lower_group_query_attention(const Node& node, GraphBuilder& g) {
  check_inputs(node, 7,
               {"query", "key?", "value?", "past_key?", "past_value?", "seqlens_k",
                "total_sequence_length", "cos_cache", "sin_cache", "position_ids", "attention_bias",
                "head_sink", "k_scale", "v_scale", "q_norm_weight", "k_norm_weight"});
  check_both_or_none(node, 1, "key", 2, "value");
  check_both_or_none(node, 3, "past_key", 4, "past_value");
  refuse_unusual(node);
  GroupQuery o{.node = node,
               .g = g,
               .heads = node.int_attribute("num_heads"),
               .key_heads = node.int_attribute("kv_num_heads")};
  if (o.heads % o.key_heads != 0) {
    throw ModelError(
        {.what = fmt::format("{} heads of queries for {} heads of keys", o.heads, o.key_heads),
         .where = {.node = node.name, .op_type = node.op_type},
         .hint = "Make num_heads a multiple of kv_num_heads."});
  }
  read_operands(o);
  turn(o);
  Attention a{.q = o.q,
              .k = o.past == nullptr ? o.k : extend_cache(o, node.input(3), o.k),
              .v = o.past == nullptr ? o.v : extend_cache(o, node.input(4), o.v),
              .heads = o.heads,
              .key_heads = o.key_heads,
              .scale = attention_scale(node, o.size),
              .softcap = static_cast<double>(node.float_attribute("softcap", 0.0F)),
              .biases = {},
              .sink = node.input(11),
              .has_zero_sink = node.int_attribute("smooth_softmax") == 1};
  a.biases.push_back(window_bias(o, a.k));
  if (node.input(10) != nullptr) a.biases.push_back(node.input(10));
  Value* y = merge_heads(g, attend(g, a), o.heads, o.size);
  return {{y, a.k, a.v}};
}

}  // namespace

void register_rotary(opdef::OpRegistry& registry) {
  constexpr std::int64_t kMaxHeads = 1 << 16;
  constexpr std::int64_t kMaxLength = std::int64_t{1} << 40;
  registry.add(
      {.domain = kMicrosoft,
       .op_type = "RotaryEmbedding",
       .attributes = {int_attribute("interleaved", 0, 1), int_attribute("is_packed_batching", 0, 1),
                      int_attribute("num_heads", 0, kMaxHeads),
                      int_attribute("rotary_embedding_dim", 0, kMaxLength),
                      float_attribute("scale")},
       .lower = lower_rotary_embedding});
  const auto required = [](std::string_view name) {
    opdef::AttributeSpec spec = int_attribute(name, 1, kMaxHeads);
    spec.required = true;
    return spec;
  };
  registry.add(
      {.domain = kMicrosoft,
       .op_type = "GroupQueryAttention",
       .attributes = {required("num_heads"), required("kv_num_heads"),
                      flag_attribute("causal", true), int_attribute("do_rotary", 0, 1),
                      string_attribute("k_quant_type"), int_attribute("kv_cache_bit_width", 0, 16),
                      int_attribute("local_window_size", -1, kMaxLength, -1),
                      float_attribute("qk_norm_epsilon", 1e-6F),
                      int_attribute("qk_output", 0, 2, 0),
                      int_attribute("rotary_interleaved", 0, 1), float_attribute("scale"),
                      int_attribute("sliding_window_cache", 0, 1, 0),
                      int_attribute("smooth_softmax", -1, 1, -1), float_attribute("softcap"),
                      string_attribute("v_quant_type")},
       .lower = lower_group_query_attention});
}

}  // namespace onnxgrad::ops::rotary_op
