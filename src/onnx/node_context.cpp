#include "onnx/node_context.h"

#include "onnx/protos.h"
#include "onnxgrad/error.h"

namespace onnxgrad::onnx_io {

NodeContext::NodeContext(const ir::Node& node, std::int64_t opset)
    : node_(node), inputs_(node.inputs.size()), outputs_(node.outputs.size()), known_(opset) {
  for (std::size_t i = 0; i < node.inputs.size(); ++i) {
    if (node.inputs[i] != nullptr) to_proto(node.inputs[i]->type, inputs_[i]);
  }
}

const onnx::AttributeProto* NodeContext::getAttribute(const std::string& name) const {
  for (const onnx::AttributeProto& known : attributes_) {
    if (known.name() == name) return &known;
  }
  for (const ir::Attribute& attribute : node_.attributes) {
    if (attribute.name != name) continue;
    to_proto(attribute, attributes_.emplace_back());
    return &attributes_.back();
  }
  return nullptr;
}

const onnx::TypeProto* NodeContext::getInputType(size_t index) const {
  if (index >= inputs_.size() || inputs_[index].value_case() == onnx::TypeProto::VALUE_NOT_SET) {
    return nullptr;
  }
  return &inputs_[index];
}

const onnx::TensorProto* NodeContext::getInputData(size_t index) const {
  const ir::Value* input = node_.input(index);
  const onnx::TensorProto* tensor = input == nullptr ? nullptr : known_.tensor(*input);
  // ONNX's own definitions (AffineGrid) pass Range lists of one number, and runtimes accept them.
  if (tensor != nullptr && node_.op_type == "Range" && tensor->dims_size() == 1 &&
      tensor->dims(0) == 1) {
    onnx::TensorProto& number = numbers_.emplace_back(*tensor);
    number.clear_dims();
    return &number;
  }
  return tensor;
}

onnx::TypeProto* NodeContext::getOutputType(size_t index) {
  if (index < outputs_.size()) return &outputs_[index];
  throw ModelError(
      {.what = "it has " + std::to_string(outputs_.size()) + " outputs, its operator has more",
       .hint = "Name all of its outputs; unused ones may have empty names."});
}

const onnx::TensorShapeProto* NodeContext::getSymbolicInput(size_t index) const {
  const ir::Value* input = node_.input(index);
  return input == nullptr ? nullptr : known_.elements(*input);
}

}  // namespace onnxgrad::onnx_io
