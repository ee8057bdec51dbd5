#include "onnx/map_inputs.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <unordered_map>
#include <utility>

namespace onnxgrad::onnx_io {
namespace {

using ir::Graph;
using ir::Node;
using ir::Value;

constexpr std::string_view kMl = "ai.onnx.ml";
constexpr std::int64_t kMaxColumns = std::int64_t{1} << 24;

bool is_vectorizer(const Node& node) {
  return node.domain == kMl && node.op_type == "DictVectorizer";
}

bool is_cast_map(const Node& node) { return node.domain == kMl && node.op_type == "CastMap"; }

// The nodes that read `value`; nullopt if a subgraph does, or the model returns it.
std::optional<std::vector<Node*>> readers_of(const Graph& graph, const Value* value) {
  std::vector<Node*> readers;
  for (Node* node : graph.nodes) {
    if (std::ranges::find(node->inputs, value) != node->inputs.end()) readers.push_back(node);
    for (const Graph* body : node->subgraphs()) {
      const auto captured = ir::captured_values(*body);
      if (std::ranges::find(captured, value) != captured.end()) return std::nullopt;
    }
  }
  if (std::ranges::find(graph.outputs, value) != graph.outputs.end()) return std::nullopt;
  return readers;
}

// The keys of a DictVectorizer; undefined: not of the map's type.
Tensor vocabulary_of(const Node& node, DataType key_type) {
  const bool are_texts = key_type == DataType::kString;
  const ir::AttributeValue* given =
      node.find_attribute(are_texts ? "string_vocabulary" : "int64_vocabulary");
  if (given == nullptr) return {};
  if (const auto* texts = std::get_if<std::vector<std::string>>(given); texts && are_texts) {
    return Tensor::from_strings(*texts, {static_cast<std::int64_t>(texts->size())});
  }
  const auto* numbers = std::get_if<std::vector<std::int64_t>>(given);
  if (numbers == nullptr || are_texts) return {};
  return Tensor::from(*numbers, {static_cast<std::int64_t>(numbers->size())});
}

// Keys of both, those of `first` in their order.
template <class Key>
std::vector<Key> joined(std::span<const Key> first, std::span<const Key> second) {
  std::vector<Key> keys;
  std::unordered_map<Key, bool> seen;
  for (const auto list : {first, second}) {
    for (const Key& key : list) {
      if (seen.emplace(key, true).second) keys.push_back(key);
    }
  }
  return keys;
}

Tensor join_keys(const Tensor& first, const Tensor& second) {
  if (first.dtype() == DataType::kString) {
    auto keys = joined<std::string>(first.strings(), second.strings());
    const auto count = static_cast<std::int64_t>(keys.size());
    return Tensor::from_strings(std::move(keys), {count});
  }
  const auto keys = joined<std::int64_t>(first.data<std::int64_t>(), second.data<std::int64_t>());
  return Tensor::from(keys, {static_cast<std::int64_t>(keys.size())});
}

std::optional<MapInput> of_vectorizers(const Value& input, const std::vector<Node*>& readers) {
  MapInput map = {.name = input.name, .dtype = input.type.element->dtype};
  for (const Node* node : readers) {
    if (!is_vectorizer(*node)) return std::nullopt;
    const Tensor keys = vocabulary_of(*node, input.type.dtype);
    if (!keys.is_defined()) return std::nullopt;
    map.keys = map.keys.is_defined() ? join_keys(map.keys, keys) : join_keys(keys, keys);
  }
  return map;
}

// Texts that are numbers are fed as these; numbers as texts are written by the operator alone.
std::optional<MapInput> of_cast_map(const Value& input, const Node& node) {
  const std::string to = node.string_attribute("cast_to", "TO_FLOAT");
  const bool are_texts = input.type.element->dtype == DataType::kString;
  if (to == "TO_STRING" && !are_texts) return std::nullopt;
  MapInput map = {.name = input.name, .dtype = DataType::kFloat32};
  if (to == "TO_STRING") map.dtype = DataType::kString;
  if (to == "TO_INT64" && are_texts) map.dtype = DataType::kFloat64;
  if (node.string_attribute("map_form", "DENSE") != "SPARSE") return map;
  const std::int64_t count = node.int_attribute("max_map", 1);
  if (count < 0 || count > kMaxColumns) return std::nullopt;
  std::vector<std::int64_t> keys(static_cast<std::size_t>(count));
  std::iota(keys.begin(), keys.end(), std::int64_t{0});
  map.keys = Tensor::from(keys, {count});
  return map;
}

std::optional<MapInput> as_rows(const Graph& graph, const Value& input) {
  const bool is_map = input.type.kind == ir::Type::Kind::kMap && input.type.element != nullptr &&
                      input.type.element->is_tensor();
  if (!is_map) return std::nullopt;
  const auto readers = readers_of(graph, &input);
  if (!readers || readers->empty()) return std::nullopt;
  if (readers->size() == 1 && is_cast_map(*readers->front())) {
    return of_cast_map(input, *readers->front());
  }
  return of_vectorizers(input, *readers);
}

template <class Key>
std::vector<std::int64_t> places_in(std::span<const Key> keys, std::span<const Key> wanted) {
  std::unordered_map<Key, std::int64_t> places;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    places.emplace(keys[i], static_cast<std::int64_t>(i));
  }
  std::vector<std::int64_t> result;
  for (const Key& key : wanted) result.push_back(places.at(key));
  return result;
}

void become(Node& node, std::string op_type, std::vector<Value*> inputs,
            std::vector<ir::Attribute> attributes = {}) {
  node.op_type = std::move(op_type);
  node.domain.clear();
  node.inputs = std::move(inputs);
  node.attributes = std::move(attributes);
}

// The columns of `map` that a DictVectorizer returns.
void replace_vectorizer(Graph& graph, Node& node, Value* rows, const MapInput& map) {
  const Tensor keys = vocabulary_of(node, map.keys.dtype());
  const std::vector<std::int64_t> places =
      map.keys.dtype() == DataType::kString
          ? places_in<std::string>(map.keys.strings(), keys.strings())
          : places_in<std::int64_t>(map.keys.data<std::int64_t>(), keys.data<std::int64_t>());
  std::vector<std::int64_t> all(static_cast<std::size_t>(map.keys.num_elements()));
  std::iota(all.begin(), all.end(), std::int64_t{0});
  if (places == all) return become(node, "Identity", {rows});
  Value* columns = graph.add_initializer(
      rows->name + ".columns", Tensor::from(places, {static_cast<std::int64_t>(places.size())}));
  become(node, "Gather", {rows, columns}, {{.name = "axis", .value = std::int64_t{1}}});
}

void replace_cast_map(Node& node, Value* rows) {
  const bool is_number = node.string_attribute("cast_to", "TO_FLOAT") == "TO_INT64";
  if (!is_number) return become(node, "Identity", {rows});
  become(node, "Cast", {rows},
         {{.name = "to", .value = static_cast<std::int64_t>(DataType::kInt64)}});
}

// Whoever wrote the model knew of one row.
void forget_one_row(Value* value) {
  if (value == nullptr || !value->type.is_tensor() || !value->type.shape) return;
  ir::SymbolicShape& shape = *value->type.shape;
  if (!shape.empty() && shape.front() == ir::Dim(1)) shape.front() = ir::Dim();
}

}  // namespace

std::vector<MapInput> find_map_inputs(const Graph& graph) {
  std::vector<MapInput> maps;
  for (const Value* input : graph.inputs) {
    if (auto map = as_rows(graph, *input)) maps.push_back(std::move(*map));
  }
  return maps;
}

void replace_map_inputs(ir::Model& model) {
  Graph& graph = *model.graph;
  const std::vector<MapInput> maps = find_map_inputs(graph);
  for (const MapInput& map : maps) {
    Value* rows = graph.find(map.name);
    const auto readers = readers_of(graph, rows);
    const ir::Dim columns = map.keys.is_defined() ? ir::Dim(map.keys.num_elements()) : ir::Dim();
    rows->type = ir::Type::tensor(map.dtype, ir::SymbolicShape{ir::Dim(), columns});
    for (Node* node : *readers) {
      if (is_vectorizer(*node)) {
        replace_vectorizer(graph, *node, rows, map);
      } else {
        replace_cast_map(*node, rows);
      }
    }
  }
  if (maps.empty()) return;
  for (Node* node : graph.nodes) {
    for (Value* output : node->outputs) forget_one_row(output);
  }
}

}  // namespace onnxgrad::onnx_io
