#include "onnx/importer.h"

#include <onnx/onnx_pb.h>

#include <algorithm>
#include <utility>

#include "onnx/type_message.h"
#include "onnx/wire.h"
#include "onnxgrad/error.h"

namespace onnxgrad::onnx_io {
namespace {

std::pair<std::string, std::int64_t> read_opset(std::string_view bytes) {
  std::pair<std::string, std::int64_t> opset;
  for (WireReader in(bytes); in.next();) {
    if (in.field() == onnx::OperatorSetIdProto::kDomainFieldNumber) opset.first = in.text();
    if (in.field() == onnx::OperatorSetIdProto::kVersionFieldNumber) opset.second = in.int64();
  }
  return opset;
}

[[noreturn]] void fail_value(const ir::Graph& graph, std::string_view name, std::string what) {
  throw ModelError({.what = std::move(what),
                    .where = {.graph = graph.name, .value = std::string(name.substr(0, 200))},
                    .hint = "Export the model again, or give each value one name and one type."});
}

void expect_free(const ir::Graph& graph, std::string_view name, const char* what) {
  if (name.empty()) fail_value(graph, name, std::string(what) + " has no name");
  if (graph.find(name) != nullptr) {
    fail_value(graph, name, std::string(what) + " has the name of another value of the graph");
  }
}

// Compares an initializer with the type that the file declares for the input of that name.
void expect_declared(const ir::Graph& graph, const ir::Value& value, const Tensor& tensor) {
  const ir::Type given = ir::Type::tensor(tensor.dtype(), tensor.dims());
  const ir::Type& declared = value.type;
  if (declared.kind == ir::Type::Kind::kUnknown) return;
  bool fits = declared.is_tensor() &&
              (declared.dtype == tensor.dtype() || declared.dtype == DataType::kUndefined);
  if (fits && declared.shape) {
    fits = declared.shape->size() == tensor.dims().rank();
    for (std::size_t i = 0; fits && i < declared.shape->size(); ++i) {
      const ir::Dim& dim = (*declared.shape)[i];
      fits = !dim.is_static() || dim.value() == tensor.dims()[i];
    }
  }
  if (!fits) {
    fail_value(
        graph, value.name,
        "declared as " + declared.to_string() + ", but its initializer is " + given.to_string());
  }
}

}  // namespace

ir::Model Importer::import_model(std::string_view bytes) {
  using Field = onnx::ModelProto;
  ir::Model model;
  model.ir_version = 0;
  std::string_view graph;
  bool has_graph = false;
  std::vector<std::string_view> functions;
  for (WireReader in(bytes); in.next();) {
    switch (in.field()) {
      case Field::kIrVersionFieldNumber:
        model.ir_version = in.int64();
        break;
      case Field::kOpsetImportFieldNumber:
        model.opset_imports.push_back(read_opset(in.bytes()));
        break;
      case Field::kProducerNameFieldNumber:
        model.producer_name = in.text();
        break;
      case Field::kProducerVersionFieldNumber:
        model.producer_version = in.text();
        break;
      case Field::kDomainFieldNumber:
        model.domain = in.text();
        break;
      case Field::kModelVersionFieldNumber:
        model.model_version = in.int64();
        break;
      case Field::kDocStringFieldNumber:
        model.doc_string = in.text();
        break;
      case Field::kGraphFieldNumber:
        if (has_graph)
          throw ModelError({.what = "the model has two graphs",
                            .hint = "Two files were concatenated: give one of them."});
        has_graph = true;
        graph = in.bytes();
        break;
      case Field::kMetadataPropsFieldNumber:
        model.metadata.push_back(read_entry(in.bytes()));
        break;
      case Field::kTrainingInfoFieldNumber:
        model.opaque_training_info.push_back(
            opaque<onnx::TrainingInfoProto>(in.bytes(), "training information"));
        break;
      case Field::kFunctionsFieldNumber:
        functions.push_back(in.bytes());
        break;
      case Field::kConfigurationFieldNumber:
        model.opaque_configuration.push_back(
            opaque<onnx::DeviceConfigurationProto>(in.bytes(), "a device configuration"));
        break;
      default:
        break;
    }
  }
  if (!has_graph) {
    throw ModelError({.what = "this is not an ONNX model: it has no graph",
                      .hint = "Give the path of a file that was exported as .onnx."});
  }
  model.functions.reserve(functions.size());
  for (const std::string_view function : functions) {
    model.functions.push_back(import_function(function));
  }
  read_graph(graph, *model.graph);
  return model;
}

ir::Function Importer::import_function(std::string_view bytes, bool may_lack_outputs) {
  using Field = onnx::FunctionProto;
  ir::Function function;
  function.body = std::make_shared<ir::Graph>();
  ir::Graph& body = *function.body;
  std::vector<std::string_view> inputs;
  std::vector<std::string_view> outputs;
  std::vector<std::string_view> defaults;
  std::vector<std::string_view> nodes;
  std::vector<std::string_view> infos;
  for (WireReader in(bytes); in.next();) {
    switch (in.field()) {
      case Field::kNameFieldNumber:
        function.name = in.text();
        break;
      case Field::kDomainFieldNumber:
        function.domain = in.text();
        break;
      case Field::kOverloadFieldNumber:
        function.overload = in.text();
        break;
      case Field::kInputFieldNumber:
        inputs.push_back(in.text());
        break;
      case Field::kOutputFieldNumber:
        outputs.push_back(in.text());
        break;
      case Field::kAttributeFieldNumber:
        function.attribute_names.emplace_back(in.text());
        break;
      case Field::kAttributeProtoFieldNumber:
        defaults.push_back(in.bytes());
        break;
      case Field::kNodeFieldNumber:
        nodes.push_back(in.bytes());
        break;
      case Field::kDocStringFieldNumber:
        function.doc_string = in.text();
        break;
      case Field::kOpsetImportFieldNumber:
        function.opset_imports.push_back(read_opset(in.bytes()));
        break;
      case Field::kValueInfoFieldNumber:
        infos.push_back(in.bytes());
        break;
      case Field::kMetadataPropsFieldNumber:
        function.metadata.push_back(read_entry(in.bytes()));
        break;
      default:
        break;
    }
  }
  body.name = function.name;
  if (function.name.empty())
    throw ModelError({.what = "a function has no name",
                      .hint = "Name it in the model, or remove it: nothing can call it."});
  for (const std::string_view attribute : defaults) {
    function.attribute_defaults.push_back(read_attribute(attribute, body));
  }
  for (const std::string_view name : inputs) {
    expect_free(body, name, "an input of a function");
    ir::Value* input = body.add_value(std::string(name));
    input->is_input = true;
    body.inputs.push_back(input);
  }
  function_ = &function;
  scopes_.push_back({.graph = &body});
  read_nodes(nodes, body);
  read_value_infos(infos, body, /*are_outputs=*/false);
  for (const std::string_view name : outputs) {
    const bool is_lacking = may_lack_outputs && body.find(name) == nullptr;
    body.outputs.push_back(is_lacking ? nullptr : resolve_name(name, nullptr));
  }
  if (!scopes_.back().is_sorted) sort_topologically(body);
  scopes_.pop_back();
  function_ = nullptr;
  return function;
}

void Importer::read_graph(std::string_view bytes, ir::Graph& graph) {
  std::vector<std::string_view> nodes;
  std::vector<std::string_view> initializers;
  std::vector<std::string_view> sparse;
  std::vector<std::string_view> inputs;
  std::vector<std::string_view> outputs;
  std::vector<std::string_view> infos;
  for (WireReader in(bytes); in.next();) {
    switch (in.field()) {
      case onnx::GraphProto::kNodeFieldNumber:
        nodes.push_back(in.bytes());
        break;
      case onnx::GraphProto::kNameFieldNumber:
        graph.name = in.text();
        break;
      case onnx::GraphProto::kInitializerFieldNumber:
        initializers.push_back(in.bytes());
        break;
      case onnx::GraphProto::kSparseInitializerFieldNumber:
        sparse.push_back(in.bytes());
        break;
      case onnx::GraphProto::kDocStringFieldNumber:
        graph.doc_string = in.text();
        break;
      case onnx::GraphProto::kInputFieldNumber:
        inputs.push_back(in.bytes());
        break;
      case onnx::GraphProto::kOutputFieldNumber:
        outputs.push_back(in.bytes());
        break;
      case onnx::GraphProto::kValueInfoFieldNumber:
        infos.push_back(in.bytes());
        break;
      case onnx::GraphProto::kQuantizationAnnotationFieldNumber:
        graph.opaque.push_back(
            opaque<onnx::TensorAnnotation>(in.bytes(), "a quantization annotation"));
        break;
      case onnx::GraphProto::kMetadataPropsFieldNumber:
        graph.metadata.push_back(read_entry(in.bytes()));
        break;
      default:
        break;
    }
  }
  scopes_.push_back({.graph = &graph});
  read_inputs(inputs, graph);
  for (const std::string_view tensor : initializers) read_initializer(tensor, graph);
  for (const std::string_view tensor : sparse) read_sparse_initializer(tensor, graph);
  read_nodes(nodes, graph);
  read_value_infos(infos, graph, /*are_outputs=*/false);
  read_value_infos(outputs, graph, /*are_outputs=*/true);
  if (!scopes_.back().is_sorted) sort_topologically(graph);
  scopes_.pop_back();
}

void Importer::read_inputs(std::span<const std::string_view> infos, ir::Graph& graph) {
  for (const std::string_view bytes : infos) {
    ValueInfo info = read_value_info(bytes);
    expect_free(graph, info.name, "an input");
    ir::Value* input = graph.add_value(std::string(info.name), std::move(info.type));
    input->is_input = true;
    input->doc_string = info.doc_string;
    input->metadata = std::move(info.metadata);
    graph.inputs.push_back(input);
  }
}

void Importer::read_initializer(std::string_view bytes, ir::Graph& graph) {
  const TensorMessage message = read_tensor_message(bytes);
  ir::Value* value = graph.find(message.name);
  if (value == nullptr || value->is_initializer()) {
    expect_free(graph, message.name, "an initializer");
    value =
        graph.add_value(std::string(message.name), ir::Type::tensor(message.dtype, message.dims));
    value->doc_string = message.doc_string;
    value->metadata = message.metadata;
  }
  Tensor tensor = tensors_.decode(message);
  expect_declared(graph, *value, tensor);
  value->initializer = std::move(tensor);
  graph.initializers.push_back(value);
}

// Sparse initializers become dense: operators see no difference.
void Importer::read_sparse_initializer(std::string_view bytes, ir::Graph& graph) {
  using Field = onnx::SparseTensorProto;
  std::string_view values_bytes;
  std::string_view indices_bytes;
  std::vector<std::int64_t> dims_list;
  for (WireReader in(bytes); in.next();) {
    if (in.field() == Field::kValuesFieldNumber) values_bytes = in.bytes();
    if (in.field() == Field::kIndicesFieldNumber) indices_bytes = in.bytes();
    if (in.field() == Field::kDimsFieldNumber) in.append_to(dims_list);
  }
  const TensorMessage message = read_tensor_message(values_bytes);
  expect_free(graph, message.name, "a sparse initializer");
  const Dims dims(std::move(dims_list));
  const Tensor values = tensors_.decode(message);
  const Tensor indices = tensors_.decode(read_tensor_message(indices_bytes));
  const auto fail = [&](std::string what) { fail_value(graph, message.name, std::move(what)); };
  const std::size_t rank = indices.dims().rank();
  const std::int64_t count = values.num_elements();
  const std::int64_t width = rank == 2 ? indices.dims()[1] : 1;
  if (values.dims().rank() != 1 || indices.dtype() != DataType::kInt64 || rank < 1 || rank > 2 ||
      indices.dims()[0] != count ||
      (rank == 2 && width != static_cast<std::int64_t>(dims.rank()))) {
    fail("sparse values " + values.dims().to_string() + " with indices " +
         indices.dims().to_string() + " do not fit shape " + dims.to_string());
  }
  const int bits = size_bits(values.dtype());
  if (bits < 8 || bits % 8 != 0) fail("sparse tensors of this element type cannot be read");
  const auto element = static_cast<std::size_t>(bits / 8);
  Tensor dense = Tensor::zeros(values.dtype(), dims);
  const std::vector<std::int64_t> strides = dims.strides();
  const auto index = indices.data<std::int64_t>();
  for (std::int64_t i = 0; i < count; ++i) {
    std::int64_t position = rank == 1 ? index[static_cast<std::size_t>(i)] : 0;
    for (std::int64_t axis = 0; rank == 2 && axis < width; ++axis) {
      const std::int64_t k = index[static_cast<std::size_t>(i * width + axis)];
      if (k < 0 || k >= dims[static_cast<std::size_t>(axis)])
        fail("a sparse index is out of range");
      position += k * strides[static_cast<std::size_t>(axis)];
    }
    if (position < 0 || position >= dims.num_elements()) fail("a sparse index is out of range");
    std::memcpy(dense.mutable_raw() + static_cast<std::size_t>(position) * element,
                values.raw() + static_cast<std::size_t>(i) * element, element);
  }
  ir::Value* value =
      graph.add_value(std::string(message.name), ir::Type::tensor(dense.dtype(), dims));
  value->initializer = std::move(dense);
  graph.initializers.push_back(value);
}

Importer::ValueInfo Importer::read_value_info(std::string_view bytes) {
  using Field = onnx::ValueInfoProto;
  ValueInfo info;
  for (WireReader in(bytes); in.next();) {
    if (in.field() == Field::kNameFieldNumber) info.name = in.text();
    if (in.field() == Field::kTypeFieldNumber) info.type = read_type(in.bytes());
    if (in.field() == Field::kDocStringFieldNumber) info.doc_string = in.text();
    if (in.field() == Field::kMetadataPropsFieldNumber)
      info.metadata.push_back(read_entry(in.bytes()));
  }
  return info;
}

void Importer::read_value_infos(std::span<const std::string_view> infos, ir::Graph& graph,
                                bool are_outputs) {
  for (const std::string_view bytes : infos) {
    ValueInfo info = read_value_info(bytes);
    ir::Value* value = graph.find(info.name);
    if (are_outputs) {
      value = resolve_name(info.name, nullptr);
      graph.outputs.push_back(value);
    }
    // Declarations of values that do not exist are ignored; those of outer values are not ours.
    if (value == nullptr || value->graph != &graph) continue;
    if (value->is_initializer()) {
      ir::Value declared;
      declared.name = value->name;
      declared.type = info.type;
      // Inside, the initializer is right: optimizers leave declarations of what they changed.
      if (are_outputs) expect_declared(graph, declared, value->initializer);
    } else if (info.type.kind != ir::Type::Kind::kUnknown && !value->is_input) {
      value->type = std::move(info.type);
    }
    if (!are_outputs) value->has_value_info = true;
    if (!info.doc_string.empty()) value->doc_string = info.doc_string;
    if (!info.metadata.empty()) value->metadata = std::move(info.metadata);
  }
}

}  // namespace onnxgrad::onnx_io
