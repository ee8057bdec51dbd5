#ifndef ONNXGRAD_AUTODIFF_CARRY_H_
#define ONNXGRAD_AUTODIFF_CARRY_H_

#include <functional>

#include "ir/builder.h"
#include "opdef/registry.h"

namespace onnxgrad::autodiff {

/// Implements opdef::VjpContext::carry(): replaces the values of `body` that g.graph() reads.
void carry_values(ir::GraphBuilder& g, ir::Graph& body, const opdef::OpRegistry& registry,
                  const std::function<ir::Value*(ir::Value*)>& save);

}  // namespace onnxgrad::autodiff

#endif  // ONNXGRAD_AUTODIFF_CARRY_H_
