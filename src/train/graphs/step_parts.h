#ifndef ONNXGRAD_TRAIN_STEP_PARTS_H_
#define ONNXGRAD_TRAIN_STEP_PARTS_H_

#include <memory>
#include <span>
#include <vector>

#include "ir/builder.h"
#include "onnx/inference.h"
#include "opdef/registry.h"

// Helpers for writing the graphs of a training step.

namespace onnxgrad::train {

/// A copy of the working model that is being written to.
class Draft {
 public:
  Draft(const ir::Model& working, const opdef::OpRegistry& registry)
      : model_(std::make_shared<ir::Model>(ir::clone(working))),
        inferer_(onnx_io::make_type_inferer(*model_)),
        builder_(*model_, *model_->graph, *inferer_, registry) {}

  const std::shared_ptr<ir::Model>& model() { return model_; }
  ir::Graph& graph() { return *model_->graph; }
  ir::GraphBuilder& g() { return builder_; }

 private:
  std::shared_ptr<ir::Model> model_;
  std::unique_ptr<ir::TypeInferer> inferer_;
  ir::GraphBuilder builder_;
};

/// Inputs with a default stop being inputs: in training they are constants or state. Shapes that
/// their values determine are inferred.
void close_defaults(ir::Graph& graph, const ir::TypeInferer& inferer);

/// Removes everything that `graph.outputs` do not need, including inputs.
void cut_to_outputs(ir::Graph& graph);
/// Cuts like cut_to_outputs(), but keeps all states, and `kept_inputs`.
void cut_around_state(ir::Model& model, std::span<ir::Value* const> kept_inputs = {});

/// Every state keeps its value if the loss or a new value of the state is not finite, on any of
/// several workers.
void guard_update(ir::GraphBuilder& g, ir::Value* loss, std::vector<ir::StateBinding>& state,
                  bool has_workers = false);

/// The new states become outputs "next/<state>".
void append_state_outputs(ir::Model& model);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_STEP_PARTS_H_
