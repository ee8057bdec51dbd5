#include "onnx/exporter.h"

#include <onnx/onnx_pb.h>

#include <algorithm>
#include <unordered_set>

#include "ir/weight_alias.h"
#include "onnx/functions.h"
#include "onnx/type_message.h"
#include "onnxgrad/error.h"

namespace onnxgrad::onnx_io {
namespace {

void write_entries(WireWriter& out, int field, const ir::Metadata& metadata) {
  using Field = onnx::StringStringEntryProto;
  for (const auto& [key, value] : metadata) {
    if (key == ir::kAliasEntry) continue;
    out.message(field, [&, &key = key, &value = value](WireWriter& entry) {
      entry.bytes(Field::kKeyFieldNumber, key);
      entry.bytes(Field::kValueFieldNumber, value);
    });
  }
}

void write_opsets(WireWriter& out, int field,
                  const std::vector<std::pair<std::string, std::int64_t>>& opsets) {
  using Field = onnx::OperatorSetIdProto;
  for (const auto& [domain, version] : opsets) {
    out.message(field, [&, &domain = domain, version = version](WireWriter& opset) {
      opset.bytes(Field::kDomainFieldNumber, domain);
      opset.int64(Field::kVersionFieldNumber, version);
    });
  }
}

void write_tensor_fields(WireWriter& out, const Tensor& tensor, std::string_view name) {
  using Field = onnx::TensorProto;
  for (const std::int64_t dim : tensor.dims()) out.int64(Field::kDimsFieldNumber, dim);
  out.int64(Field::kDataTypeFieldNumber, static_cast<std::int64_t>(tensor.dtype()));
  if (tensor.dtype() == DataType::kString) {
    for (const std::string& text : tensor.strings()) out.bytes(Field::kStringDataFieldNumber, text);
  }
  out.text(Field::kNameFieldNumber, name);
  if (tensor.dtype() != DataType::kString) {
    out.bytes(Field::kRawDataFieldNumber, {reinterpret_cast<const char*>(tensor.raw()),
                                           static_cast<std::size_t>(tensor.size_bytes())});
  }
}

class Exporter {
 public:
  explicit Exporter(ExternalTensors* external, TensorTextFn text_of = nullptr)
      : external_(external), text_of_(std::move(text_of)) {}

  void write_model(WireWriter& out, const ir::Model& model);
  void write_function(WireWriter& out, const ir::Function& function);
  void write_node(WireWriter& out, const ir::Node& node);
  void write_graph(WireWriter& out, const ir::Graph& graph);

 private:
  void write_nodes(WireWriter& out, int field, const ir::Graph& graph);
  void write_attribute(WireWriter& out, int field, const ir::Attribute& attribute);
  void write_attribute_value(WireWriter& out, const ir::AttributeValue& value);
  void write_value_info(WireWriter& out, int field, const ir::Value& value);
  void write_value_infos(WireWriter& out, int field, const ir::Graph& graph);
  void write_initializer(WireWriter& out, const ir::Value& value);

  ExternalTensors* external_;
  TensorTextFn text_of_;
};

void Exporter::write_model(WireWriter& out, const ir::Model& model) {
  using Field = onnx::ModelProto;
  out.int64(Field::kIrVersionFieldNumber, model.ir_version);
  out.text(Field::kProducerNameFieldNumber, model.producer_name);
  out.text(Field::kProducerVersionFieldNumber, model.producer_version);
  out.text(Field::kDomainFieldNumber, model.domain);
  if (model.model_version != 0) out.int64(Field::kModelVersionFieldNumber, model.model_version);
  out.text(Field::kDocStringFieldNumber, model.doc_string);
  out.message(Field::kGraphFieldNumber,
              [&](WireWriter& graph) { write_graph(graph, *model.graph); });
  write_opsets(out, Field::kOpsetImportFieldNumber, model.opset_imports);
  write_entries(out, Field::kMetadataPropsFieldNumber, model.metadata);
  for (const std::string& info : model.opaque_training_info) {
    out.bytes(Field::kTrainingInfoFieldNumber, info);
  }
  for (const ir::Function& function : model.functions) {
    out.message(Field::kFunctionsFieldNumber,
                [&](WireWriter& message) { write_function(message, function); });
  }
  for (const std::string& configuration : model.opaque_configuration) {
    out.bytes(Field::kConfigurationFieldNumber, configuration);
  }
}

void Exporter::write_function(WireWriter& out, const ir::Function& function) {
  using Field = onnx::FunctionProto;
  const ir::Graph& body = *function.body;
  out.bytes(Field::kNameFieldNumber, function.name);
  for (const ir::Value* input : body.inputs) out.bytes(Field::kInputFieldNumber, input->name);
  for (const ir::Value* output : body.outputs) out.bytes(Field::kOutputFieldNumber, output->name);
  for (const std::string& name : function.attribute_names)
    out.bytes(Field::kAttributeFieldNumber, name);
  // A function has no initializers: they become constants at its start.
  for (const ir::Value* value : body.initializers) {
    out.message(Field::kNodeFieldNumber, [&](WireWriter& node) {
      node.bytes(onnx::NodeProto::kOutputFieldNumber, value->name);
      node.bytes(onnx::NodeProto::kOpTypeFieldNumber, "Constant");
      write_attribute(node, onnx::NodeProto::kAttributeFieldNumber,
                      {.name = "value", .value = value->initializer});
    });
  }
  write_nodes(out, Field::kNodeFieldNumber, body);
  out.text(Field::kDocStringFieldNumber, function.doc_string);
  write_opsets(out, Field::kOpsetImportFieldNumber, function.opset_imports);
  out.bytes(Field::kDomainFieldNumber, function.domain);
  for (const ir::Attribute& attribute : function.attribute_defaults) {
    write_attribute(out, Field::kAttributeProtoFieldNumber, attribute);
  }
  write_value_infos(out, Field::kValueInfoFieldNumber, body);
  out.text(Field::kOverloadFieldNumber, function.overload);
  write_entries(out, Field::kMetadataPropsFieldNumber, function.metadata);
}

void Exporter::write_graph(WireWriter& out, const ir::Graph& graph) {
  using Field = onnx::GraphProto;
  write_nodes(out, Field::kNodeFieldNumber, graph);
  out.text(Field::kNameFieldNumber, graph.name);
  for (const ir::Value* value : graph.initializers) write_initializer(out, *value);
  out.text(Field::kDocStringFieldNumber, graph.doc_string);
  for (const ir::Value* input : graph.inputs) {
    write_value_info(out, Field::kInputFieldNumber, *input);
  }
  for (const ir::Value* output : graph.outputs) {
    write_value_info(out, Field::kOutputFieldNumber, *output);
  }
  write_value_infos(out, Field::kValueInfoFieldNumber, graph);
  for (const std::string& annotation : graph.opaque) {
    out.bytes(Field::kQuantizationAnnotationFieldNumber, annotation);
  }
  write_entries(out, Field::kMetadataPropsFieldNumber, graph.metadata);
}

void Exporter::write_nodes(WireWriter& out, int field, const ir::Graph& graph) {
  for (const ir::Node* node : graph.nodes) {
    out.message(field, [&](WireWriter& message) { write_node(message, *node); });
  }
}

void Exporter::write_node(WireWriter& out, const ir::Node& node) {
  using Field = onnx::NodeProto;
  const auto name_of = [](const ir::Value* value) {
    return value == nullptr ? std::string_view() : std::string_view(value->name);
  };
  for (const ir::Value* input : node.inputs) out.bytes(Field::kInputFieldNumber, name_of(input));
  for (const ir::Value* output : node.outputs)
    out.bytes(Field::kOutputFieldNumber, name_of(output));
  out.text(Field::kNameFieldNumber, node.name);
  out.bytes(Field::kOpTypeFieldNumber, node.op_type);
  for (const ir::Attribute& attribute : node.attributes) {
    write_attribute(out, Field::kAttributeFieldNumber, attribute);
  }
  out.text(Field::kDocStringFieldNumber, node.doc_string);
  out.text(Field::kDomainFieldNumber, node.domain);
  out.text(Field::kOverloadFieldNumber, node.overload);
  write_entries(out, Field::kMetadataPropsFieldNumber, node.metadata);
  for (const std::string& configuration : node.opaque) {
    out.bytes(Field::kDeviceConfigurationsFieldNumber, configuration);
  }
}

void Exporter::write_attribute(WireWriter& out, int field, const ir::Attribute& attribute) {
  using Field = onnx::AttributeProto;
  if (const auto* opaque = std::get_if<ir::OpaqueAttribute>(&attribute.value)) {
    out.bytes(field, opaque->bytes);  // with its name and doc string
    return;
  }
  out.message(field, [&](WireWriter& message) {
    message.bytes(Field::kNameFieldNumber, attribute.name);
    write_attribute_value(message, attribute.value);
    message.text(Field::kDocStringFieldNumber, attribute.doc_string);
    message.int64(Field::kTypeFieldNumber, attribute_type(attribute.value));
  });
}

void Exporter::write_attribute_value(WireWriter& out, const ir::AttributeValue& value) {
  using Field = onnx::AttributeProto;
  struct Writer {
    Exporter& exporter;
    WireWriter& out;
    void operator()(std::int64_t v) const { out.int64(Field::kIFieldNumber, v); }
    void operator()(float v) const { out.float32(Field::kFFieldNumber, v); }
    void operator()(const std::string& v) const { out.bytes(Field::kSFieldNumber, v); }
    void operator()(const Tensor& v) const { write_tensor(out, Field::kTFieldNumber, v); }
    void operator()(const ir::GraphPtr& v) const {
      out.message(Field::kGFieldNumber,
                  [&](WireWriter& graph) { exporter.write_graph(graph, *v); });
    }
    void operator()(const std::vector<std::int64_t>& list) const {
      for (const std::int64_t v : list) out.int64(Field::kIntsFieldNumber, v);
    }
    void operator()(const std::vector<float>& list) const {
      for (const float v : list) out.float32(Field::kFloatsFieldNumber, v);
    }
    void operator()(const std::vector<std::string>& list) const {
      for (const std::string& v : list) out.bytes(Field::kStringsFieldNumber, v);
    }
    void operator()(const std::vector<Tensor>& list) const {
      for (const Tensor& v : list) write_tensor(out, Field::kTensorsFieldNumber, v);
    }
    void operator()(const std::vector<ir::GraphPtr>& list) const {
      for (const ir::GraphPtr& v : list) {
        out.message(Field::kGraphsFieldNumber,
                    [&](WireWriter& graph) { exporter.write_graph(graph, *v); });
      }
    }
    void operator()(const ir::AttributeRef& v) const {
      out.bytes(Field::kRefAttrNameFieldNumber, v.name);
    }
    void operator()(const ir::OpaqueAttribute& /*v*/) const {}
  };
  std::visit(Writer{*this, out}, value);
}

void Exporter::write_value_info(WireWriter& out, int field, const ir::Value& value) {
  using Field = onnx::ValueInfoProto;
  out.message(field, [&](WireWriter& info) {
    info.bytes(Field::kNameFieldNumber, value.name);
    if (value.type.kind != ir::Type::Kind::kUnknown) {
      write_type(info, Field::kTypeFieldNumber, value.type);
    }
    info.text(Field::kDocStringFieldNumber, value.doc_string);
    write_entries(info, Field::kMetadataPropsFieldNumber, value.metadata);
  });
}

void Exporter::write_value_infos(WireWriter& out, int field, const ir::Graph& graph) {
  const auto write = [&](const ir::Value* value) {
    if (value != nullptr && value->has_value_info) write_value_info(out, field, *value);
  };
  for (const ir::Value* value : graph.inputs) write(value);
  for (const ir::Value* value : graph.initializers) {
    if (!value->is_input) write(value);
  }
  for (const ir::Node* node : graph.nodes) {
    for (const ir::Value* value : node->outputs) write(value);
  }
}

void Exporter::write_initializer(WireWriter& out, const ir::Value& value) {
  using Field = onnx::TensorProto;
  if (text_of_ != nullptr) {
    const std::string_view text = text_of_(value);
    if (!text.empty()) return out.bytes(onnx::GraphProto::kInitializerFieldNumber, text);
  }
  const Tensor& tensor = value.initializer;
  const bool has_info = value.is_input || value.has_value_info;
  const bool is_external = external_ != nullptr && tensor.dtype() != DataType::kString &&
                           tensor.size_bytes() >= kMinExternalBytes;
  out.message(onnx::GraphProto::kInitializerFieldNumber, [&](WireWriter& message) {
    if (!is_external) {
      write_tensor_fields(message, tensor, value.name);
    } else {
      for (const std::int64_t dim : tensor.dims()) message.int64(Field::kDimsFieldNumber, dim);
      message.int64(Field::kDataTypeFieldNumber, static_cast<std::int64_t>(tensor.dtype()));
      message.bytes(Field::kNameFieldNumber, value.name);
      write_external_fields(message, *external_, tensor);
    }
    if (!has_info) {
      message.text(Field::kDocStringFieldNumber, value.doc_string);
      write_entries(message, Field::kMetadataPropsFieldNumber, value.metadata);
    }
  });
}

// Bytes of the tensors that a message holds.
std::size_t tensor_bytes(const ir::Model& model, const TensorTextFn& text_of) {
  if (text_of == nullptr) return static_cast<std::size_t>(initializer_bytes(model));
  std::size_t total = 0;
  for (const ir::Value* value : model.graph->initializers) {
    const std::string_view text = text_of(*value);
    const bool is_text = value->initializer.dtype() == DataType::kString;
    const std::int64_t size = is_text ? 0 : value->initializer.size_bytes();
    total += text.empty() ? static_cast<std::size_t>(size) : text.size();
  }
  return total;
}

}  // namespace

std::string export_model(const ir::Model& model, ExternalTensors* external,
                         const TensorTextFn& text_of) {
  std::string bytes;
  // A string that grows holds the tensors twice: room for them, and some for names and nodes.
  const std::size_t tensors = external == nullptr ? tensor_bytes(model, text_of) : 0;
  bytes.reserve(tensors + tensors / 64 + 4096);
  WireWriter out(bytes);
  Exporter(external, text_of).write_model(out, model);
  return bytes;
}

std::int64_t initializer_bytes(const ir::Model& model) {
  std::int64_t total = 0;
  for (const ir::Value* value : model.graph->initializers) {
    if (value->initializer.dtype() != DataType::kString) total += value->initializer.size_bytes();
  }
  return total;
}

void write_external_fields(WireWriter& out, ExternalTensors& external, const Tensor& tensor) {
  using Field = onnx::TensorProto;
  constexpr std::int64_t kAlignment = 64;
  const std::int64_t offset = (external.size_bytes + kAlignment - 1) / kAlignment * kAlignment;
  external.tensors.emplace_back(offset, tensor);
  external.size_bytes = offset + tensor.size_bytes();
  write_entries(out, Field::kExternalDataFieldNumber,
                {{"location", external.location},
                 {"offset", std::to_string(offset)},
                 {"length", std::to_string(tensor.size_bytes())}});
  out.int64(Field::kDataLocationFieldNumber, onnx::TensorProto::EXTERNAL);
}

std::string export_function(const ir::Function& function) {
  std::string bytes;
  WireWriter out(bytes);
  Exporter(nullptr).write_function(out, function);
  return bytes;
}

std::string export_node(const ir::Node& node) {
  std::string bytes;
  WireWriter out(bytes);
  Exporter(nullptr).write_node(out, node);
  return bytes;
}

std::string export_graph(const ir::Graph& graph) {
  std::string bytes;
  WireWriter out(bytes);
  Exporter(nullptr).write_graph(out, graph);
  return bytes;
}

void write_tensor(WireWriter& out, int field, const Tensor& tensor, std::string_view name) {
  out.message(field, [&](WireWriter& message) { write_tensor_fields(message, tensor, name); });
}

}  // namespace onnxgrad::onnx_io
