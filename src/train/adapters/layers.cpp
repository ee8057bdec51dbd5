#include "train/adapters/layers.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string_view>
#include <unordered_set>

#include "ir/pattern.h"
#include "train/adapters/layer_roles.h"
#include "train/tools/patterns.h"
#include "train/weights/program_names.h"

namespace onnxgrad::train {
namespace {

using ir::is_op;
using ir::Node;
using ir::Value;

// The name of a matrix before it was quantized, by onnxruntime or quantize_weights().
std::string name_of_float(std::string name) {
  for (const std::string_view end : {"_Q2", "_Q4", "_Q8", "_NF4", "_DQ", "_quantized"}) {
    if (name.size() > end.size() && name.ends_with(end)) name.resize(name.size() - end.size());
  }
  return name;
}

// A matrix that a layer reads: a weight, through nodes that convert or transpose it.
struct Operand {
  const Value* weight = nullptr;
  bool is_transposed = false;
  bool is_computed = false;
  DataType dtype = DataType::kUndefined;
  std::shared_ptr<const PackedMatrix> packed = {};
};

std::optional<Operand> operand_of(const Value* value) {
  Operand operand;
  while (value != nullptr) {
    if (const Tensor* numbers = numbers_of(value)) {
      operand.weight = value;
      if (operand.dtype == DataType::kUndefined) operand.dtype = numbers->dtype();
      if (!is_floating(operand.dtype)) return std::nullopt;
      return operand;
    }
    const Node* node = value->producer;
    if (node == nullptr) return std::nullopt;
    if (is_op(node, "Transpose")) {
      const auto perm = node->ints_attribute("perm");
      if (!perm.empty() && perm != std::vector<std::int64_t>{1, 0}) return std::nullopt;
      operand.is_transposed = !operand.is_transposed;
    } else if (is_op(node, "Cast")) {
      if (operand.dtype == DataType::kUndefined) {
        operand.dtype = static_cast<DataType>(node->int_attribute("to", 0));
      }
      operand.is_computed = true;
    } else if (is_op(node, "DequantizeLinear")) {
      const Tensor* scale = numbers_of(node->input(1));
      if (scale == nullptr) return std::nullopt;
      if (operand.dtype == DataType::kUndefined) operand.dtype = scale->dtype();
      operand.is_computed = true;
    } else if (!is_op(node, "Identity")) {
      return std::nullopt;
    }
    value = node->input(0);
  }
  return std::nullopt;
}

bool is_trivial_gemm(const Node& node) {
  return node.int_attribute("transA", 0) == 0 && node.float_attribute("alpha", 1) == 1.0F &&
         node.float_attribute("beta", 1) == 1.0F;
}

// The name of a layer: of its weight without what says that it is one.
std::string module_name(std::string name) {
  for (const std::string_view end : {".weight", "_weight", "/kernel", "/kernel:0", ".kernel"}) {
    if (name.size() > end.size() && name.ends_with(end)) {
      name.resize(name.size() - end.size());
      return name;
    }
  }
  return name;
}

class LayerFinder {
 public:
  explicit LayerFinder(const ir::Model& working) : working_(*working.graph) {}

  void read(const ir::Graph& graph) {
    for (Node* node : graph.nodes) {
      read_node(*node);
      for (const ir::Graph* body : node->subgraphs()) read(*body);
    }
  }
  std::vector<AdaptableLayer> take() { return std::move(layers_); }

 private:
  // A linear layer whose matrix stays packed.
  bool read_packed(Node& node) {
    const bool is_gemm = is_op(node, {"Gemm"});
    const bool is_known = is_gemm ? is_trivial_gemm(node) && !operand_of(node.input(0)) : true;
    const std::shared_ptr<const PackedMatrix> packed = is_known ? find_packed(node) : nullptr;
    if (packed == nullptr) return false;
    add(node,
        {.weight = packed->codes,
         .is_transposed = packed->is_transposed,
         .is_computed = true,
         .dtype = packed->dtype,
         .packed = packed},
        {.kind = LayerKind::kLinear,
         .inputs = packed->inputs(),
         .outputs = packed->outputs(),
         .is_transposed = packed->is_transposed});
    return true;
  }

  void read_node(Node& node) {
    if (read_packed(node)) return;
    const bool is_gemm = is_op(node, {"Gemm"});
    if (is_gemm || is_op(node, {"MatMul"})) {
      const auto operand = operand_of(node.input(1));
      if (!operand || operand_of(node.input(0)) || (is_gemm && !is_trivial_gemm(node))) return;
      const Dims& dims = numbers_of(operand->weight)->dims();
      if (dims.rank() != 2) return;
      const bool is_stored_transposed =
          operand->is_transposed != (is_gemm && node.int_attribute("transB", 0) != 0);
      add(node, *operand,
          {.kind = LayerKind::kLinear,
           .inputs = dims[is_stored_transposed ? 1 : 0],
           .outputs = dims[is_stored_transposed ? 0 : 1],
           .is_transposed = is_stored_transposed});
    } else if (is_op(node, {"Conv"})) {
      const auto operand = operand_of(node.input(1));
      if (!operand || operand->is_transposed || node.int_attribute("group", 1) != 1) return;
      const Dims& dims = numbers_of(operand->weight)->dims();
      if (dims.rank() < 3) return;
      add(node, *operand, {.kind = LayerKind::kConvolution, .inputs = dims[1], .outputs = dims[0]});
    } else if (is_op(node, {"Gather"}) && node.int_attribute("axis", 0) == 0) {
      const auto operand = operand_of(node.input(0));
      if (!operand || operand->is_transposed || numbers_of(node.input(1)) != nullptr) return;
      const Dims& dims = numbers_of(operand->weight)->dims();
      if (dims.rank() != 2) return;
      add(node, *operand, {.kind = LayerKind::kEmbedding, .inputs = dims[0], .outputs = dims[1]});
    }
  }

  void add(Node& node, const Operand& operand, AdaptableLayer layer) {
    layer.weight = operand.weight;
    layer.is_computed = operand.is_computed;
    layer.packed = operand.packed;
    layer.dtype = operand.dtype;
    const auto key = std::tuple(operand.weight, layer.kind, layer.is_transposed);
    if (const auto known = places_.find(key); known != places_.end()) {
      AdaptableLayer& same = layers_[known->second];
      same.nodes.push_back(&node);
      if (!node.name.empty()) same.names.push_back(node.name);
      return;
    }
    places_.emplace(key, layers_.size());
    layer.nodes = {&node};
    WeightNames names{.name = operand.weight->name};
    if (const Value* value = working_.find(operand.weight->name)) {
      names = names_for_patterns(*value);
    }
    const std::string& program_name = names.aliases.empty() ? names.name : names.aliases.front();
    layer.module =
        module_name(operand.packed == nullptr ? program_name : name_of_float(program_name));
    layer.names = std::move(names.aliases);
    layer.names.push_back(names.name);
    layer.names.push_back(layer.module);
    if (!node.name.empty()) layer.names.push_back(node.name);
    layers_.push_back(std::move(layer));
  }

  const ir::Graph& working_;
  std::vector<AdaptableLayer> layers_;
  std::map<std::tuple<const Value*, LayerKind, bool>, std::size_t> places_;
};

// `taken`: the module that had the name.
void set_module(AdaptableLayer& layer, const std::string& module, const std::string& taken) {
  layer.module = module;
  std::erase_if(layer.names, [&taken](const std::string& name) {
    return name == taken || name == taken + ".weight";
  });
  layer.names.push_back(module);
  layer.names.push_back(module + ".weight");
}

// A table of embeddings that is the matrix of scores too is one parameter of two modules, and the
// file may have the name of either at both. The nodes tell them apart.
void name_by_modules(std::vector<AdaptableLayer>& layers) {
  const auto path_of = [](const AdaptableLayer& layer) {
    return module_around(*layer.nodes.front()).path;
  };
  for (AdaptableLayer& table : layers) {
    if (table.kind != LayerKind::kEmbedding) continue;
    const std::string path = path_of(table);
    for (AdaptableLayer& matrix : layers) {
      if (matrix.kind != LayerKind::kLinear) continue;
      const std::string other = path_of(matrix);
      const auto is_one = [&](const std::string& module) {
        return module == path || module == other;
      };
      const bool are_named = !path.empty() && !other.empty() && path != other;
      const bool are_right = table.module == path && matrix.module == other;
      if (!are_named || are_right || !is_one(table.module) || !is_one(matrix.module)) continue;
      set_module(table, path, other);
      set_module(matrix, other, path);
    }
  }
}

}  // namespace

const Tensor* numbers_of(const ir::Value* value) {
  if (value == nullptr) return nullptr;
  if (value->is_constant()) return &value->initializer;
  if (!is_op(value->producer, "Constant")) return nullptr;
  const ir::AttributeValue* attribute = value->producer->find_attribute("value");
  return attribute == nullptr ? nullptr : std::get_if<Tensor>(attribute);
}

std::vector<AdaptableLayer> find_layers(const ir::Model& file, const ir::Model& working) {
  LayerFinder finder(working);
  finder.read(*file.graph);
  std::vector<AdaptableLayer> layers = finder.take();
  name_by_modules(layers);
  give_roles(*file.graph, layers);
  return layers;
}

}  // namespace onnxgrad::train
