#ifndef ONNXGRAD_ONNX_NODE_CONTEXT_H_
#define ONNXGRAD_ONNX_NODE_CONTEXT_H_

#include <onnx/defs/shape_inference.h>

#include <deque>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "onnx/known_values.h"

namespace onnxgrad::onnx_io {

/// A node as an inference function of ONNX sees it: inputs, attributes and known values are
/// converted to messages on demand.
class NodeContext final : public onnx::InferenceContext {
 public:
  NodeContext(const ir::Node& node, std::int64_t opset);

  const onnx::AttributeProto* getAttribute(const std::string& name) const override;
  size_t getNumInputs() const override { return node_.inputs.size(); }
  const onnx::TypeProto* getInputType(size_t index) const override;
  bool hasInput(size_t index) const override { return node_.input(index) != nullptr; }
  const onnx::TensorProto* getInputData(size_t index) const override;
  size_t getNumOutputs() const override { return outputs_.size(); }
  onnx::TypeProto* getOutputType(size_t index) override;
  bool hasOutput(size_t index) override { return node_.output(index) != nullptr; }
  onnx::GraphInferencer* getGraphAttributeInferencer(const std::string& /*name*/) override {
    return nullptr;
  }
  const onnx::SparseTensorProto* getInputSparseData(size_t /*index*/) const override {
    return nullptr;
  }
  const onnx::TensorShapeProto* getSymbolicInput(size_t index) const override;

  const std::vector<onnx::TypeProto>& outputs() const { return outputs_; }

 private:
  const ir::Node& node_;
  std::vector<onnx::TypeProto> inputs_;
  std::vector<onnx::TypeProto> outputs_;
  mutable KnownValues known_;
  mutable std::deque<onnx::AttributeProto> attributes_;
  mutable std::deque<onnx::TensorProto> numbers_;
};

}  // namespace onnxgrad::onnx_io

#endif  // ONNXGRAD_ONNX_NODE_CONTEXT_H_
