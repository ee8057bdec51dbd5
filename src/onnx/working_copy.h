#ifndef ONNXGRAD_ONNX_WORKING_COPY_H_
#define ONNXGRAD_ONNX_WORKING_COPY_H_

#include <vector>

#include "ir/builder.h"
#include "onnx/model_io.h"
#include "opdef/custom_gradients.h"
#include "opdef/gradient_at.h"
#include "opdef/kernel.h"
#include "opdef/registry.h"

// The working copy of a file: the graph in the internal opset that everything after loading reads.

namespace onnxgrad::onnx_io {

/// Parts of an engine that working copies are made with; these outlive it.
struct ImportEngine {
  const opdef::OpRegistry& ops;
  const opdef::Evaluator& evaluator;  ///< computes conditions that are known
  /// autodiff::add_gradient_at(), for nodes of the operator Gradient.
  std::vector<ir::Value*> (*gradient_at)(ir::GraphBuilder& g, const opdef::OpRegistry& registry,
                                         const opdef::GradientAt& request,
                                         const opdef::CustomGradients* custom);
};

/// Returns the working copy of `file`, with the operators that users registered; see
/// to_internal(), which says what is thrown.
ir::Model to_working_copy(const FileModel& file, const ImportEngine& engine,
                          const OperatorTable* operators = nullptr);

}  // namespace onnxgrad::onnx_io

#endif  // ONNXGRAD_ONNX_WORKING_COPY_H_
