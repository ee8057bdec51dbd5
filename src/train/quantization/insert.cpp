#include "train/quantization/insert.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/check.h"
#include "ir/pattern.h"
#include "ir/uses.h"
#include "passes/passes.h"
#include "train/quantization/weight_codes.h"
#include "train/tools/patterns.h"
#include "train/weights/quantization_record.h"

namespace onnxgrad::train {
namespace {

using ir::is_op;
using ir::Node;
using ir::Value;

constexpr std::int64_t kLevels = 256;  // of activations, int8

bool is_matrix(const Value* value) {
  return value != nullptr && value->is_constant() && value->initializer.dims().rank() >= 2 &&
         value->initializer.num_elements() > 0 &&
         (value->dtype() == DataType::kFloat32 || value->dtype() == DataType::kFloat64);
}

// A matrix, read directly or through a Transpose of two axes.
struct ReadWeight {
  Value* value = nullptr;
  bool is_transposed = false;
};
ReadWeight read_weight(Value* value) {
  if (is_matrix(value)) return {.value = value};
  if (value == nullptr || !is_op(value->producer, "Transpose")) return {};
  Value* const source = value->producer->input(0);
  if (!is_matrix(source) || source->initializer.dims().rank() != 2) return {};
  const auto perm = value->producer->ints_attribute("perm", {1, 0});
  return {.value = source, .is_transposed = perm == std::vector<std::int64_t>{1, 0}};
}

std::optional<QuantizableLayer> layer_of(Node& node) {
  if (is_op(node, {"Conv", "ConvTranspose"})) {
    if (!is_matrix(node.input(1)) || node.input(0)->is_constant()) return std::nullopt;
    // A ConvTranspose has [inputs, outputs / groups, ...].
    const bool is_back = node.op_type == "ConvTranspose";
    if (is_back && node.int_attribute("group", 1) != 1) return std::nullopt;
    return QuantizableLayer{.node = &node,
                            .input = 0,
                            .weight = node.input(1),
                            .channel_axis = is_back ? 1 : 0,
                            .input_axis = is_back ? 0 : 1};
  }
  if (!is_op(node, {"Gemm", "MatMul"})) return std::nullopt;
  for (const std::size_t operand : {1U, 0U}) {
    const ReadWeight read = read_weight(node.input(operand));
    const Value* other = node.input(1 - operand);
    if (read.value == nullptr || other == nullptr || other->is_constant()) continue;
    const auto rank = static_cast<std::int64_t>(read.value->initializer.dims().rank());
    bool is_swapped = read.is_transposed;
    if (node.op_type == "Gemm") {
      is_swapped ^= node.int_attribute(operand == 1 ? "transB" : "transA", 0) != 0;
    }
    const bool is_last = (operand == 1) != is_swapped;  // the channels are the last axis
    return QuantizableLayer{.node = &node,
                            .input = 1 - operand,
                            .weight = read.value,
                            .channel_axis = is_last ? rank - 1 : rank - 2,
                            .input_axis = is_last ? rank - 2 : rank - 1};
  }
  return std::nullopt;
}

bool has_quantized_weights(const ir::Graph& graph) {
  return std::ranges::any_of(graph.nodes, [](const Node* node) {
    return (is_op(*node, {"DequantizeLinear"}) && node->input(0)->is_constant()) ||
           is_op(*node, {"QLinearConv", "QLinearMatMul"}) || node->op_type == "QGemm";
  });
}

// The largest code of a type, from the middle of its range.
std::int64_t largest_of(DataType dtype) {
  const bool is_small = size_bits(dtype) > 0 && size_bits(dtype) <= 4;
  return is_small ? 7 : 127;
}

WeightNames names_of(const QuantizableLayer& layer, const ir::Model& working) {
  WeightNames names{.name = layer.weight->name, .aliases = {layer.node->name}};
  if (const Value* value = working.graph->find(layer.weight->name)) {
    const WeightNames known = names_for_patterns(*value);
    names.aliases.insert(names.aliases.end(), known.aliases.begin(), known.aliases.end());
  }
  return names;
}

/// Writes the nodes and initializers of a quantized file.
class Writer {
 public:
  Writer(ir::Graph& graph, const Ranges& ranges, const QuantizationOptions& options)
      : graph_(graph), ranges_(ranges), options_(options) {}

  void quantize(const QuantizableLayer& layer) {
    const Tensor& weight_scale = quantize_weight(layer);
    if (!options_.activations) return;
    const Value* scale = quantize_input(layer);
    if (scale != nullptr) quantize_bias(layer, *scale, weight_scale);
  }

  NamedTensors replaced;
  std::vector<LearnedScale> learned;

 private:
  Value* add(const Value& value, std::string_view part, Tensor tensor) {
    return graph_.add_initializer(value.name + std::string(part), std::move(tensor));
  }

  // Adds a node before the first reader of its result.
  Value* write(std::string_view op_type, const Value& of, std::vector<Value*> inputs,
               std::vector<ir::Attribute> attributes, DataType dtype, const Node* before) {
    ir::Type type = of.type;
    type.kind = ir::Type::Kind::kTensor;
    type.dtype = dtype;
    const std::string name = fmt::format("{}_{}", of.name, op_type);
    Value* result = graph_.add_value(graph_.names().unique(name + "_Output"), type);
    Node* node =
        graph_.make_node(op_type, std::move(inputs), {result}, name, std::move(attributes));
    const auto place = std::ranges::find(graph_.nodes, before);
    graph_.nodes.insert(place, node);
    return result;
  }

  // Integer products of onnxruntime take one scale for a stack of matrices, and for a matrix that
  // is read transposed too.
  bool has_channels(const QuantizableLayer& layer) const {
    if (is_op(*layer.node, {"Conv", "ConvTranspose"})) return true;
    if (layer.weight->initializer.dims().rank() != 2) return false;
    const ir::Uses uses(graph_);
    const auto readers = uses.of(layer.weight);
    const auto is_transpose = [](const ir::Use& use) {
      return use.node != nullptr && is_op(*use.node, {"Transpose"});
    };
    return readers.size() < 2 || std::ranges::none_of(readers, is_transpose);
  }

  ScaleLayout layout_of(const QuantizableLayer& layer) const {
    ScaleLayout layout{.groups = options_.groups, .axis = layer.channel_axis};
    if (!has_channels(layer)) layout.groups = ScaleGroups::kTensor;
    if (layout.groups != ScaleGroups::kBlock) return layout;
    const Dims& dims = layer.weight->initializer.dims();
    const bool is_small = dims[static_cast<std::size_t>(layer.input_axis)] <= options_.block_size;
    if (is_small || is_op(*layer.node, {"Conv", "ConvTranspose"})) {
      layout.groups = ScaleGroups::kChannel;
      return layout;
    }
    layout.axis = layer.input_axis;
    layout.block_size = options_.block_size;
    return layout;
  }

  // All readers of the weight, whatever they are, read the rounded numbers.
  const Tensor& quantize_weight(const QuantizableLayer& layer) {
    Value& weight = *layer.weight;
    if (const auto known = scales_.find(&weight); known != scales_.end()) return known->second;
    const Tensor numbers = weight.initializer;
    const ScaleLayout layout = layout_of(layer);
    WeightCodes codes = weight_codes(numbers, options_.weights, layout);
    Value* scale = add(weight, "_scale", codes.scale);
    Value* zero = add(weight, "_zero_point", codes.zero);
    std::vector<ir::Attribute> attributes;
    if (layout.groups != ScaleGroups::kTensor) attributes.push_back({"axis", layout.axis});
    if (layout.block_size > 0) attributes.push_back({"block_size", layout.block_size});
    const ir::Uses uses(graph_);
    const Node* reader = uses.first_reader(&weight);
    while (reader->graph != &graph_) reader = owner_of(*reader);
    Value* result = write("DequantizeLinear", weight, {&weight, scale, zero}, std::move(attributes),
                          numbers.dtype(), reader);
    Node* node = result->producer;
    ir::replace_uses(graph_, {{&weight, result}});
    node->inputs[0] = &weight;
    replaced.push_back({.name = weight.name, .tensor = numbers});
    weight.initializer = codes.codes;
    weight.type = ir::Type::tensor(options_.weights, numbers.dims());
    if (options_.learn_ranges) {
      learned.push_back({.name = scale->name,
                         .elements = std::max<std::int64_t>(
                             1, numbers.num_elements() / codes.scale.num_elements()),
                         .largest = largest_code(options_.weights)});
    }
    return scales_.emplace(&weight, codes.scale).first->second;
  }

  // The node of the graph that contains a node of a subgraph.
  const Node* owner_of(const Node& inner) const {
    for (const Node* node : graph_.nodes) {
      for (const ir::Graph* body : node->subgraphs()) {
        for (const ir::Graph* at = inner.graph; at != nullptr; at = at->parent()) {
          if (at == body) return node;
        }
      }
    }
    return graph_.nodes.front();
  }

  // Returns the scale, or nullptr where another pair is there already.
  const Value* quantize_input(const QuantizableLayer& layer) {
    Value* value = layer.node->inputs[layer.input];
    if (const auto known = inputs_.find(value); known != inputs_.end()) {
      layer.node->inputs[layer.input] = known->second.result;
      return known->second.scale;
    }
    if (is_op(value->producer, "DequantizeLinear")) {
      Value* scale = value->producer->input(1);
      return scale->is_constant() && scale->initializer.num_elements() == 1 ? scale : nullptr;
    }
    const RangeObserver& seen = ranges_.at(value->name);
    const Range range = seen.range(options_.calibration, options_.percentile);
    constexpr double kLowest = -128;
    const double width = range.high - range.low;
    const double step = (width > 0 ? width : 1.0) / (kLevels - 1);
    const double zero = std::clamp(std::nearbyint(kLowest - range.low / step), -128.0, 127.0);
    Value* scale = add(*value, "_scale", Tensor::scalar(step).cast(dtype_of_layer(layer)));
    Value* zero_point = add(*value, "_zero_point", Tensor::scalar(static_cast<std::int8_t>(zero)));
    Value* codes = write("QuantizeLinear", *value, {value, scale, zero_point}, {}, DataType::kInt8,
                         layer.node);
    Value* result = write("DequantizeLinear", *value, {codes, scale, zero_point}, {},
                          scale->dtype(), layer.node);
    inputs_.emplace(value, Input{.result = result, .scale = scale});
    layer.node->inputs[layer.input] = result;
    if (options_.learn_ranges) {
      learned.push_back(
          {.name = scale->name, .elements = seen.row_elements(), .largest = kLevels / 2 - 1});
    }
    return scale;
  }

  DataType dtype_of_layer(const QuantizableLayer& layer) const {
    return scales_.at(layer.weight).dtype();
  }

  // The node that adds the bias of a layer, and the index of its input; nullptr: none.
  struct BiasPlace {
    Node* reader = nullptr;
    std::size_t input = 2;
  };
  BiasPlace bias_of(const QuantizableLayer& layer) const {
    Node& node = *layer.node;
    if (is_op(node, {"Conv", "ConvTranspose"})) return {node.inputs.size() > 2 ? &node : nullptr};
    if (is_op(node, {"Gemm"})) {
      const bool is_plain = node.inputs.size() > 2 && node.float_attribute("alpha", 1.0F) == 1.0F &&
                            node.float_attribute("beta", 1.0F) == 1.0F;
      return {is_plain ? &node : nullptr};
    }
    if (layer.input != 0) return {};
    Node* sum = ir::Uses(graph_).only_reader(node.output(0));
    if (sum == nullptr || sum->graph != &graph_ || !is_op(*sum, {"Add"})) return {};
    return {.reader = sum, .input = sum->input(0) == node.output(0) ? 1U : 0U};
  }

  // A bias of another layer too, or one that needs more digits than float32 has, stays as it is.
  void quantize_bias(const QuantizableLayer& layer, const Value& input_scale,
                     const Tensor& weight_scale) {
    const auto [reader, input] = bias_of(layer);
    if (reader == nullptr || weight_scale.dims().rank() > 1) return;
    Node& node = *reader;
    Value* bias = node.inputs[input];
    if (bias == nullptr || !bias->is_constant() || bias->dtype() != DataType::kFloat32 ||
        ir::Uses(graph_).only_reader(bias) != &node) {
      return;
    }
    const Tensor numbers = bias->initializer;
    if (numbers.dims().rank() != 1) return;
    std::vector<double> scale = weight_scale.to_doubles();
    if (scale.size() > 1 && static_cast<std::int64_t>(scale.size()) != numbers.num_elements()) {
      return;
    }
    const double factor = input_scale.initializer.to_doubles().front();
    for (double& one : scale) one = static_cast<float>(one * factor);
    const std::vector<double> from = numbers.to_doubles();
    std::vector<std::int32_t> codes(from.size());
    for (std::size_t i = 0; i < from.size(); ++i) {
      const double code = std::nearbyint(from[i] / scale[scale.size() == 1 ? 0 : i]);
      if (!(std::fabs(code) <= kLargestBias)) return;
      codes[i] = static_cast<std::int32_t>(code);
    }
    Value* step =
        add(*bias, "_scale", Tensor::from(scale, weight_scale.dims()).cast(DataType::kFloat32));
    std::vector<ir::Attribute> attributes;
    if (weight_scale.dims().rank() == 1) attributes.push_back({"axis", std::int64_t{0}});
    Value* result = write("DequantizeLinear", *bias, {bias, step}, std::move(attributes),
                          DataType::kFloat32, &node);
    node.inputs[input] = result;
    replaced.push_back({.name = bias->name, .tensor = numbers});
    bias->initializer = Tensor::from(codes, numbers.dims());
    bias->type = ir::Type::tensor(DataType::kInt32, numbers.dims());
  }

  struct Input {
    Value* result = nullptr;
    Value* scale = nullptr;
  };
  ir::Graph& graph_;
  const Ranges& ranges_;
  const QuantizationOptions& options_;
  std::unordered_map<const Value*, Tensor> scales_;
  std::unordered_map<const Value*, Input> inputs_;
};

}  // namespace

void settle_constants(ir::Model& file) {
  ir::Graph& graph = *file.graph;
  std::vector<Node*> kept;
  std::unordered_map<const Value*, Value*> map;
  for (Node* node : graph.nodes) {
    const ir::AttributeValue* given =
        is_op(*node, {"Constant"}) ? node->find_attribute("value") : nullptr;
    const Tensor* tensor = given == nullptr ? nullptr : std::get_if<Tensor>(given);
    if (tensor == nullptr || !is_floating(tensor->dtype())) {
      kept.push_back(node);
      continue;
    }
    Value* result = node->output(0);
    result->producer = nullptr;
    result->initializer = *tensor;
    result->type = ir::Type::tensor(tensor->dtype(), tensor->dims());
    graph.initializers.push_back(result);
  }
  graph.nodes = std::move(kept);
  if (file.ir_version >= 4) return;
  std::erase_if(graph.inputs, [](Value* input) {
    if (!input->is_initializer()) return false;
    input->is_input = false;
    return true;
  });
}

void fold_norms(ir::Graph& graph) {
  std::unordered_map<const Node*, std::pair<std::string, std::string>> names;
  for (const Node* node : graph.nodes) {
    if (!is_op(*node, {"Conv", "Gemm"})) continue;
    const Value* bias = node->input(2);
    names[node] = {node->input(1)->name, bias == nullptr ? "" : bias->name};
  }
  if (!passes::fold_batch_norms(graph)) return;
  const ir::Uses uses(graph);
  std::erase_if(graph.initializers,
                [&](const Value* value) { return !value->is_input && uses.count(value) == 0; });
  const auto is_there = [&](const std::string& name) {
    const Value* value = graph.find(name);
    return std::ranges::find(graph.initializers, value) != graph.initializers.end();
  };
  for (const Node* node : graph.nodes) {
    const auto old = names.find(node);
    if (old == names.end()) continue;
    const auto restore = [&](Value* value, const std::string& name) {
      if (value == nullptr || name.empty() || value->name == name || is_there(name)) return;
      if (Value* gone = graph.find(name)) graph.rename(gone, graph.names().unique(name + "_old"));
      graph.rename(value, name);
    };
    restore(node->input(1), old->second.first);
    restore(node->input(2), old->second.second);
  }
}

std::int64_t opset_for(const QuantizationOptions& options) {
  const bool is_new = options.weights == DataType::kInt4 || options.groups == ScaleGroups::kBlock;
  return is_new ? 21 : 13;
}

std::vector<QuantizableLayer> quantizable_layers(ir::Model& file, const ir::Model& working,
                                                 const QuantizationOptions& options) {
  std::vector<QuantizableLayer> found;
  for (Node* node : file.graph->nodes) {
    if (auto layer = layer_of(*node)) found.push_back(*layer);
  }
  if (options.skip_first && !found.empty()) found.erase(found.begin());
  if (options.skip_last && !found.empty()) found.pop_back();
  std::vector<WeightNames> names;
  for (const QuantizableLayer& layer : found) names.push_back(names_of(layer, working));
  constexpr std::string_view kWhat = "layer that can be quantized";
  const auto wanted = match_patterns(options.layers, names, kWhat);
  const auto excluded = match_patterns(options.exclude, names, kWhat);
  std::vector<QuantizableLayer> chosen;
  for (std::size_t i = 0; i < found.size(); ++i) {
    if ((options.layers.empty() || wanted[i]) && !excluded[i]) chosen.push_back(found[i]);
  }
  if (chosen.empty() && !has_quantized_weights(*file.graph)) {
    const auto packed = std::ranges::find(file.graph->nodes, "MatMulNBits", &Node::op_type);
    if (packed != file.graph->nodes.end()) {
      throw ModelError({.what = "the layers of the model are packed already, as MatMulNBits, which "
                                "quantize= leaves as they are",
                        .where = {.node = (*packed)->name, .op_type = "MatMulNBits"},
                        .hint = "Train adapters over them with lora=, or take the packed weights "
                                "apart first: dequantize_weights(model)."});
    }
    throw ModelError({.what = "the model has no layer to quantize",
                      .detail = "Quantized are Conv, ConvTranspose, Gemm and MatMul of the main "
                                "graph that read a float32 or float64 initializer.",
                      .hint = "Name fewer layers in exclude=, or train without quantize=."});
  }
  return chosen;
}

NamedTensors insert_quantization(ir::Model& file, const std::vector<QuantizableLayer>& layers,
                                 const Ranges& ranges, const QuantizationOptions& options) {
  Writer writer(*file.graph, ranges, options);
  for (const QuantizableLayer& layer : layers) writer.quantize(layer);
  constexpr std::int64_t kInt4IrVersion = 10;
  if (options.weights == DataType::kInt4) {
    file.ir_version = std::max(file.ir_version, kInt4IrVersion);
  }
  if (options.learn_ranges) {
    std::vector<LearnedScale> learned = read_learned_scales(file);
    learned.insert(learned.end(), writer.learned.begin(), writer.learned.end());
    write_learned_scales(file, learned);
  }
  return std::move(writer.replaced);
}

void learn_scales(ir::Model& file) {
  std::vector<LearnedScale> learned;
  std::unordered_set<const Value*> seen;
  const auto learn = [&](const Value* codes, const Value* scale, const Value* zero) {
    if (codes == nullptr || scale == nullptr || !scale->is_constant() ||
        codes->dtype() == DataType::kInt32 || !seen.insert(scale).second) {
      return;
    }
    std::int64_t elements = 1;
    if (codes->is_constant()) {
      elements = codes->initializer.num_elements() /
                 std::max<std::int64_t>(1, scale->initializer.num_elements());
    } else if (codes->type.has_rank()) {
      for (std::size_t i = 1; i < codes->type.rank(); ++i) {
        const ir::Dim& dim = codes->type.shape->at(i);
        if (dim.is_static()) elements *= dim.value();
      }
    }
    learned.push_back({.name = scale->name,
                       .elements = std::max<std::int64_t>(1, elements),
                       .largest = largest_of(zero == nullptr ? codes->dtype() : zero->dtype())});
  };
  for (const Node* node : file.graph->nodes) {
    if (is_op(*node, {"DequantizeLinear"})) {
      learn(node->input(0), node->input(1), node->input(2));
    } else if (is_op(*node, {"QLinearConv", "QLinearMatMul"}) || node->op_type == "QGemm") {
      learn(node->input(0), node->input(1), node->input(2));
      learn(node->input(3), node->input(4), node->input(5));
    }
  }
  write_learned_scales(file, learned);
}

}  // namespace onnxgrad::train
