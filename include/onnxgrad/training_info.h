#ifndef ONNXGRAD_TRAINING_INFO_H_
#define ONNXGRAD_TRAINING_INFO_H_

#include <cstdint>

#include "onnxgrad/gradient.h"
#include "onnxgrad/losses.h"
#include "onnxgrad/model.h"
#include "onnxgrad/optimizers.h"

namespace [[gnu::visibility("default")]] onnxgrad {

/// Whether the model's file describes its training (ModelProto.training_info): TrainingSession and
/// Trainer then train it as the file describes, if they are given neither loss nor optimizer.
bool has_training_info(const Model& model);

struct TrainingInfoOptions {
  /// Opset of ai.onnx for the whole file, 9 to 26; 0: the model's own, or 26 if that cannot express
  /// the training.
  std::int64_t target_opset = 0;
  bool inline_functions = false;  ///< no local function remains, for runtimes without them
};

/// `model` with its training as ONNX describes one (TrainingInfoProto), in standard operators. The
/// graph `algorithm` computes the loss and a step of the optimizer; its inputs are the target and
/// the sample weight, if there is one, its initializers `learning_rate` (unless it is scheduled by
/// OptimalRate), the optimizer's slots and "step_count", its outputs the loss and "next/<state>"
/// for each state. `update_binding` binds weights and slots to these. Training information that
/// `model` already has is replaced. The model's own graph is unchanged if all trained weights are
/// initializers of it, and its opset can express the step; otherwise it is written anew, in the
/// form that onnxgrad computes, with every weight an initializer. `step` is as for training_step(),
/// whose `write` and `gradients` have no effect. Throws: what training_step throws; ModelError for
/// a schedule with plateaus, which follows the losses of epochs.
Model add_training_info(const Model& model, const Loss& loss = {},
                        const Optimizer& optimizer = Sgd{}, const TrainingStepOptions& step = {},
                        const TrainingInfoOptions& options = {});

}  // namespace onnxgrad

#endif  // ONNXGRAD_TRAINING_INFO_H_
