#ifndef ONNXGRAD_ONNX_INFERER_H_
#define ONNXGRAD_ONNX_INFERER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "ir/builder.h"
#include "ir/graph.h"
#include "onnx/schemas.h"

namespace onnxgrad::onnx_io {

/// Maximum nesting of subgraphs and calls.
inline constexpr int kMaxNesting = 32;

/// The inferer behind inference.h. Start reading at infer_at().
class Inferer final : public ir::TypeInferer {
 public:
  /// Nodes of ai.onnx are assumed to be of `opset`.
  Inferer(const ir::Model& model, std::int64_t opset) : model_(model), opset_(opset) {}

  void infer(ir::Node& node) const override { infer_at(node, opset_, 0); }
  /// Runs check_call() on a node that is rewritten before its types are inferred; does nothing
  /// for operators that ONNX does not have. Throws: ModelError naming the node.
  void check(const ir::Node& node) const;

 private:
  void infer_at(ir::Node& node, std::int64_t opset, int depth) const;
  std::vector<ir::Type> output_types(ir::Node& node, std::int64_t opset, int depth) const;
  std::vector<ir::Type> infer_types(ir::Node& node, std::int64_t opset, int depth) const;
  std::vector<ir::Type> through_schema(const ir::Node& node, const Schema& schema,
                                       std::int64_t opset) const;
  using FindBody = std::function<std::optional<ir::Function>()>;
  std::vector<ir::Type> through_body(const ir::Node& node, std::int64_t opset, int depth,
                                     const FindBody& find_body) const;
  std::vector<ir::Type> infer_body(const ir::Node& node, const ir::Function& function,
                                   std::int64_t opset, int depth) const;

  const ir::Model& model_;
  std::int64_t opset_;
  // Types of calls of functions and of operators defined by a body, keyed by operator,
  // attributes and input types.
  mutable std::mutex mutex_;
  mutable std::map<std::string, std::vector<ir::Type>> calls_;
  // Types of nodes that depend on attributes and input types only. Models repeat layers.
  mutable std::unordered_map<std::string, std::vector<ir::Type>> nodes_;
};

}  // namespace onnxgrad::onnx_io

#endif  // ONNXGRAD_ONNX_INFERER_H_
