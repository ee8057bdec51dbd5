#include "onnxgrad/training_info.h"

#include "api/derivative_graph.h"
#include "api/model_impl.h"
#include "api/training_session_impl.h"
#include "onnx/training_info.h"
#include "onnxgrad/training_session.h"
#include "train/graphs/loss_parts.h"
#include "train/graphs/stop_gradient.h"
#include "train/graphs/write_training_info.h"
#include "train/optimizers/optimizers.h"
#include "train/schedules/schedules.h"

namespace onnxgrad {
namespace {

void expect_one_graph(const Optimizer& optimizer) {
  if (!train::is_host_loop(optimizer)) return;
  throw ModelError({.what = "optimizer: L-BFGS is a loop around loss and gradient, not one graph",
                    .hint = "Write the training with another optimizer."});
}

void refuse_own_weights(const Loss& loss) {
  const NamedTensors own = train::own_weights(loss);
  if (own.empty() && loss.views == 1) return;
  const std::string what = own.empty() ? "the loss has several inputs in each row"
                                       : "the loss has a weight of its own, '" + own[0].name + "'";
  throw ModelError({.what = what + ", which the file of the model has no place for",
                    .hint = "Write the training with training_step()."});
}

// The steps change floating-point numbers, and the file has integers.
void expect_float_weights(const Model& model) {
  const auto& weights = model.impl().float_form().weights;
  if (weights.empty()) return;
  throw ModelError({.what = "the training of quantized weights cannot be written as training_info",
                    .where = {.value = weights.front().name},
                    .hint = "Train the model in a session, or write its training before it is "
                            "quantized."});
}

}  // namespace

bool has_training_info(const Model& model) { return onnx_io::has_training_info(model.impl().file); }

Model add_training_info(const Model& model, const Loss& loss, const Optimizer& optimizer,
                        const TrainingStepOptions& step, const TrainingInfoOptions& options) {
  expect_one_graph(optimizer);
  if (step.schedule && train::num_plateaus(*step.schedule) > 0) {
    throw ModelError({.what = "schedule: a plateau follows the losses of epochs, which a training "
                              "step does not know",
                      .hint = "Use a schedule that depends on the number of updates."});
  }
  refuse_own_weights(loss);
  const Model source = api::untied(model, step.untie);
  expect_float_weights(source);
  const ir::Model& working = *source.impl().training_copy();
  const auto stopped =
      train::with_stops(source.impl().training_copy(), train::builtin_ops(), step.stop_gradient);
  const train::StepGraph graph =
      api::build_step_graph(*stopped, loss, optimizer, step, source.impl().operators.get());
  return api::wrap(train::write_training_info({.file = *source.impl().file_graph(),
                                               .working = working,
                                               .step = graph,
                                               .state = {},
                                               .learning_rate = learning_rate_of(optimizer),
                                               .is_rewritten = !source.impl().tied().empty()},
                                              options));
}

Model TrainingSession::with_training_info(const TrainingInfoOptions& options) const {
  Model trained = trained_model();
  if (is_of_file()) return trained;
  const api::CallGuard guard(impl_->busy, api::CallGuard::Kind::kFromCallback);
  expect_one_graph(optimizer());
  const train::Session& session = impl_->session;
  refuse_own_weights(session.asked_loss());
  expect_float_weights(impl_->model);
  if (session.reads_texts()) {
    throw UnsupportedOperatorError(
        {.what = "the training of a model that reads texts cannot be written from a session",
         .hint = "Write it with add_training_info() from the trained model."});
  }
  // The step takes any number of rows, and so must the model that it is written into.
  const train::BatchForm& batch = session.batch();
  if (session.options().open_batch != BatchOpening::kOn) {
    trained = api::with_open_batch(trained, batch);
  }
  const auto& working = batch.is_opened() ? batch.model : impl_->model.impl().training_copy();
  return api::wrap(train::write_training_info({.file = *trained.impl().file_graph(),
                                               .working = *working,
                                               .step = session.graph(),
                                               .state = session.state(),
                                               .learning_rate = session.runner().learning_rate(),
                                               .is_rewritten = !impl_->model.impl().tied().empty()},
                                              options));
}

}  // namespace onnxgrad
