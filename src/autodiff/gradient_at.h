#ifndef ONNXGRAD_AUTODIFF_GRADIENT_AT_H_
#define ONNXGRAD_AUTODIFF_GRADIENT_AT_H_

#include <vector>

#include "ir/builder.h"
#include "opdef/custom_gradients.h"
#include "opdef/gradient_at.h"
#include "opdef/registry.h"

namespace onnxgrad::autodiff {

/// Appends to g.graph() the gradient of request.y with respect to the first request.num_xs of
/// request.named, each in the shape of the value fed for it. If each value is fed to itself, and
/// none depends on another, the existing values are differentiated. Otherwise the nodes between
/// them and y are copied for the values in request.fed, as ONNX's Operators.md defines: a named
/// value that is computed from another one is then independent of it. Nodes of enclosing graphs are
/// copied too; random nodes draw the same numbers. `custom`: as for add_vjp(). Throws:
/// GradientError.
std::vector<ir::Value*> add_gradient_at(ir::GraphBuilder& g, const opdef::OpRegistry& registry,
                                        const opdef::GradientAt& request,
                                        const opdef::CustomGradients* custom = nullptr);

}  // namespace onnxgrad::autodiff

#endif  // ONNXGRAD_AUTODIFF_GRADIENT_AT_H_
