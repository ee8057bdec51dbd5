#ifndef ONNXGRAD_TRAIN_MASTER_WEIGHTS_H_
#define ONNXGRAD_TRAIN_MASTER_WEIGHTS_H_

#include <vector>

#include "ir/builder.h"
#include "ir/graph.h"

// Float32 copies of weights that the file stores as float16 or bfloat16: small updates would be
// lost in the rounding. The model reads them through a Cast, which rounds as the file will.

namespace onnxgrad::train {

/// Makes an initializer or input of float16 or bfloat16 float32, with a Cast for its readers;
/// others are unchanged.
void widen_weight(ir::Graph& graph, ir::Value* weight);

/// Makes running statistics float32: the operators that keep them compute them so, where their
/// definition allows that.
void widen_statistics(ir::GraphBuilder& g, std::vector<ir::StateBinding>& statistics);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_MASTER_WEIGHTS_H_
