#ifndef ONNXGRAD_OPDEF_GRADIENT_AT_H_
#define ONNXGRAD_OPDEF_GRADIENT_AT_H_

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "ir/builder.h"

namespace onnxgrad::opdef {

/// The request of a Gradient node (ai.onnx.preview.training): `y` is a function of
/// the values in `named`, which may be inner ones; its gradient is evaluated where these have the
/// values in `fed`.
struct GradientAt {
  ir::Value* y = nullptr;
  std::span<ir::Value* const> named;  ///< the attribute xs, then zs
  std::span<ir::Value* const> fed;    ///< one for each of `named`
  std::size_t num_xs = 0;
};

/// Writes the gradient of the sum of y's elements with respect to each of the first num_xs values.
using GradientAtFn =
    std::function<std::vector<ir::Value*>(ir::GraphBuilder& g, const GradientAt& request)>;

}  // namespace onnxgrad::opdef

#endif  // ONNXGRAD_OPDEF_GRADIENT_AT_H_
