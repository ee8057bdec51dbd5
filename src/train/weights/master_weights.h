#ifndef ONNXGRAD_TRAIN_MASTER_WEIGHTS_H_
#define ONNXGRAD_TRAIN_MASTER_WEIGHTS_H_

#include <vector>

#include "ir/builder.h"
#include "ir/graph.h"

// Weights that the file stores as float16 or bfloat16 are trained in float32: small updates would
// be lost in the rounding. The model reads them through a Cast, as it will in the file.

namespace onnxgrad::train {

/// Makes an initializer or input of float16 or bfloat16 float32, with a Cast for what reads it;
/// others are unchanged.
void widen_weight(ir::Graph& graph, ir::Value* weight);

/// Makes running statistics float32: the operators that keep them compute them so, where their
/// definition allows that.
void widen_statistics(ir::GraphBuilder& g, std::vector<ir::StateBinding>& statistics);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_MASTER_WEIGHTS_H_
