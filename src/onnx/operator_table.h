#ifndef ONNXGRAD_ONNX_OPERATOR_TABLE_H_
#define ONNXGRAD_ONNX_OPERATOR_TABLE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ir/graph.h"
#include "opdef/custom_gradients.h"
#include "opdef/kernel.h"
#include "opdef/registry.h"

// Operators and gradients that users register, as functions of standard operators. A model keeps
// the table of the time when it is loaded; a table is immutable. On import a call of an operator
// without a gradient of its own is expanded; one with a gradient stays a call, of a function that
// is specialised to its types and attributes, for the backward sweep to find.

namespace onnxgrad::onnx_io {

/// The body or the gradient rule of an operator, as its file has it.
struct OperatorFunction {
  std::int64_t id = 0;  ///< number of the registration
  std::shared_ptr<const ir::Function> function = {};
  /// For a gradient rule: the inputs of the operator that its outputs belong to.
  std::vector<int> inputs = {};
};

class OperatorTable final : public opdef::CustomGradients {
 public:
  using Key = std::pair<std::string, std::string>;  ///< domain ("" is ai.onnx) and name
  using Functions = std::map<Key, std::vector<OperatorFunction>>;  ///< the last one counts

  OperatorTable() = default;
  OperatorTable(Functions bodies, Functions gradients)
      : bodies_(std::move(bodies)), gradients_(std::move(gradients)) {}

  bool is_empty() const { return bodies_.empty() && gradients_.empty(); }
  const Functions& bodies() const { return bodies_; }
  const Functions& gradients() const { return gradients_; }
  /// The body of a node's operator; nullptr if there is none. A call of a specialised function
  /// counts as one of its operator.
  const ir::Function* body_of(const ir::Node& node) const;
  const OperatorFunction* gradient_of(const ir::Node& node) const;

  bool covers(const ir::Node& node) const override { return gradient_of(node) != nullptr; }
  bool covers(const ir::Node& node, std::size_t i) const override;
  std::vector<ir::Value*> apply(opdef::VjpContext& ctx, ir::GraphBuilder& g,
                                const opdef::OpRegistry& registry) const override;

 private:
  Functions bodies_;
  Functions gradients_;
};

/// Domain of specialised functions that stand for standard operators.
inline constexpr std::string_view kReplacedDomain = "onnxgrad.replaced";

/// The table of operators registered now. Thread-safe.
std::shared_ptr<const OperatorTable> current_operators();

/// Changes the registered operators: `change` receives copies of the bodies and of the gradients,
/// and may throw. Thread-safe.
void change_operators(
    const std::function<void(OperatorTable::Functions&, OperatorTable::Functions&)>& change);

/// The operator that a node calls: domain and name without the suffix of a specialised function.
OperatorTable::Key operator_of(const ir::Node& node);

/// Maximum numbers of inputs and outputs of a standard operator; nullopt if ONNX does not have it,
/// or allows any number of either.
std::optional<std::pair<std::size_t, std::size_t>> arity_of(const OperatorTable::Key& key);

/// Replaces `node`, a node of `model` of opset `opset`, by a call of a function for its types and
/// attributes, which is added to `model`: the body, or the operator itself if `body` is null, in
/// the internal opset. Types of outputs are set.
void specialise_call(ir::Node& node, const ir::Function* body, std::int64_t opset, ir::Model& model,
                     const opdef::OpRegistry& registry, const opdef::Evaluator* evaluator,
                     const OperatorTable& table);

}  // namespace onnxgrad::onnx_io

#endif  // ONNXGRAD_ONNX_OPERATOR_TABLE_H_
