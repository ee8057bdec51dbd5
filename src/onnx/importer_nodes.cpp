#include <onnx/onnx_pb.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/check.h"
#include "base/interrupt.h"
#include "onnx/importer.h"
#include "onnx/inferer.h"
#include "onnx/wire.h"
#include "onnxgrad/error.h"

// Nodes and attributes of the importer.

namespace onnxgrad::onnx_io {
namespace {

using Attr = onnx::AttributeProto;

[[noreturn]] void fail_node(const ir::Node& node, std::string what, std::string detail = {}) {
  throw ModelError(
      {.what = std::move(what),
       .where = {.graph = node.graph->name, .node = node.name, .op_type = node.op_type},
       .detail = std::move(detail),
       .hint = "Export the model again, or fix this node."});
}

[[noreturn]] void fail_attribute(std::string_view name, const std::string& what) {
  throw ModelError({.what = "attribute '" + std::string(name.substr(0, 100)) + "' " + what,
                    .hint = "Export the model again, or fix this attribute."});
}

// The field that holds values of an AttributeType; 0 for unknown types.
int field_of(int type) {
  switch (type) {
    case Attr::FLOAT:
      return Attr::kFFieldNumber;
    case Attr::INT:
      return Attr::kIFieldNumber;
    case Attr::STRING:
      return Attr::kSFieldNumber;
    case Attr::TENSOR:
      return Attr::kTFieldNumber;
    case Attr::GRAPH:
      return Attr::kGFieldNumber;
    case Attr::SPARSE_TENSOR:
      return Attr::kSparseTensorFieldNumber;
    case Attr::TYPE_PROTO:
      return Attr::kTpFieldNumber;
    case Attr::FLOATS:
      return Attr::kFloatsFieldNumber;
    case Attr::INTS:
      return Attr::kIntsFieldNumber;
    case Attr::STRINGS:
      return Attr::kStringsFieldNumber;
    case Attr::TENSORS:
      return Attr::kTensorsFieldNumber;
    case Attr::GRAPHS:
      return Attr::kGraphsFieldNumber;
    case Attr::SPARSE_TENSORS:
      return Attr::kSparseTensorsFieldNumber;
    case Attr::TYPE_PROTOS:
      return Attr::kTypeProtosFieldNumber;
    default:
      return 0;
  }
}

int type_of_field(int field) {
  for (int type = Attr::FLOAT; type <= Attr::TYPE_PROTOS; ++type) {
    if (field_of(type) == field) return type;
  }
  return 0;
}

// The content of an AttributeProto, before its values are read.
struct AttributeParts {
  std::string_view name;
  std::string_view reference;
  std::string_view doc_string;
  int type = 0;
  int value_field = 0;  // 0: no value
  std::vector<WireReader> values;
};

AttributeParts read_parts(std::string_view bytes) {
  AttributeParts parts;
  for (WireReader in(bytes); in.next();) {
    switch (in.field()) {
      case Attr::kNameFieldNumber:
        parts.name = in.text();
        break;
      case Attr::kRefAttrNameFieldNumber:
        parts.reference = in.text();
        break;
      case Attr::kDocStringFieldNumber:
        parts.doc_string = in.text();
        break;
      case Attr::kTypeFieldNumber:
        parts.type = in.int32();
        break;
      default:
        if (type_of_field(in.field()) == 0) break;
        if (parts.value_field != 0 && parts.value_field != in.field()) {
          fail_attribute(parts.name, "has values of two types");
        }
        parts.value_field = in.field();
        parts.values.push_back(in);
        break;
    }
  }
  if (parts.name.empty()) fail_attribute("", "has no name");
  if (parts.type == 0) parts.type = type_of_field(parts.value_field);
  if (field_of(parts.type) == 0) {
    fail_attribute(parts.name, "has the unknown type " + std::to_string(parts.type));
  }
  if (parts.value_field != 0 && parts.value_field != field_of(parts.type)) {
    fail_attribute(parts.name, "has a value that is not of its declared type");
  }
  return parts;
}

}  // namespace

Importer::NodeParts Importer::read_node(std::string_view bytes, ir::Graph& graph) {
  using Field = onnx::NodeProto;
  NodeParts parts{.node = graph.add_bare_node()};
  ir::Node& node = *parts.node;
  std::vector<std::string_view> outputs;
  for (WireReader in(bytes); in.next();) {
    switch (in.field()) {
      case Field::kInputFieldNumber:
        parts.inputs.push_back(in.text());
        break;
      case Field::kOutputFieldNumber:
        outputs.push_back(in.text());
        break;
      case Field::kNameFieldNumber:
        node.name = in.text();
        break;
      case Field::kOpTypeFieldNumber:
        node.op_type = in.text();
        break;
      case Field::kDomainFieldNumber:
        node.domain = in.text();
        break;
      case Field::kOverloadFieldNumber:
        node.overload = in.text();
        break;
      case Field::kAttributeFieldNumber:
        parts.attributes.push_back(in.bytes());
        break;
      case Field::kDocStringFieldNumber:
        node.doc_string = in.text();
        break;
      case Field::kMetadataPropsFieldNumber:
        node.metadata.push_back(read_entry(in.bytes()));
        break;
      case Field::kDeviceConfigurationsFieldNumber:
        node.opaque.push_back(opaque<onnx::NodeDeviceConfigurationProto>(
            in.bytes(), "a node's device configuration"));
        break;
      default:
        break;
    }
  }
  if (node.op_type.empty()) fail_node(node, "a node names no operator");
  graph.names().reserve(node.name);
  node.outputs.resize(outputs.size(), nullptr);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i].empty()) continue;
    if (const ir::Value* other = graph.find(outputs[i])) {
      fail_node(node, "its output '" + other->name + "' has a name that is already used",
                other->producer != nullptr
                    ? "It is an output of " + other->producer->describe() + "."
                    : "It is an input or initializer of the graph.");
    }
    ir::Graph::set_output(&node, i, graph.add_value(std::string(outputs[i])));
  }
  return parts;
}

void Importer::read_nodes(std::span<const std::string_view> nodes, ir::Graph& graph) {
  std::vector<NodeParts> parts;
  parts.reserve(nodes.size());
  Scope& scope = scopes_.back();
  scope.position.reserve(nodes.size());
  for (const std::string_view bytes : nodes) {
    base::poll_interrupt();
    parts.push_back(read_node(bytes, graph));
    scope.position.emplace(parts.back().node, scope.position.size());
  }
  resolve(parts);
}

void Importer::resolve(std::vector<NodeParts>& parts) {
  const std::size_t level = scopes_.size() - 1;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    base::poll_interrupt();
    scopes_[level].current = i;  // by index: subgraphs add scopes
    ir::Node& node = *parts[i].node;
    node.inputs.reserve(parts[i].inputs.size());
    for (const std::string_view name : parts[i].inputs) {
      node.inputs.push_back(name.empty() ? nullptr : resolve_name(name, &parts[i]));
    }
    node.attributes.reserve(parts[i].attributes.size());
    std::set<std::string> given;
    for (const std::string_view bytes : parts[i].attributes) {
      ir::Attribute attribute;
      try {
        attribute = read_attribute(bytes, *node.graph);
      } catch (const ModelError& error) {
        if (!error.place().op_type.empty()) throw;
        Problem problem = error.problem();
        problem.where.graph = node.graph->name;
        problem.where.node = node.name;
        problem.where.op_type = node.op_type;
        throw ModelError(std::move(problem));
      }
      if (!given.insert(attribute.name).second) {
        fail_node(node, "attribute '" + attribute.name + "' is given twice");
      }
      node.attributes.push_back(std::move(attribute));
    }
  }
}

ir::Value* Importer::resolve_name(std::string_view name, const NodeParts* reader) {
  const ir::Graph& graph = *scopes_.back().graph;
  for (std::size_t level = scopes_.size(); level-- > 0;) {
    ir::Value* value = scopes_[level].graph->find(name);
    if (value == nullptr) continue;
    if (reader != nullptr) note_order(*value);
    return value;
  }
  Place where{.graph = graph.name};
  std::string what =
      "output '" + std::string(name.substr(0, 200)) + "' of the graph is not defined";
  if (reader != nullptr) {
    where.node = reader->node->name;
    where.op_type = reader->node->op_type;
    what = "its input '" + std::string(name.substr(0, 200)) + "' is not defined";
  }
  constexpr std::size_t kMaxCandidates = 5000;
  std::vector<std::string> names;
  for (const ir::Value* value : graph.inputs) names.push_back(value->name);
  for (const ir::Value* value : graph.initializers) names.push_back(value->name);
  for (const ir::Node* node : graph.nodes) {
    if (names.size() > kMaxCandidates) break;
    for (const ir::Value* output : node->outputs) {
      if (output != nullptr) names.push_back(output->name);
    }
  }
  throw ModelError({.what = std::move(what),
                    .where = std::move(where),
                    .detail = "Every value is an input, an initializer or the output of a node.",
                    .hint = base::nearest_or(name, names, "Export the whole model again.")});
}

// A value that is read before its node marks the graph of that node as unsorted.
void Importer::note_order(const ir::Value& value) {
  if (value.producer == nullptr) return;
  for (Scope& scope : scopes_) {
    if (scope.graph != value.graph) continue;
    if (scope.position.at(value.producer) >= scope.current) scope.is_sorted = false;
    return;
  }
}

ir::GraphPtr Importer::read_subgraph(std::string_view bytes, ir::Graph& parent) {
  // One level is three messages; with the content of a graph, 32 graphs reach protobuf's limit
  // of 100.
  if (scopes_.size() >= kMaxNesting) {
    throw ModelError(
        {.what = "subgraphs nest deeper than " + std::to_string(kMaxNesting - 1) + " levels",
         .hint = "Export the model with less nesting of If, Loop and Scan."});
  }
  auto graph = std::make_shared<ir::Graph>(parent.names_ptr(), &parent);
  read_graph(bytes, *graph);
  return graph;
}

ir::Attribute Importer::read_attribute(std::string_view bytes, ir::Graph& parent) {
  const AttributeParts parts = read_parts(bytes);
  ir::Attribute attribute{.name = std::string(parts.name),
                          .doc_string = std::string(parts.doc_string)};
  ir::AttributeValue& value = attribute.value;
  if (!parts.reference.empty()) {
    if (!parts.values.empty()) fail_attribute(parts.name, "has a value and refers to another");
    if (function_ == nullptr)
      fail_attribute(parts.name, "refers to an attribute outside a function");
    const auto is_named = [&](const std::string& name) { return name == parts.reference; };
    const auto is_default = [&](const ir::Attribute& a) { return a.name == parts.reference; };
    if (std::ranges::none_of(function_->attribute_names, is_named) &&
        std::ranges::none_of(function_->attribute_defaults, is_default)) {
      fail_attribute(parts.name, "refers to '" + std::string(parts.reference.substr(0, 100)) +
                                     "', which the function does not declare");
    }
    value = ir::AttributeRef{.name = std::string(parts.reference), .type = parts.type};
    return attribute;
  }
  const auto single = [&]() -> const WireReader& {
    if (parts.values.empty()) fail_attribute(parts.name, "has no value");
    if (parts.values.size() > 1) fail_attribute(parts.name, "has two values");
    return parts.values.front();
  };
  const auto read_tensor = [&](const WireReader& in) {
    return tensors_.decode(read_tensor_message(in.bytes()));
  };
  switch (parts.type) {
    case Attr::INT:
      value = parts.values.empty() ? std::int64_t{0} : single().int64();
      break;
    case Attr::FLOAT:
      value = parts.values.empty() ? 0.0F : single().float32();
      break;
    case Attr::STRING:
      value = parts.values.empty() ? std::string() : std::string(single().bytes());
      break;
    case Attr::TENSOR:
      value = read_tensor(single());
      break;
    case Attr::GRAPH:
      value = read_subgraph(single().bytes(), parent);
      break;
    case Attr::INTS: {
      std::vector<std::int64_t> ints;
      for (const WireReader& in : parts.values) in.append_to(ints);
      value = std::move(ints);
      break;
    }
    case Attr::FLOATS: {
      std::vector<float> floats;
      for (const WireReader& in : parts.values) in.append_to(floats);
      value = std::move(floats);
      break;
    }
    case Attr::STRINGS: {
      std::vector<std::string> strings;
      for (const WireReader& in : parts.values) strings.emplace_back(in.bytes());
      value = std::move(strings);
      break;
    }
    case Attr::TENSORS: {
      std::vector<Tensor> tensors;
      for (const WireReader& in : parts.values) tensors.push_back(read_tensor(in));
      value = std::move(tensors);
      break;
    }
    case Attr::GRAPHS: {
      std::vector<ir::GraphPtr> graphs;
      for (const WireReader& in : parts.values) graphs.push_back(read_subgraph(in.bytes(), parent));
      value = std::move(graphs);
      break;
    }
    default:
      value = ir::OpaqueAttribute{.type = parts.type,
                                  .bytes = opaque<onnx::AttributeProto>(bytes, "an attribute")};
      break;
  }
  return attribute;
}

ir::Attribute Importer::import_attribute(std::string_view bytes) {
  ir::Graph nowhere;
  return read_attribute(bytes, nowhere);
}

}  // namespace onnxgrad::onnx_io
