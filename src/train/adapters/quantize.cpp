#include "train/adapters/quantize.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/check.h"
#include "ir/pattern.h"
#include "ir/uses.h"
#include "onnxgrad/option_error.h"
#include "train/adapters/insert.h"
#include "train/adapters/quantize_rows.h"

namespace onnxgrad::train {
namespace {

using ir::Graph;
using ir::is_op;
using ir::Node;
using ir::Value;

constexpr std::string_view kContrib = "com.microsoft";
constexpr std::int64_t kOpsetOfBlocks = 21;
constexpr std::int64_t kIrVersionOfInt4 = 10;

void check_options(const ir::Model& file, const WeightQuantization& options) {
  const std::int64_t block = options.block_size;
  if (block < 16 || block > 1024 || (block & (block - 1)) != 0) {
    throw OptionError(
        {.what = fmt::format("block_size={}: it is a power of two from 16 to 1024", block),
         .hint = "32, 64 or 128 are usual."});
  }
  if (options.format == WeightFormat::kNf4 && !options.is_symmetric) {
    throw OptionError({.what = "'nf4' has no zero points: its table is fixed",
                       .hint = "Leave symmetric out, or use 'int4'."});
  }
  const bool needs_blocks = options.uses_dequantize_linear && options.format != WeightFormat::kNf4;
  if (needs_blocks && file.opset() < kOpsetOfBlocks) {
    throw ModelError(
        {.what = fmt::format("the model has opset {}; DequantizeLinear has blocks from "
                             "opset 21 on",
                             file.opset()),
         .hint = "Use MatMulNBits, or export the model with a newer opset."});
  }
}

// Erases nodes and initializers behind `values` that nothing reads anymore.
void erase_unread(Graph& root, std::vector<Value*> values) {
  while (!values.empty()) {
    const ir::Uses uses(root);
    std::vector<Value*> before;
    for (Value* value : values) {
      if (uses.count(value) > 0 || value->is_input) continue;
      if (Node* node = value->producer) {
        const auto is_unread = [&](const Value* output) {
          return output == nullptr || uses.count(output) == 0;
        };
        if (!std::ranges::all_of(node->outputs, is_unread)) continue;
        for (Value* input : node->inputs) {
          if (input != nullptr) before.push_back(input);
        }
        std::erase(node->graph->nodes, node);
      } else {
        std::erase(value->graph->initializers, value);
      }
    }
    std::ranges::sort(before);
    const auto repeated = std::ranges::unique(before);
    before.erase(repeated.begin(), repeated.end());
    values = std::move(before);
  }
}

// True if nodes other than these read the weight, through nodes that move or convert it.
bool has_other_readers(const ir::Uses& uses, const AdaptableLayer& layer) {
  std::vector<const Value*> open{layer.weight};
  while (!open.empty()) {
    const Value* value = open.back();
    open.pop_back();
    for (const ir::Use& use : uses.of(value)) {
      if (use.node == nullptr) return true;
      if (is_op(*use.node, {"Transpose", "Cast", "Identity"})) {
        open.push_back(use.node->output(0));
      } else if (std::ranges::find(layer.nodes, use.node) == layer.nodes.end()) {
        return true;
      }
    }
  }
  return false;
}

// The elements [outputs, inputs].
std::vector<float> rows_of(const AdaptableLayer& layer) {
  const Tensor wide = numbers_of(layer.weight)->cast(DataType::kFloat32);
  const auto stored = wide.data<float>();
  if (layer.is_transposed) return {stored.begin(), stored.end()};
  std::vector<float> rows(stored.size());
  const auto inputs = static_cast<std::size_t>(layer.inputs);
  const auto outputs = static_cast<std::size_t>(layer.outputs);
  for (std::size_t i = 0; i < inputs; ++i) {
    for (std::size_t o = 0; o < outputs; ++o) rows[o * inputs + i] = stored[i * outputs + o];
  }
  return rows;
}

// Packs two codes in each byte, the first in the lower bits, or one.
Tensor packed(const std::vector<std::uint8_t>& codes, int bits, DataType type, Dims dims) {
  Tensor made = Tensor::zeros(type, std::move(dims));
  const int per_byte = 8 / bits;
  for (std::size_t i = 0; i < codes.size(); ++i) {
    const auto at = i / static_cast<std::size_t>(per_byte);
    const auto shift = static_cast<int>(i % static_cast<std::size_t>(per_byte)) * bits;
    made.mutable_raw()[at] |= static_cast<std::byte>(codes[i] << shift);
  }
  return made;
}

bool reads_transposed(const Node& node) {
  return is_op(node, {"Gemm"}) && node.int_attribute("transB", std::int64_t{0}) != 0;
}

class LayerQuantizer {
 public:
  LayerQuantizer(ir::Model& file, const WeightQuantization& options)
      : file_(file), root_(*file.graph), options_(options) {}

  void quantize(const AdaptableLayer& layer) {
    layer_ = &layer;
    const std::string& stored = layer.weight->name;
    const bool is_own_name = stored == layer.module || stored.starts_with(layer.module + ".");
    name_ = is_own_name ? stored : layer.module + ".weight";
    rows_ = quantize_rows(rows_of(layer), layer.outputs, options_);
    values_.clear();
    std::vector<Value*> unread;
    for (Node* node : layer.nodes) {
      unread.push_back(node->inputs[1]);
      if (options_.format == WeightFormat::kNf4) {
        node->inputs[1] = read_entries(*node);
      } else if (options_.uses_dequantize_linear) {
        node->inputs[1] = read_dequantized(*node);
      } else {
        make_n_bits(*node);
      }
    }
    erase_unread(root_, std::move(unread));
  }

 private:
  bool has_8_bits() const { return options_.format == WeightFormat::kInt8; }

  // An initializer that all nodes of the layer share which read it in one orientation.
  template <class F>
  Value* constant(std::string_view end, const F& make, bool is_turned = false) {
    Value*& value = values_[{std::string(end), is_turned}];
    if (value == nullptr) value = root_.add_initializer(name_ + std::string(end), make());
    return value;
  }
  Value* integers(std::string_view hint, const std::vector<std::int64_t>& numbers) {
    const auto size = static_cast<std::int64_t>(numbers.size());
    return constant(hint, [&] { return Tensor::from(numbers, {size}); });
  }
  Value* scales(const std::vector<std::int64_t>& dims) {
    return constant("_scales",
                    [&] { return Tensor::from(rows_.scales, Dims(dims)).cast(layer_->dtype); });
  }

  // Adds a node before `place`.
  Value* before(const Node& place, std::string_view op_type, std::vector<Value*> inputs,
                std::vector<ir::Attribute> attributes = {}) {
    Graph& graph = *place.graph;
    Value* output =
        graph.add_value(root_.names().unique(fmt::format("{}_{}", name_, op_type)), ir::Type());
    Node* node =
        graph.make_node(op_type, std::move(inputs), {output}, output->name, std::move(attributes));
    graph.nodes.insert(std::ranges::find(graph.nodes, &place), node);
    return output;
  }

  // MatMulNBits, and Add for the bias of a Gemm.
  void make_n_bits(Node& node) {
    file_.set_opset(kContrib, std::max<std::int64_t>(file_.opset(kContrib), 1));
    const int bits = has_8_bits() ? 8 : 4;
    const std::int64_t blob = options_.block_size * bits / 8;
    Value* codes = constant(has_8_bits() ? "_Q8" : "_Q4", [&] {
      return packed(rows_.codes, bits, DataType::kUint8, {rows_.rows, rows_.blocks(), blob});
    });
    std::vector<Value*> inputs{node.inputs[0], codes, scales({rows_.rows, rows_.blocks()})};
    if (!options_.is_symmetric) {
      inputs.push_back(constant("_zero_points", [&] { return zero_points(bits); }));
    }
    Value* bias = is_op(node, {"Gemm"}) ? node.input(2) : nullptr;
    if (bias != nullptr) add_bias(node, bias);
    node.op_type = "MatMulNBits";
    node.domain = kContrib;
    node.inputs = std::move(inputs);
    node.attributes = {{.name = "K", .value = layer_->inputs},
                       {.name = "N", .value = layer_->outputs},
                       {.name = "bits", .value = std::int64_t{bits}},
                       {.name = "block_size", .value = options_.block_size}};
  }

  // The result takes the name of the node's.
  void add_bias(Node& node, Value* bias) {
    Value* result = node.outputs[0];
    Graph& graph = *node.graph;
    Value* product = graph.add_value(root_.names().unique(result->name + "_product"), result->type);
    result->producer = nullptr;
    Graph::set_output(&node, 0, product);
    graph.insert_after(&node, "Add", {product, bias}, {result});
  }

  // Rows of zero points begin whole bytes.
  Tensor zero_points(int bits) const {
    std::vector<std::uint8_t> zeros;
    const std::int64_t blocks = rows_.blocks();
    for (std::size_t i = 0; i < rows_.zeros.size(); ++i) {
      zeros.push_back(rows_.zeros[i]);
      const bool is_end = (static_cast<std::int64_t>(i) + 1) % blocks == 0;
      if (is_end && bits == 4 && blocks % 2 != 0) zeros.push_back(0);
    }
    const std::int64_t row = (blocks * bits + 7) / 8;
    return packed(zeros, bits, DataType::kUint8, {rows_.rows * row});
  }

  // The matrix as the node reads it, [inputs, outputs] or transposed.
  Value* read_dequantized(const Node& node) {
    file_.ir_version = std::max(file_.ir_version, kIrVersionOfInt4);
    const bool is_turned = reads_transposed(node);
    const int bits = has_8_bits() ? 8 : 4;
    const bool is_signed = options_.is_symmetric;
    const auto type = has_8_bits() ? (is_signed ? DataType::kInt8 : DataType::kUint8)
                                   : (is_signed ? DataType::kInt4 : DataType::kUint4);
    const std::int64_t blocks = rows_.blocks();
    const std::int64_t stored = blocks * rows_.block;
    // Element (row, column) of `numbers` [rows, length], cut off after `count` columns.
    const auto turn = [&](const auto& numbers, std::int64_t length, std::int64_t count) {
      auto turned = numbers;
      turned.clear();
      const auto at = [&](std::int64_t r, std::int64_t c) {
        return numbers[static_cast<std::size_t>(r * length + c)];
      };
      for (std::int64_t i = 0; i < (is_turned ? rows_.rows : count); ++i) {
        for (std::int64_t j = 0; j < (is_turned ? count : rows_.rows); ++j) {
          turned.push_back(is_turned ? at(i, j) : at(j, i));
        }
      }
      return turned;
    };
    const auto dims = [&](std::int64_t count) {
      return is_turned ? Dims{rows_.rows, count} : Dims{count, rows_.rows};
    };
    const auto make_codes = [&] {
      auto numbers = turn(rows_.codes, stored, rows_.columns);
      const auto middle = static_cast<std::uint8_t>(1 << (bits - 1));
      for (std::uint8_t& code : numbers) {
        if (is_signed) code = static_cast<std::uint8_t>((code ^ middle) & ((1 << bits) - 1));
      }
      return packed(numbers, bits, type, dims(rows_.columns));
    };
    const auto make_scales = [&] {
      return Tensor::from(turn(rows_.scales, blocks, blocks), dims(blocks)).cast(layer_->dtype);
    };
    const auto make_zeros = [&] {
      return packed(turn(rows_.zeros, blocks, blocks), bits, type, dims(blocks));
    };
    std::vector<Value*> inputs{constant(has_8_bits() ? "_Q8" : "_Q4", make_codes, is_turned),
                               constant("_scales", make_scales, is_turned)};
    if (!is_signed) inputs.push_back(constant("_zero_points", make_zeros, is_turned));
    return before(node, "DequantizeLinear", std::move(inputs),
                  {{.name = "axis", .value = std::int64_t{is_turned ? 1 : 0}},
                   {.name = "block_size", .value = rows_.block}});
  }

  // Both entries of each byte from a table of 256 pairs, times the scales of blocks.
  Value* read_entries(const Node& node) {
    const std::int64_t blocks = rows_.blocks();
    const std::int64_t stored = blocks * rows_.block;
    Value* codes = constant(
        "_NF4", [&] { return packed(rows_.codes, 4, DataType::kUint8, {rows_.rows, stored / 2}); });
    Value* index = before(node, "Cast", {codes},
                          {{.name = "to", .value = static_cast<std::int64_t>(DataType::kInt32)}});
    Value* entries = before(node, "Gather", {table(), index});
    Value* cubes =
        before(node, "Reshape", {entries, integers("_cubes", {rows_.rows, blocks, rows_.block})});
    Value* scaled = before(node, "Mul", {cubes, scales({rows_.rows, blocks, 1})});
    Value* matrix = before(node, "Reshape", {scaled, integers("_shape", {rows_.rows, stored})});
    if (stored != rows_.columns) {
      matrix = before(node, "Slice",
                      {matrix, integers("_start", {0}), integers("_end", {rows_.columns}),
                       integers("_axis", {1})});
    }
    if (reads_transposed(node)) return matrix;
    return before(node, "Transpose", {matrix},
                  {{.name = "perm", .value = std::vector<std::int64_t>{1, 0}}});
  }

  Value* table() {
    Value*& value = tables_[layer_->dtype];
    if (value != nullptr) return value;
    std::vector<float> pairs;
    for (std::size_t byte = 0; byte < 256; ++byte) {
      pairs.push_back(kNf4Entries[byte % 16]);
      pairs.push_back(kNf4Entries[byte / 16]);
    }
    value = root_.add_initializer("nf4_pairs", Tensor::from(pairs, {256, 2}).cast(layer_->dtype));
    return value;
  }

  ir::Model& file_;
  Graph& root_;
  const WeightQuantization& options_;
  const AdaptableLayer* layer_ = nullptr;
  std::string name_;
  QuantizedRows rows_;
  std::map<std::pair<std::string, bool>, Value*> values_;
  std::map<DataType, Value*> tables_;
};

// Replaces the packed matrix of a layer by a float one; returns its initializer.
class LayerDequantizer {
 public:
  explicit LayerDequantizer(Graph& root) : root_(root) {}

  // `record`: the same layer in adapters of the file.
  void dequantize(const AdaptableLayer& layer, const std::vector<RecordedLayer*>& record) {
    std::vector<Value*> unread;
    std::map<bool, Value*> weights;
    for (Node* node : layer.nodes) {
      const bool is_turned = reads_transposed(*node);
      Value*& weight = weights[is_turned];
      if (weight == nullptr) weight = float_weight(layer, is_turned);
      if (!is_matmul_n_bits(*node)) {
        unread.push_back(node->inputs[1]);
        node->inputs[1] = weight;
        continue;
      }
      Value* bias = node->input(5);
      for (std::size_t i = 1; i < node->inputs.size(); ++i) {
        if (node->inputs[i] != nullptr && i != 5) unread.push_back(node->inputs[i]);
      }
      node->op_type = "MatMul";
      node->domain = "";
      node->attributes = {};
      node->inputs = {node->inputs[0], weight};
      if (bias != nullptr) add_bias(*node, bias);
    }
    for (RecordedLayer* recorded : record) {
      recorded->weight = weights.begin()->second->name;
      recorded->is_transposed = weights.begin()->first;
    }
    erase_unread(root_, std::move(unread));
  }

 private:
  Value* float_weight(const AdaptableLayer& layer, bool is_turned) {
    std::vector<float> numbers = layer.packed->numbers();
    Dims dims{layer.inputs, layer.outputs};
    if (is_turned) {
      std::vector<float> turned(numbers.size());
      const auto inputs = static_cast<std::size_t>(layer.inputs);
      const auto outputs = static_cast<std::size_t>(layer.outputs);
      for (std::size_t i = 0; i < inputs; ++i) {
        for (std::size_t o = 0; o < outputs; ++o) turned[o * inputs + i] = numbers[i * outputs + o];
      }
      numbers = std::move(turned);
      dims = Dims{layer.outputs, layer.inputs};
    }
    std::string name = layer.weight->name;
    for (const std::string_view end : {"_Q2", "_Q4", "_Q8", "_NF4"}) {
      if (name.ends_with(end)) name.resize(name.size() - end.size());
    }
    return root_.add_initializer(name, Tensor::from(numbers, dims).cast(layer.dtype));
  }

  void add_bias(Node& node, Value* bias) {
    Value* result = node.outputs[0];
    Value* product =
        node.graph->add_value(root_.names().unique(result->name + "_product"), result->type);
    result->producer = nullptr;
    Graph::set_output(&node, 0, product);
    node.graph->insert_after(&node, "Add", {product, bias}, {result});
  }

  Graph& root_;
};

}  // namespace

void quantize_layers(ir::Model& file, const ir::Model& working, const WeightQuantization& options) {
  check_options(file, options);
  if (has_adapters(file)) {
    throw ModelError({.what = "the model has adapters: its weights cannot be quantized under them",
                      .hint = "Quantize the model first, then add the adapter."});
  }
  std::vector<AdaptableLayer> layers = choose_layers(
      find_layers(file, working), {.targets = options.targets, .exclude = options.exclude});
  const bool is_default = options.targets.empty();
  const ir::Uses uses(*file.graph);
  const bool is_packed = std::ranges::any_of(
      layers, [](const AdaptableLayer& layer) { return layer.packed != nullptr; });
  std::erase_if(layers, [&](const AdaptableLayer& layer) {
    return layer.kind != LayerKind::kLinear || layer.is_computed ||
           (is_default && has_other_readers(uses, layer));
  });
  if (layers.empty() && is_default && is_packed) {
    throw ModelError({.what = "the model's weights are quantized already",
                      .hint = "Leave base= out: an adapter is trained over them as they are. "
                              "dequantize_weights() makes them float."});
  }
  if (layers.empty()) {
    throw ModelError({.what = "the model has no weights to quantize",
                      .detail =
                          "Float weights of MatMul and Gemm are quantized, without those that "
                          "something else reads too.",
                      .hint = "Name layers: targets=."});
  }
  LayerQuantizer quantizer(file, options);
  for (const AdaptableLayer& layer : layers) quantizer.quantize(layer);
}

void dequantize_layers(ir::Model& file, const ir::Model& working) {
  std::vector<AdaptableLayer> layers = find_layers(file, working);
  std::erase_if(layers, [](const AdaptableLayer& layer) { return layer.packed == nullptr; });
  if (layers.empty()) {
    throw ModelError({.what = "the model has no linear layer with packed weights",
                      .hint = "Give a model with MatMulNBits, DequantizeLinear or NF4 weights."});
  }
  std::vector<RecordedAdapter> record = read_adapters(file);
  LayerDequantizer dequantizer(*file.graph);
  for (const AdaptableLayer& layer : layers) {
    std::vector<RecordedLayer*> recorded;
    for (RecordedAdapter& adapter : record) {
      for (RecordedLayer& one : adapter.layers) {
        if (one.weight == layer.weight->name) recorded.push_back(&one);
      }
    }
    dequantizer.dequantize(layer, recorded);
  }
  if (!record.empty()) write_adapters(file, record);
}

}  // namespace onnxgrad::train
