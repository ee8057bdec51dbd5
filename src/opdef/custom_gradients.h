#ifndef ONNXGRAD_OPDEF_CUSTOM_GRADIENTS_H_
#define ONNXGRAD_OPDEF_CUSTOM_GRADIENTS_H_

#include <cstddef>
#include <vector>

#include "opdef/op_def.h"

namespace onnxgrad::opdef {

class OpRegistry;

/// Gradient rules that users registered; they take precedence over the registry's.
class CustomGradients {
 public:
  virtual ~CustomGradients() = default;
  /// True if there is a rule for the operator of `node`.
  virtual bool covers(const Node& node) const = 0;
  /// True if that rule has a gradient for input `i`; for the other inputs it is zero.
  virtual bool covers(const Node& node, std::size_t i) const = 0;
  /// Applies the gradient of a node that it covers, as VjpFn does. Throws: GradientError.
  virtual std::vector<Value*> apply(VjpContext& ctx, GraphBuilder& g,
                                    const OpRegistry& registry) const = 0;
};

}  // namespace onnxgrad::opdef

#endif  // ONNXGRAD_OPDEF_CUSTOM_GRADIENTS_H_
