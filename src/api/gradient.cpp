#include "onnxgrad/gradient.h"

#include <optional>
#include <utility>

#include "api/derivative_graph.h"
#include "api/model_impl.h"
#include "ir/naming.h"
#include "train/graphs/stop_gradient.h"
#include "train/graphs/training_graph.h"
#include "train/optimizers/optimizers.h"
#include "train/tools/engine.h"

namespace onnxgrad {
Model gradient(const Model& model, const GradientOptions& options) {
  api::DerivativeGraph d(model, {.wrt = options.wrt,
                                 .outputs = options.outputs,
                                 .stop_gradient = options.stop_gradient,
                                 .keep_outputs = options.keep_outputs});
  d.g().set_scope("gradient");
  autodiff::ZeroGradients zeros;
  const auto gradients =
      options.fill_grad
          ? d.gradient_of_sum(&zeros)
          : d.vjp(d.outputs(), d.add_inputs_like(d.outputs(), "_grad"), d.wrt(), &zeros);
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const std::string& name = d.wrt()[i]->name;
    if (options.zeros != nullptr && zeros.is_zero[i]) options.zeros->push_back(name);
    d.add_output(gradients[i], name + "_grad");
  }
  return std::move(d).finish(options.write);
}

namespace api {

train::StepGraph build_step_graph(const ir::Model& working, const Loss& loss,
                                  const Optimizer& optimizer, const TrainingStepOptions& options,
                                  const opdef::CustomGradients* custom) {
  std::optional<train::ScheduleInGraph> schedule;
  if (options.schedule) {
    schedule = train::ScheduleInGraph{.schedule = *options.schedule, .epochs = options.epochs};
    if (options.updates > 0) schedule->updates = options.updates;
  }
  return train::build_step(working, train::builtin_ops(), loss, optimizer,
                           {.trainable = options.trainable,
                            .frozen = options.frozen,
                            .training_mode = options.training_mode,
                            .custom_gradients = custom,
                            .precision = options.precision,
                            .update = options.update,
                            .schedule = std::move(schedule),
                            .all_gradients = options.gradients});
}

}  // namespace api

Model training_step(const Model& model, const Loss& loss, const Optimizer& optimizer,
                    const TrainingStepOptions& options) {
  if (train::is_host_loop(optimizer)) {
    throw ModelError({.what = "optimizer: L-BFGS is a loop around loss and gradient, not one graph",
                      .hint = "Write the two with add_loss() and gradient()."});
  }
  const Model source = api::untied(model, options.untie);
  const auto working =
      train::with_stops(source.impl().training_copy(), train::builtin_ops(), options.stop_gradient);
  const train::StepGraph step =
      api::build_step_graph(*working, loss, optimizer, options, source.impl().operators.get());
  ir::Model graph = ir::clone(*step.model);
  train::remove_stops(graph);
  if (step.ports.row_losses) {  // they are the requested loss, not their sum
    auto& outputs = graph.graph->outputs;
    const auto rows = outputs.begin() + static_cast<std::ptrdiff_t>(*step.ports.row_losses);
    ir::Value* losses = *rows;
    outputs.erase(rows);
    ir::give_name(*graph.graph, outputs.front(), "loss_sum");
    outputs.front() = losses;
    ir::give_name(*graph.graph, losses, "loss");
  }
  return api::write_graph(std::move(graph), options.write);
}

}  // namespace onnxgrad
