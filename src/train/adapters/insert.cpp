#include "train/adapters/insert.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/check.h"
#include "ir/pattern.h"
#include "ir/uses.h"
#include "onnxgrad/option_error.h"
#include "train/adapters/weights_of_kind.h"
#include "train/tools/patterns.h"
#include "train/weights/initialize.h"
#include "train/weights/layer_levels.h"
#include "train/weights/weights.h"

namespace onnxgrad::train {
namespace {

using ir::Graph;
using ir::is_op;
using ir::Node;
using ir::Value;

void check_options(const AdapterOptions& options) {
  const auto refuse = [](std::string what, std::string hint) {
    throw OptionError({.what = std::move(what), .hint = Hint(std::move(hint))});
  };
  if (options.rank < 1 || options.rank > 65536) {
    refuse(fmt::format("rank={}: the rank of an adapter is 1 to 65536", options.rank),
           "Ranks of 4 to 64 are usual.");
  }
  if (!std::isfinite(options.alpha) || options.alpha < 0) {
    refuse(fmt::format("alpha={}: it must be positive", options.alpha),
           "Give one or two times the rank.");
  }
  if (!(options.dropout >= 0 && options.dropout < 1)) {
    refuse(fmt::format("dropout={}: it must be in [0, 1)", options.dropout),
           "0.05 or 0.1 are usual.");
  }
  if (options.name.empty() || options.name.find_first_of("./\\") != std::string::npos) {
    refuse(fmt::format("name='{}': the name of an adapter has no dots and slashes",
                       base::printable(options.name)),
           "Give letters, digits, '-' and '_'.");
  }
}

double scale_of(const AdapterOptions& options) {
  const auto rank = static_cast<double>(options.rank);
  return low_rank_scale(options.alpha == 0 ? rank : options.alpha, rank, options.rank_stabilized);
}

// Adds the nodes of one adapter.
class Inserter {
 public:
  Inserter(ir::Model& file, const AdapterOptions& options, double scale, const LayerForms& forms)
      : file_(file),
        root_(*file.graph),
        options_(options),
        scale_(scale),
        forms_(forms),
        uses_(root_) {}

  RecordedAdapter insert(const std::vector<AdaptableLayer>& layers) {
    RecordedAdapter adapter{.options = options_, .scale = scale_, .layers = {}};
    for (const AdaptableLayer& layer : layers) plan(layer);
    ir::replace_uses(root_, replaced_);
    std::uint32_t stream = 0;
    for (const AdaptableLayer& layer : layers) adapter.layers.push_back(write(layer, stream++));
    return adapter;
  }

 private:
  struct Plan {
    Value* plain = nullptr;    // what is adapted
    Value* adapted = nullptr;  // takes over its name and its readers; nullptr: inputs are scaled
    std::string bias = {};     // (IA)^3: added before `plain`
  };

  LayerForm form_of(const AdaptableLayer& layer) const {
    const auto known = forms_.find(layer.module);
    if (known != forms_.end()) return known->second;
    return {.rank = options_.rank, .scale = scale_, .scales_inputs = layer.role == "mlp_down"};
  }
  bool scales_inputs(const AdaptableLayer& layer) const {
    return options_.kind == AdapterKind::kIa3 && form_of(layer).scales_inputs;
  }

  // Makes the values that take over the names of the layers' results.
  void plan(const AdaptableLayer& layer) {
    for (Node* node : layer.nodes) {
      Plan& plan = plans_[node];
      plan.plain = node->output(0);
      if (scales_inputs(layer)) continue;
      if (options_.kind == AdapterKind::kIa3) find_bias(*node, plan);
      Graph& graph = *plan.plain->graph;
      const std::string name = plan.plain->name;
      graph.rename(plan.plain, graph.names().unique(name + "_base"));
      plan.adapted = graph.add_value(name, plan.plain->type);
      plan.adapted->has_value_info = plan.plain->has_value_info;
      std::swap(plan.adapted->doc_string, plan.plain->doc_string);
      std::swap(plan.adapted->metadata, plan.plain->metadata);
      replaced_.emplace(plan.plain, plan.adapted);
    }
  }

  // A bias that an Add adds to the result of a MatMul belongs to the layer.
  void find_bias(const Node& node, Plan& plan) const {
    if (is_op(node, {"Gemm", "Conv"})) {
      if (node.input(2) != nullptr) plan.bias = node.input(2)->name;
      return;
    }
    const Node* add = uses_.only_reader(node.output(0));
    if (add == nullptr || !is_op(*add, {"Add"})) return;
    const Value* other = add->input(0) == node.output(0) ? add->input(1) : add->input(0);
    if (!other->is_constant() || other->initializer.dims().rank() != 1) return;
    plan.plain = add->output(0);
    plan.bias = other->name;
  }

  RecordedLayer write(const AdaptableLayer& layer, std::uint32_t stream) {
    RecordedLayer record{.module = layer.module,
                         .weight = layer.weight->name,
                         .role = layer.role,
                         .is_transposed = layer.is_transposed};
    if (options_.kind == AdapterKind::kIa3) {
      write_factors(layer, record);
    } else {
      write_matrices(layer, record, stream);
    }
    return record;
  }

  void write_factors(const AdaptableLayer& layer, RecordedLayer& record) {
    record.scales_inputs = scales_inputs(layer);
    std::vector<std::int64_t> sizes{record.scales_inputs ? layer.inputs : layer.outputs};
    if (layer.kind == LayerKind::kConvolution) sizes = of_channels(layer, sizes.front());
    Tensor ones = Tensor::empty(DataType::kFloat32, Dims(sizes));
    std::ranges::fill(ones.mutable_data<float>(), 1.0F);
    Value* const factors = tensor(layer, "ia3_l", ones.cast(layer.dtype));
    record.factors = factors->name;
    for (Node* node : layer.nodes) {
      const Plan& plan = plans_.at(node);
      if (record.scales_inputs) {
        const std::size_t input = layer.kind == LayerKind::kEmbedding ? 1 : 0;
        Value* const x = node->inputs[input];
        Value* const scaled =
            node->graph->add_value(root_.names().unique(layer.module + ".ia3_inputs"), x->type);
        add_before(*node, "Mul", {x, factors}, scaled);
        node->inputs[input] = scaled;
        record.sites.push_back({.plain = x->name, .adapted = scaled->name});
      } else {
        add_after(*plan.plain->producer, "Mul", {plan.plain, factors}, plan.adapted);
        record.sites.push_back({.plain = plan.plain->name,
                                .adapted = plan.adapted->name,
                                .is_renamed = true,
                                .bias = plan.bias});
      }
    }
  }

  void write_matrices(const AdaptableLayer& layer, RecordedLayer& record, std::uint32_t stream) {
    const bool is_embedding = layer.kind == LayerKind::kEmbedding;
    const Dims& dims = numbers_of(layer.weight)->dims();
    const LayerForm form = form_of(layer);
    if (form.rank != options_.rank) record.rank = form.rank;
    if (form.scale != scale_) record.scale = form.scale;
    Dims a{layer.inputs, form.rank};
    Dims b{form.rank, layer.outputs};
    if (layer.kind == LayerKind::kConvolution) {
      std::vector<std::int64_t> sizes(dims.begin(), dims.end());
      sizes[0] = form.rank;
      a = Dims(sizes);
      std::ranges::fill(sizes, 1);
      sizes[0] = layer.outputs;
      sizes[1] = form.rank;
      b = Dims(sizes);
    }
    // A table is looked up by one-hot rows: PEFT draws its B, and A is 0.
    const Tensor zeros = Tensor::zeros(layer.dtype, is_embedding ? a : b);
    const Dims& drawn_dims = is_embedding ? b : a;
    const Tensor drawn =
        draw(distribution_of(drawn_dims, layer), layer.dtype, drawn_dims, options_.seed, stream);
    Value* const first =
        tensor(layer, is_embedding ? "lora_embedding_A" : "lora_A", is_embedding ? zeros : drawn);
    Value* const second =
        tensor(layer, is_embedding ? "lora_embedding_B" : "lora_B", is_embedding ? drawn : zeros);
    record.a = first->name;
    record.b = second->name;
    Value* factor = nullptr;
    if (options_.kind == AdapterKind::kDora) factor = write_norm(layer, record, first, second);
    for (Node* node : layer.nodes) {
      const Plan& plan = plans_.at(node);
      AdapterSite site{
          .plain = plan.plain->name, .adapted = plan.adapted->name, .is_renamed = true};
      Value* bias = nullptr;
      if (factor != nullptr && is_op(*node, {"Gemm", "Conv"}) && node->input(2) != nullptr) {
        constexpr std::int64_t kBiasIsOptional = 11;
        if (is_op(*node, {"Gemm"}) && file_.opset() < kBiasIsOptional) {
          throw ModelError(
              {.what = fmt::format("'{}' is a Gemm of opset {}; 'dora' adapts those of "
                                   "opset 11 and later",
                                   layer.module, file_.opset()),
               .where = {.value = layer.module},
               .hint = "Convert the model to a newer opset, or use LoRA."});
        }
        bias = node->inputs[2];
        site.bias = bias->name;
        node->inputs.resize(2);
      }
      place_ = node;
      Value* x = node->inputs[layer.kind == LayerKind::kEmbedding ? 1 : 0];
      const bool has_dropout = options_.dropout > 0 && layer.kind != LayerKind::kEmbedding;
      if (has_dropout) x = write_dropout(layer, x);
      Value* const change = write_change(layer, *node, x, first, second);
      if (factor == nullptr) {
        finish("Add", {plan.plain, change}, plan.adapted);
      } else {
        write_magnitude(layer, *node, {has_dropout ? x : nullptr, change, factor, bias}, plan);
      }
      record.sites.push_back(std::move(site));
    }
  }

  struct DoraOperands {
    Value* dropped = nullptr;  // x after the dropout, if there is one
    Value* change = nullptr;
    Value* factor = nullptr;
    Value* bias = nullptr;
  };

  // factor * (x W + change) + bias. With a dropout d the factor changes x W as it is for d(x), as
  // in PEFT: x W + (factor - 1) * d(x) W + factor * change.
  void write_magnitude(const AdaptableLayer& layer, const Node& node, const DoraOperands& given,
                       const Plan& plan) {
    Value* plain = plan.plain;
    if (given.dropped != nullptr) {
      std::vector<Value*> inputs = node.inputs;
      inputs[0] = given.dropped;
      plain = step(node.op_type, std::move(inputs), layer, node.attributes);
    }
    Value* const sum = step("Add", {plain, given.change}, layer);
    Value* bias = given.bias;
    if (bias != nullptr && layer.kind == LayerKind::kConvolution) {
      bias = step("Reshape", {bias, shape(of_channels(layer, layer.outputs))}, layer);
    }
    Value* const rest =
        given.dropped == nullptr ? nullptr : step("Sub", {plan.plain, plain}, layer);
    if (rest == nullptr && bias == nullptr) {
      finish("Mul", {sum, given.factor}, plan.adapted);
      return;
    }
    Value* result = step("Mul", {sum, given.factor}, layer);
    if (rest != nullptr && bias != nullptr) result = step("Add", {result, rest}, layer);
    finish("Add", {result, bias != nullptr ? bias : rest}, plan.adapted);
  }

  // [size, 1, 1] of a convolution over images.
  static std::vector<std::int64_t> of_channels(const AdaptableLayer& layer, std::int64_t size) {
    std::vector<std::int64_t> sizes(numbers_of(layer.weight)->dims().rank() - 1, 1);
    sizes[0] = size;
    return sizes;
  }

  // scale * x A B, or its like.
  Value* write_change(const AdaptableLayer& layer, const Node& node, Value* x, Value* a, Value* b) {
    switch (layer.kind) {
      case LayerKind::kLinear:
        return step("MatMul", {scaled(layer, step("MatMul", {x, a}, layer)), b}, layer);
      case LayerKind::kConvolution: {
        std::vector<ir::Attribute> attributes = node.attributes;
        Value* const low = step("Conv", {x, a}, layer, std::move(attributes));
        return step("Conv", {scaled(layer, low), b}, layer);
      }
      case LayerKind::kEmbedding:
        return step("MatMul", {scaled(layer, step("Gather", {a, x}, layer)), b}, layer);
    }
    return nullptr;
  }

  Value* write_dropout(const AdaptableLayer& layer, Value* x) {
    constexpr std::int64_t kRatioIsInput = 12;
    const auto ratio = static_cast<float>(options_.dropout);
    if (file_.opset() >= kRatioIsInput) {
      return step("Dropout", {x, constant(Tensor::scalar(ratio), "dropout_ratio")}, layer);
    }
    return step("Dropout", {x}, layer, {{"ratio", ratio}});
  }

  Value* scaled(const AdaptableLayer& layer, Value* value) {
    const double scale = form_of(layer).scale;
    if (scale == 1) return value;
    return step("Mul", {value, constant(Tensor::scalar_of(layer.dtype, scale), "scale")}, layer);
  }

  // scale * A B in the form of the weight as `node` reads it.
  Value* write_weight_change(const AdaptableLayer& layer, bool is_read_transposed, Value* a,
                             Value* b) {
    if (layer.kind != LayerKind::kConvolution) {
      Value* const change = scaled(layer, step("MatMul", {a, b}, layer));
      if (!is_read_transposed) return change;
      return step("Transpose", {change}, layer, {{"perm", std::vector<std::int64_t>{1, 0}}});
    }
    const Dims& dims = numbers_of(layer.weight)->dims();
    const std::int64_t rank = form_of(layer).rank;
    Value* const low = step("Reshape", {a, shape({rank, dims.product(1, dims.rank())})}, layer);
    Value* const high = step("Reshape", {b, shape({layer.outputs, rank})}, layer);
    Value* const product = scaled(layer, step("MatMul", {high, low}, layer));
    return step("Reshape", {product, shape({dims.begin(), dims.end()})}, layer);
  }

  // m / |W + scale * A B|, [out]; in the main graph, before everything.
  Value* write_norm(const AdaptableLayer& layer, RecordedLayer& record, Value* a, Value* b) {
    constexpr std::int64_t kAxesAreInput = 18;
    place_ = nullptr;
    // As the node reads it: a Gemm may transpose [out, in] itself.
    const Node& node = *layer.nodes.front();
    if (layer.packed != nullptr) return write_packed_norm(layer, record, a, b);
    if (node.graph != &root_) {
      throw ModelError({.what = fmt::format("'{}' is in a subgraph; 'dora' adapts layers of the "
                                            "main graph",
                                            layer.module),
                        .where = {.value = layer.module},
                        .hint = "Use LoRA, or exclude it."});
    }
    Value* const matrix = node.inputs[layer.kind == LayerKind::kEmbedding ? 0 : 1];
    const bool is_read_transposed = is_op(node, {"Gemm"}) && node.int_attribute("transB", 0) != 0;
    const bool is_convolution = layer.kind == LayerKind::kConvolution;
    place_ = matrix->producer;
    Value* const change = write_weight_change(layer, is_read_transposed, a, b);
    Value* const sum = step("Add", {matrix, change}, layer);
    std::vector<std::int64_t> axes{is_read_transposed ? 1 : 0};
    if (is_convolution) {
      axes.resize(numbers_of(layer.weight)->dims().rank() - 1);
      std::iota(axes.begin(), axes.end(), std::int64_t{1});
    }
    const ir::Attribute keepdims{.name = "keepdims", .value = std::int64_t{0}};
    Value* norm = nullptr;
    if (file_.opset() >= kAxesAreInput) {
      Value* const list = shape(axes, "axes");
      norm = step("ReduceL2", {sum, list}, layer, {keepdims});
    } else {
      norm = step("ReduceL2", {sum}, layer, {{"axes", axes}, keepdims});
    }
    record.norm = norm->name;
    Value* const magnitude = tensor(layer, "lora_magnitude_vector", column_norms(layer));
    record.magnitude = magnitude->name;
    // A column of zeros stays one.
    constexpr double kLeast = 1e-12;
    const double least = is_f16(layer.dtype) ? 1e-6 : kLeast;
    Value* const divisor =
        step("Max", {norm, constant(Tensor::scalar_of(layer.dtype, least), "least_norm")}, layer);
    Value* const factor = step("Div", {magnitude, divisor}, layer);
    if (!is_convolution) return factor;
    return step("Reshape", {factor, shape(of_channels(layer, layer.outputs))}, layer);
  }

  // With W packed: |W + s A B|^2 = |W|^2 + 2 s sum_r (A' W) B + s^2 sum_r (A' A B) B, by columns.
  // The node itself computes A' W, and |W|^2 is a constant.
  Value* write_packed_norm(const AdaptableLayer& layer, RecordedLayer& record, Value* a, Value* b) {
    const Node& node = *layer.nodes.front();
    if (node.graph != &root_ || (is_matmul_n_bits(node) && node.input(5) != nullptr)) {
      throw ModelError({.what = fmt::format("'{}' is in a subgraph, or MatMulNBits with a bias; "
                                            "'dora' adapts neither",
                                            layer.module),
                        .where = {.value = layer.module},
                        .hint = "Use LoRA, or exclude it."});
    }
    place_ = node.inputs[1]->producer;
    Value* const turned =
        step("Transpose", {a}, layer, {{"perm", std::vector<std::int64_t>{1, 0}}});
    std::vector<Value*> inputs = node.inputs;
    inputs[0] = turned;
    if (is_op(node, {"Gemm"})) inputs.resize(2);
    Value* const product = step(node.op_type, std::move(inputs), layer, node.attributes);
    const_cast<Node*>(product->producer)->domain = node.domain;
    Value* const cross = sum_rows(layer, step("Mul", {product, b}, layer));
    Value* const low = step("MatMul", {step("MatMul", {turned, a}, layer), b}, layer);
    Value* const square = sum_rows(layer, step("Mul", {low, b}, layer));
    const double scale = form_of(layer).scale;
    const auto times = [&](Value* value, double factor, std::string_view hint) {
      return step("Mul", {value, constant(Tensor::scalar_of(layer.dtype, factor), hint)}, layer);
    };
    const std::vector<double> squares = layer.packed->squares();
    Value* const own = root_.add_initializer(
        layer.module + ".squares", Tensor::from(squares, {layer.outputs}).cast(layer.dtype));
    Value* const change = step(
        "Add",
        {times(cross, 2 * scale, "double_scale"), times(square, scale * scale, "square_scale")},
        layer);
    Value* const norm = step("Sqrt", {step("Add", {own, change}, layer)}, layer);
    record.norm = norm->name;
    Tensor norms = Tensor::from(squares, {layer.outputs});
    for (double& number : norms.mutable_data<double>()) number = std::sqrt(number);
    Value* const magnitude = tensor(layer, "lora_magnitude_vector", norms.cast(layer.dtype));
    record.magnitude = magnitude->name;
    return step("Div", {magnitude, norm}, layer);
  }

  Value* sum_rows(const AdaptableLayer& layer, Value* value) {
    constexpr std::int64_t kAxesAreInput = 13;
    const ir::Attribute keepdims{.name = "keepdims", .value = std::int64_t{0}};
    const std::vector<std::int64_t> axes{0};
    if (file_.opset() < kAxesAreInput) {
      return step("ReduceSum", {value}, layer, {{"axes", axes}, keepdims});
    }
    return step("ReduceSum", {value, constant(Tensor::from(axes, Dims{1}), "axes")}, layer,
                {keepdims});
  }

  Tensor column_norms(const AdaptableLayer& layer) const {
    if (layer.is_computed) {
      throw ModelError({.what = fmt::format("the matrix of '{}' is converted or dequantized where "
                                            "it is read; 'dora' adapts plain weights",
                                            layer.module),
                        .where = {.value = layer.module},
                        .hint = "Use LoRA, or exclude it."});
    }
    const std::vector<double> numbers = numbers_of(layer.weight)->to_doubles();
    const auto outputs = static_cast<std::size_t>(layer.outputs);
    const std::size_t inputs = numbers.size() / outputs;
    const bool is_by_rows = layer.is_transposed || layer.kind == LayerKind::kConvolution;
    Tensor norms = Tensor::empty(DataType::kFloat64, Dims{layer.outputs});
    const auto out = norms.mutable_data<double>();
    std::ranges::fill(out, 0.0);
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      out[is_by_rows ? i / inputs : i % outputs] += numbers[i] * numbers[i];
    }
    for (double& norm : out) norm = std::sqrt(norm);
    return norms.cast(layer.dtype);
  }

  // Uniform in ±1/sqrt(inputs), as torch.nn.Linear; normal for a table, as torch.nn.Embedding.
  Distribution distribution_of(const Dims& dims, const AdaptableLayer& layer) const {
    if (layer.kind == LayerKind::kEmbedding) return {Distribution::Kind::kNormal, 1};
    const auto elements = static_cast<double>(dims.num_elements());
    const double inputs = elements / static_cast<double>(form_of(layer).rank);
    return {Distribution::Kind::kUniform, 1 / std::sqrt(std::max(1.0, inputs))};
  }

  // A weight of the adapter: "<module>.lora_A.default.weight".
  Value* tensor(const AdaptableLayer& layer, std::string_view part, Tensor numbers) {
    return root_.add_initializer(fmt::format("{}.{}.{}.weight", layer.module, part, options_.name),
                                 std::move(numbers));
  }

  Value* shape(const std::vector<std::int64_t>& sizes, std::string_view hint = "shape") {
    return constant(Tensor::from(sizes, Dims{static_cast<std::int64_t>(sizes.size())}), hint);
  }

  Value* constant(const Tensor& numbers, std::string_view hint) {
    const auto key = fmt::format("{} {} {}", hint, static_cast<int>(numbers.dtype()),
                                 fmt::join(numbers.to_doubles(), " "));
    Value*& value = constants_[key];
    if (value == nullptr) {
      value = root_.add_initializer(fmt::format("{}_{}", options_.name, hint), numbers);
    }
    return value;
  }

  // Nodes are written one after another behind `place_`; nullptr: at the start of the graph.
  Value* step(std::string_view op_type, std::vector<Value*> inputs, const AdaptableLayer& layer,
              std::vector<ir::Attribute> attributes = {}) {
    Graph& graph = place_ == nullptr ? root_ : *place_->graph;
    Value* const output = graph.add_value(
        root_.names().unique(fmt::format("{}.{}.{}", layer.module, options_.name, op_type)));
    append(graph, op_type, std::move(inputs), output, std::move(attributes));
    return output;
  }
  void finish(std::string_view op_type, std::vector<Value*> inputs, Value* output) {
    append(*place_->graph, op_type, std::move(inputs), output, {});
  }
  void append(Graph& graph, std::string_view op_type, std::vector<Value*> inputs, Value* output,
              std::vector<ir::Attribute> attributes) {
    Node* const node =
        graph.make_node(op_type, std::move(inputs), {output}, output->name, std::move(attributes));
    const auto at = std::ranges::find(graph.nodes, place_);
    graph.nodes.insert(at == graph.nodes.end() ? graph.nodes.begin() : at + 1, node);
    place_ = node;
  }
  void add_after(Node& place, std::string_view op_type, std::vector<Value*> inputs, Value* output) {
    place_ = &place;
    append(*place.graph, op_type, std::move(inputs), output, {});
  }
  void add_before(Node& place, std::string_view op_type, std::vector<Value*> inputs,
                  Value* output) {
    Graph& graph = *place.graph;
    Node* const node = graph.make_node(op_type, std::move(inputs), {output}, output->name, {});
    graph.nodes.insert(std::ranges::find(graph.nodes, &place), node);
  }

  ir::Model& file_;
  Graph& root_;
  const AdapterOptions& options_;
  double scale_;
  const LayerForms& forms_;
  ir::Uses uses_;
  std::unordered_map<const Node*, Plan> plans_;
  std::unordered_map<const Value*, Value*> replaced_;
  std::unordered_map<std::string, Value*> constants_;
  const Node* place_ = nullptr;
};

// DoRA's norm is that of the weight alone, so that it can share a layer with no other adapter.
void refuse_second(const RecordedAdapter& other, const std::vector<AdaptableLayer>& layers,
                   const AdapterOptions& options) {
  const bool is_any_dora =
      other.options.kind == AdapterKind::kDora || options.kind == AdapterKind::kDora;
  if (!is_any_dora) return;
  for (const AdaptableLayer& layer : layers) {
    const auto same = std::ranges::find(other.layers, layer.weight->name, &RecordedLayer::weight);
    if (same == other.layers.end()) continue;
    throw ModelError(
        {.what = fmt::format("'{}' has the adapter '{}' already; 'dora' shares a layer "
                             "with no other adapter",
                             layer.module, other.options.name),
         .where = {.value = layer.module},
         .hint = "Merge the first adapter, or name other targets."});
  }
}

}  // namespace

void insert_adapter(ir::Model& file, const ir::Model& working, const opdef::OpRegistry& registry,
                    const AdapterOptions& options, const LayerForms& forms) {
  check_options(options);
  constexpr std::int64_t kConstantInitializers = 4;
  if (file.ir_version < kConstantInitializers) {  // where every initializer is listed as an input
    ir::close_defaults(*file.graph);
    file.ir_version = kConstantInitializers;
  }
  std::vector<RecordedAdapter> record = read_adapters(file);
  for (const RecordedAdapter& other : record) {
    if (other.options.name != options.name) continue;
    throw ModelError({.what = fmt::format("the model has an adapter '{}' already", options.name),
                      .where = {.value = options.name},
                      .hint = "Give another name, or merge the adapters first."});
  }
  const std::vector<Weight> weights = find_weights(working, registry);
  AdapterOptions kept = options;
  kept.full.clear();
  if (!options.full.empty()) {
    const auto is_parameter = [](const Weight& weight) {
      return weight.trainable || weight.is_under_adapter;
    };
    const auto matched =
        match_weights(expand_layer_groups(options.full, weights), weights, "weight", is_parameter);
    for (std::size_t i = 0; i < weights.size(); ++i) {
      if (matched[i]) kept.full.push_back(weights[i].value->name);
    }
  }
  kept.targets.clear();
  kept.exclude.clear();
  if (options.kind == AdapterKind::kBias || options.kind == AdapterKind::kNorm) {
    for (std::string& name : weights_of_kind(weights, options.kind)) {
      if (std::ranges::find(kept.full, name) == kept.full.end()) {
        kept.full.push_back(std::move(name));
      }
    }
    record.push_back({.options = std::move(kept), .layers = {}});
  } else {
    std::vector<AdaptableLayer> layers = find_layers(file, working);
    const std::vector<std::string> own = trained_names(record);
    std::erase_if(layers, [&own](const AdaptableLayer& layer) {
      return std::ranges::find(own, layer.weight->name) != own.end();
    });
    layers = forms.empty() ? choose_layers(std::move(layers), options)
                           : named_layers(std::move(layers), forms);
    refuse_two_readings(layers);
    for (const RecordedAdapter& other : record) refuse_second(other, layers, options);
    record.push_back(Inserter(file, kept, scale_of(options), forms).insert(layers));
    ir::sort_topologically(*file.graph);
  }
  write_adapters(file, record);
}

}  // namespace onnxgrad::train
