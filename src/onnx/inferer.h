#ifndef ONNXGRAD_ONNX_INFERER_H_
#define ONNXGRAD_ONNX_INFERER_H_

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "ir/builder.h"
#include "ir/graph.h"
#include "onnx/schemas.h"

namespace onnxgrad::onnx_io {

/// Subgraphs and calls may nest this deep.
inline constexpr int kMaxNesting = 32;

/// See inference.h. Start reading at infer_at().
class Inferer final : public ir::TypeInferer {
 public:
  /// Nodes of ai.onnx are taken to be of `opset`.
  Inferer(const ir::Model& model, std::int64_t opset) : model_(model), opset_(opset) {}

  void infer(ir::Node& node) const override { infer_at(node, opset_, 0); }

 private:
  void infer_at(ir::Node& node, std::int64_t opset, int depth) const;
  std::vector<ir::Type> output_types(ir::Node& node, std::int64_t opset, int depth) const;
  std::vector<ir::Type> through_schema(const ir::Node& node, const Schema& schema,
                                       std::int64_t opset) const;
  std::vector<ir::Type> through_function(const ir::Node& node, const ir::Function& function,
                                         int depth) const;

  const ir::Model& model_;
  std::int64_t opset_;
  // Types of calls of model-local functions, by function, attributes and input types.
  mutable std::mutex mutex_;
  mutable std::map<std::string, std::vector<ir::Type>> calls_;
};

/// Checks the number of inputs and outputs and the element types of the inputs.
/// Throws: ModelError naming node, input, expected and given.
void check_call(const ir::Node& node, const Schema& schema);

}  // namespace onnxgrad::onnx_io

#endif  // ONNXGRAD_ONNX_INFERER_H_
