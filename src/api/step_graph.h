#ifndef ONNXGRAD_API_STEP_GRAPH_H_
#define ONNXGRAD_API_STEP_GRAPH_H_

#include "onnxgrad/gradient.h"
#include "train/graphs/training_graph.h"

namespace onnxgrad::api {

/// Builds the step with these options for a training copy.
train::StepGraph build_step_graph(const ir::Model& working, const Loss& loss,
                                  const Optimizer& optimizer, const TrainingStepOptions& options,
                                  const opdef::CustomGradients* custom);

}  // namespace onnxgrad::api

#endif  // ONNXGRAD_API_STEP_GRAPH_H_
