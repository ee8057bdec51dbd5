#include "train/graphs/training_graph.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <unordered_map>
#include <unordered_set>

#include "autodiff/gradient.h"
#include "base/check.h"
#include "ir/builder.h"
#include "ir/naming.h"
#include "ir/uses.h"
#include "onnx/inference.h"
#include "onnx/known_branches.h"
#include "onnxgrad/option_error.h"
#include "train/graphs/loss_parts.h"
#include "train/graphs/outputs.h"
#include "train/graphs/place_loss.h"
#include "train/graphs/sharpness.h"
#include "train/graphs/step_of_worker.h"
#include "train/graphs/step_outputs.h"
#include "train/graphs/step_parts.h"
#include "train/graphs/training_mode.h"
#include "train/losses/losses.h"
#include "train/optimizers/averages.h"
#include "train/optimizers/optimizers.h"
#include "train/precision/loss_scale.h"
#include "train/precision/precision.h"
#include "train/schedules/schedules.h"
#include "train/tools/engine.h"
#include "train/tools/patterns.h"
#include "train/weights/quantization_record.h"
#include "train/weights/weights.h"

namespace onnxgrad::train {
namespace {

using ir::GraphBuilder;
using ir::Value;

Value* find_in(const ir::Graph& graph, const WeightInfo& weight) {
  Value* value = graph.find(weight.name);
  ONNXGRAD_ASSERT(value != nullptr && value->is_initializer());
  return value;
}

// Weights that the loss depends on. Naming one that does not affect it is an error.
std::vector<Weight> reachable_weights(const std::vector<Weight>& selected, Value* loss,
                                      bool were_named) {
  const auto needed = ir::ancestors_of({&loss, 1});
  std::vector<Weight> reachable;
  for (const Weight& weight : selected) {
    if (needed.contains(weight.value)) {
      reachable.push_back(weight);
    } else if (were_named) {
      throw ModelError({.what = "weight '" + weight.value->name + "' has no influence on the loss",
                        .where = {.value = weight.value->name},
                        .hint = "Remove it from trainable=, or apply the loss elsewhere."});
    }
  }
  if (reachable.empty()) {
    throw ModelError({.what = "none of the trainable weights has an influence on the loss",
                      .hint = "Name weights with trainable=, or apply the loss elsewhere."});
  }
  return reachable;
}

// Nothing could be learned, whatever the data.
[[noreturn]] void refuse_zero(const autodiff::ZeroGradients& zeros) {
  constexpr std::size_t kListed = 5;
  std::string list;
  for (const ir::Node* node : std::span(zeros.ends).first(std::min(zeros.ends.size(), kListed))) {
    list += (list.empty() ? "" : ", ") + node->describe();
    if (node->name.empty() && !node->outputs.empty() && node->outputs[0] != nullptr) {
      list += " of '" + node->outputs[0]->name + "'";
    }
  }
  throw GradientError({.what = "the gradient of all weights is zero everywhere",
                       .where = zeros.ends.empty() ? Place{}
                                                   : Place{.node = zeros.ends.front()->name,
                                                           .op_type = zeros.ends.front()->op_type},
                       .detail = "It ends at what is piecewise constant: " + list + ".",
                       .hint = "Apply the loss to a value before these nodes, or replace them."});
}

// See StepGraph.
std::string class_symbol(const ResolvedLoss& resolved) {
  const ir::Type& type = resolved.scores->type;
  const bool is_open = resolved.info.is_classifier && resolved.info.num_classes == 0;
  if (!is_open || type.rank() < 2) return "";
  return type.shape->at(static_cast<std::size_t>(resolved.class_axis)).symbol();
}

// The type of the learning rate: float64 if a weight is.
DataType rate_dtype(const std::vector<Weight>& weights) {
  const bool wide = std::ranges::any_of(
      weights, [](const Weight& weight) { return weight.value->dtype() == DataType::kFloat64; });
  return wide ? DataType::kFloat64 : DataType::kFloat32;
}

std::vector<Value*> values_of(const std::vector<Weight>& weights) {
  std::vector<Value*> values;
  for (const Weight& weight : weights) values.push_back(weight.value);
  return values;
}

// Turns trained weights into inputs with their values as initial values.
void open_weights(ir::Graph& graph, const std::vector<Value*>& weights) {
  for (Value* weight : weights) {
    weight->is_input = true;
    graph.inputs.push_back(weight);
  }
}

// The weights of a session that chose them by name, in file order.
std::vector<Weight> weights_named(const std::vector<Weight>& weights,
                                  const std::vector<std::string>& names) {
  std::vector<Weight> found;
  for (const Weight& weight : weights) {
    if (std::ranges::find(names, weight.value->name) != names.end()) found.push_back(weight);
  }
  ONNXGRAD_ASSERT(found.size() == names.size());
  return found;
}

// States that keep their values: weights and slots of weights that are not trained now.
void hold_states(Draft& draft, const std::vector<Weight>& weights,
                 const std::vector<NamedTensor>& slots) {
  ir::Graph& graph = draft.graph();
  std::vector<ir::StateBinding>& state = draft.model()->state;
  for (const Weight& weight : weights) {
    open_weights(graph, {weight.value});
    state.push_back({.input = weight.value, .output = weight.value});
  }
  for (const NamedTensor& slot : slots) {
    if (graph.find(slot.name) != nullptr) continue;  // updated again
    Value* value =
        graph.add_input(slot.name, ir::Type::tensor(slot.tensor.dtype(), slot.tensor.dims()));
    value->initializer = slot.tensor;
    graph.initializers.push_back(value);
    state.push_back({.input = value, .output = value});
  }
}

std::vector<std::string> names_of(const std::vector<Weight>& weights) {
  std::vector<std::string> names;
  for (const Weight& weight : weights) names.push_back(weight.value->name);
  return names;
}

std::vector<WeightInfo> infos_of(const std::vector<Weight>& weights) {
  std::vector<WeightInfo> infos;
  std::ranges::transform(weights, std::back_inserter(infos), weight_info);
  return infos;
}

struct ChosenWeights {
  std::vector<Weight> trained;
  std::vector<Weight> held = {};
};

ChosenWeights choose_weights(const ir::Model& model, const opdef::OpRegistry& registry,
                             const Loss& loss, const StepGraphOptions& options) {
  const auto all = find_weights(model, registry);
  if (!options.exact) {
    ChosenWeights chosen{.trained = select_weights(all, options.trainable, options.frozen)};
    add_own_weights(all, loss, chosen.trained);
    return chosen;
  }
  return {.trained = weights_named(all, options.exact->trained),
          .held = weights_named(all, options.exact->held)};
}

// Trained weights, others in the state, and running statistics with their new values.
struct StateWeights {
  std::vector<Weight> trained = {};
  std::vector<Weight> held = {};
  std::vector<ir::StateBinding> statistics = {};
};

// Puts operators into training mode, but those of teachers. Statistics that they keep are neither
// trained nor held.
StateWeights enter_training(Draft& draft, const opdef::OpRegistry& registry, ChosenWeights chosen,
                            const PlacedLoss& placed, const StepGraphOptions& options) {
  Value* loss = placed.written.loss;
  auto needed = ir::ancestors_of({&loss, 1});
  for (const Value* value : placed.teachers.inner) needed.erase(value);
  StateWeights result{.held = std::move(chosen.held)};
  result.statistics = switch_on_training(draft.g(), registry, needed, values_of(chosen.trained),
                                         options.training_mode);
  const auto is_statistic = [&](const Weight& weight) {
    return std::ranges::find(result.statistics, weight.value, &ir::StateBinding::input) !=
           result.statistics.end();
  };
  std::erase_if(chosen.trained, is_statistic);
  std::erase_if(result.held, is_statistic);
  if (options.exact) {
    const auto all = find_weights(*draft.model(), registry);
    for (const Weight& weight : weights_named(all, options.exact->statistics)) {
      const auto same = [&](const Weight& other) { return other.value == weight.value; };
      if (is_statistic(weight) || std::ranges::any_of(result.held, same)) continue;
      if (std::ranges::none_of(chosen.trained, same)) result.held.push_back(weight);
    }
  }
  result.trained =
      reachable_weights(chosen.trained, loss, options.exact || !options.trainable.empty());
  return result;
}

// Running statistics as state; returns their names.
std::vector<WeightInfo> bind_statistics(Draft& draft,
                                        const std::vector<ir::StateBinding>& statistics) {
  std::vector<WeightInfo> infos;
  for (const ir::StateBinding& binding : statistics) {
    infos.push_back(weight_info({.value = binding.input}));
    open_weights(draft.graph(), {binding.input});
    draft.model()->state.push_back(binding);
  }
  return infos;
}

// The index of the new output.
std::size_t add_output(ir::Graph& graph, Value* value) {
  graph.outputs.push_back(value);
  return graph.outputs.size() - 1;
}

// Each is a separate value, in the type of the loss.
void add_log_outputs(Draft& draft, const PlacedLoss& placed, const std::vector<Value*>& gradients,
                     const StepGraphOptions& options, const StepOfWorker& worker, StepGraph& step) {
  GraphBuilder& g = draft.g();
  const auto add_loss = [&](const PlacedLoss& one) {
    Value* const like = placed.written.loss;
    const bool is_same = one.own_loss->dtype() == like->dtype();
    Value* const loss =
        worker.sum_of(is_same ? g.identity(one.own_loss) : g.cast_like(one.own_loss, like));
    step.ports.target_losses.push_back(add_output(draft.graph(), loss));
    step.target_losses.push_back(one.resolved.info.output);
  };
  g.set_scope("log");
  if (options.target_losses && !placed.others.empty()) {
    add_loss(placed);
    for (const PlacedLoss& other : placed.others) add_loss(other);
  }
  if (options.gradient_norm) {
    Value* const norm = worker.mean_of(g.identity(write_global_norm(g, gradients)));
    step.ports.gradient_norm = add_output(draft.graph(), norm);
  }
  g.set_scope("");
}

// Whether the step updates the weights, rank 0; nullptr: each step does.
Value* update_flag(GraphBuilder& g, std::span<const ir::StateBinding> bindings) {
  const auto batches = std::ranges::find_if(bindings, [](const ir::StateBinding& binding) {
    return binding.input->name == kAccumulatedBatches;
  });
  return batches == bindings.end() ? nullptr : g.equal(batches->output, g.int_scalar(0));
}

// The averages of the weights, the first bindings, and of the statistics.
std::vector<ir::StateBinding> add_averages(GraphBuilder& g, const WeightAverage& average,
                                           std::span<const ir::StateBinding> bindings,
                                           std::span<const ir::StateBinding> weights,
                                           std::span<const ir::StateBinding> statistics) {
  std::vector<ir::StateBinding> averaged(weights.begin(), weights.end());
  averaged.insert(averaged.end(), statistics.begin(), statistics.end());
  return write_average(g, average, averaged, update_flag(g, bindings));
}

ScheduleRun make_schedule(const ScheduleInGraph& spec) {
  if (!spec.updates && (needs_updates(spec.schedule) || counts_epochs(spec.schedule))) {
    throw OptionError(
        {.what = "the schedule depends on the number of updates in the whole training",
         .hint = "Pass updates=, and epochs= if the schedule counts those; "
                 "or give lengths in updates."});
  }
  return {spec.schedule, /*rate=*/0, spec.updates, spec.epochs};
}

// The learning rate, the update and all states.
void add_update(Draft& draft, const Optimizer& optimizer, const StepGraphOptions& options,
                UpdateInputs inputs, const StateWeights& weights, LossScaler* scaler,
                const StepOfWorker& worker, StepGraph& step) {
  ir::Graph& graph = draft.graph();
  inputs.learning_rate =
      graph.add_input("learning_rate", ir::Type::tensor(step.learning_rate_dtype, Dims{}));
  if (!is_host_loop(optimizer)) step.learning_rate = inputs.learning_rate->name;
  worker.bind_inputs();
  std::optional<ScheduleRun> schedule;
  std::vector<Value*> plateau_factors;
  if (options.schedule) {
    schedule = make_schedule(*options.schedule);
    inputs.schedule = &*schedule;
    for (std::size_t i = num_plateaus(options.schedule->schedule); i > 0; --i) {
      plateau_factors.push_back(
          graph.add_input("plateau_factor", ir::Type::tensor(DataType::kFloat64, Dims{})));
    }
    inputs.plateau_factors = plateau_factors;
  }
  open_weights(graph, {inputs.weights.begin(), inputs.weights.end()});
  inputs.with_own_count = step.with_own_count;
  draft.g().set_scope("update");
  const auto bindings = write_optimizer(draft.g(), optimizer, inputs, options.update);
  if (inputs.large_norm != nullptr) graph.outputs[*step.ports.large_norm] = *inputs.large_norm;
  auto& state = draft.model()->state;
  const auto slots = bindings.begin() + static_cast<std::ptrdiff_t>(inputs.weights.size());
  state.assign(bindings.begin(), slots);
  hold_states(draft, weights.held, {});
  step.statistics = bind_statistics(draft, weights.statistics);
  state.insert(state.end(), slots, bindings.end());
  if (options.update.average) {
    const auto weights_first = std::span(bindings).first(inputs.weights.size());
    const auto averages = add_averages(draft.g(), *options.update.average, bindings, weights_first,
                                       weights.statistics);
    state.insert(state.end(), averages.begin(), averages.end());
  }
  if (options.exact) hold_states(draft, {}, options.exact->held_slots);
  if (scaler != nullptr) scaler->guard(state);
  if (options.skip_non_finite && !is_host_loop(optimizer)) {
    guard_update(draft.g(), graph.outputs.front(), state, options.workers.size > 1);
  }
  append_state_outputs(*draft.model());
  // The update of a worker that owns no weight reads none of them.
  std::vector<Value*> controls;
  if (options.workers.size > 1 && !is_host_loop(optimizer)) {
    controls = std::move(plateau_factors);
    controls.push_back(inputs.learning_rate);
  }
  cut_around_state(*draft.model(), controls);
}

// Converts f16 and bf16 weights to float32 in the state.
void widen(Draft& draft, StateWeights& weights) {
  for (const auto* list : {&weights.trained, &weights.held}) {
    for (const Weight& weight : *list) widen_weight(draft.graph(), weight.value);
  }
  widen_statistics(draft.g(), weights.statistics);
}

// Turns weights into inputs that are bound to the state of a step.
void bind_weights(ir::Graph& graph, const std::vector<WeightInfo>& weights) {
  for (const WeightInfo& weight : weights) {
    Value* value = find_in(graph, weight);
    value->initializer = {};
    if (weight.dtype == DataType::kFloat32) widen_weight(graph, value);
    open_weights(graph, {value});
  }
  std::erase_if(graph.initializers, [](const Value* value) { return !value->is_initializer(); });
}

// Scores that a classification loss reads, or a distillation of scores: their products may be
// stored in 16 bits. Of numbers the rounding would be a limit of the loss.
std::unordered_set<const Value*> class_scores(const PlacedLoss& placed) {
  std::unordered_set<const Value*> scores;
  const auto add = [&](const PlacedLoss& one) {
    const bool is_distilled = std::holds_alternative<Distillation>(one.resolved.function);
    if (one.resolved.info.is_classifier || is_distilled) scores.insert(one.stored_scores);
    if (is_distilled && one.is_match) scores.insert(one.target);
  };
  add(placed);
  for (const PlacedLoss& other : placed.others) add(other);
  for (const PlacedLoss& match : placed.matches) add(match);
  return scores;
}

// Gives the gradients of learned scales their factors. Returns those of their rates.
std::unordered_map<std::string, double> scale_gradients(GraphBuilder& g, const ir::Model& model,
                                                        const std::vector<Value*>& weights,
                                                        std::vector<Value*>& gradients) {
  std::unordered_map<std::string, double> rates;
  for (const LearnedScale& scale : read_learned_scales(model)) {
    const auto found = std::ranges::find(weights, scale.name, &Value::name);
    if (found == weights.end()) continue;
    Value*& gradient = gradients[static_cast<std::size_t>(found - weights.begin())];
    if (gradient != nullptr) gradient = g.scale(gradient, scale.gradient_factor());
    rates.emplace(scale.name, scale.rate_factor());
  }
  return rates;
}

// A step that computes the loss alone.
StepGraph loss_step(Draft& draft, const PlacedLoss& placed, const Loss& loss) {
  draft.graph().outputs.clear();
  StepGraph step{.model = draft.model(),
                 .loss = placed.resolved.info,
                 .class_symbol = class_symbol(placed.resolved),
                 .ports = {.loss = add_output(draft.graph(), placed.written.loss)},
                 .is_mean = loss.reduction == Reduction::kMean};
  if (placed.sample_weight != nullptr) step.sample_weight = placed.sample_weight->name;
  cut_around_state(*draft.model());
  return step;
}

}  // namespace

StepGraph build_step(const ir::Model& working, const opdef::OpRegistry& registry, const Loss& loss,
                     const Optimizer& optimizer, const StepGraphOptions& options) {
  check_optimizer(optimizer);
  check_update_options(options.update);
  check_precision(options.precision);
  if (options.precision.type != Precision::kFloat32 && is_host_loop(optimizer)) {
    throw OptionError({.what = "precision: L-BFGS needs float32: its line search compares losses "
                               "that differ by less than the rounding to 16 bits",
                       .hint = "Omit precision=, or use another optimizer."});
  }
  Draft draft(working, registry);
  ir::Graph& graph = draft.graph();
  GraphBuilder& g = draft.g();
  close_defaults(graph, g.inferer());
  leave_training(*draft.model());
  onnx_io::take_known_branches(*draft.model(), g.inferer(), registry, builtin_evaluator());
  prepare_loss(g, loss);
  if (options.evaluation_only) return loss_step(draft, place_loss(g, registry, loss), loss);
  auto model_outputs = runnable_outputs(graph);
  ChosenWeights chosen = choose_weights(*draft.model(), registry, loss, options);
  std::vector<std::string> penalized = names_of(chosen.trained);
  std::ranges::copy(names_of(chosen.held), std::back_inserter(penalized));
  const auto worker = make_step_of_worker(draft, registry, optimizer, options);
  PlacedLoss placed = place_loss(g, registry, loss, &penalized, worker->of_loss());
  Value* loss_value = placed.written.loss;
  StateWeights state_weights = enter_training(draft, registry, std::move(chosen), placed, options);
  worker->treat_statistics(state_weights.statistics);
  widen(draft, state_weights);
  const std::vector<Weight>& weights = state_weights.trained;
  const auto weight_values = values_of(weights);

  g.set_scope("gradient");
  Value* seed = g.scalar_like(loss_value, 1);
  std::optional<LossScaler> scaler;
  if (options.precision.type == Precision::kFloat16) {
    seed = scaler.emplace(g, options.precision).scaled(seed);
  }
  autodiff::ZeroGradients zeros;
  PrecisionScope scope{.stored_scores = class_scores(placed)};
  std::vector<Value*> gradients =
      autodiff::add_vjp(g, registry, std::span(&loss_value, 1), std::span(&seed, 1), weight_values,
                        &zeros, options.custom_gradients, &scope.backward);
  if (std::ranges::find(zeros.is_zero, false) == zeros.is_zero.end()) refuse_zero(zeros);
  MixedPrecision precision = options.precision;
  // Probabilities that cancel in the gradient: products within such a loss stay float32.
  if (compares_embeddings(loss.function)) precision.float32_nodes.emplace_back("loss/*");
  lower_precision(g, registry, precision, scope);
  if (options.update.sharpness_aware) {
    gradients = sharpness_aware(g, *options.update.sharpness_aware, weight_values, gradients,
                                worker->sums_of_all(gradients));
  }
  if (scaler) scaler->unscale(gradients, loss_value, options.workers.size > 1);
  g.set_scope("");
  graph.outputs.clear();
  Value* const own_denominator = placed.written.denominator;
  loss_value = worker->sum_of_loss(placed, loss.reduction == Reduction::kMean);
  std::vector<Value*> for_update = worker->sums_for_update(gradients, weight_values);
  gradients = worker->sums_to_report(gradients, for_update);
  const auto scales = scale_gradients(g, *draft.model(), weight_values, for_update);
  StepGraph step{.model = draft.model(),
                 .loss = placed.resolved.info,
                 .class_symbol = class_symbol(placed.resolved),
                 .ports = {.loss = add_output(graph, loss_value)},
                 .learning_rate_dtype = rate_dtype(weights),
                 .weights = infos_of(weights),
                 .held = infos_of(state_weights.held),
                 .is_mean = loss.reduction == Reduction::kMean,
                 .steps_per_update = options.update.accumulate};
  if (options.exact) step.with_own_count = options.exact->with_own_count;
  ir::give_name(graph, loss_value, "loss");

  StepPorts& ports = step.ports;
  StepOutputs extra(draft, weights, gradients, std::move(model_outputs));
  if (placed.written.has_counts) ports.denominator = add_output(graph, placed.written.denominator);
  if (placed.written.rows != nullptr) ports.row_losses = add_output(graph, placed.written.rows);
  std::vector<std::string> extra_names = options.outputs;
  if (options.all_gradients) {
    for (const Value* weight : weight_values) extra_names.push_back(weight->name + "_grad");
  }
  for (const std::string& name : extra_names) {
    ports.extras.push_back(add_output(graph, extra.find(name)));
  }
  add_log_outputs(draft, placed, gradients, options, *worker, step);
  worker->add_ports(step);
  if (is_host_loop(optimizer)) {
    for (Value* gradient : gradients) ports.gradients.push_back(add_output(graph, gradient));
  }
  if (placed.sample_weight != nullptr) step.sample_weight = placed.sample_weight->name;
  Value* large_norm = nullptr;
  if (options.noise_scale) ports.small_norm = add_output(graph, write_global_norm(g, gradients));
  if (options.noise_scale) ports.large_norm = add_output(graph, g.identity(loss_value));
  add_update(draft, optimizer, options,
             {.weights = weight_values,
              .gradients = for_update,
              .denominator = step.is_mean ? own_denominator : nullptr,
              .workers = worker->update(),
              .scales = scales,
              .large_norm = options.noise_scale ? &large_norm : nullptr},
             state_weights, scaler ? &*scaler : nullptr, *worker, step);
  number_collectives(graph, options.workers.route);
  if (options.exact) step.owners = options.exact->held_owners;
  worker->describe_owners(step);
  return step;
}

EvaluationGraph build_evaluation(const ir::Model& working, const opdef::OpRegistry& registry,
                                 const Loss& loss, const std::vector<WeightInfo>& weights,
                                 const EvaluationGraphOptions& options) {
  Draft draft(working, registry);
  ir::Graph& graph = draft.graph();
  close_defaults(graph, draft.g().inferer());
  Loss reduced = loss;
  if (loss.reduction == Reduction::kNone) reduced.reduction = Reduction::kSum;
  std::vector<std::string> names;
  std::ranges::transform(weights, std::back_inserter(names), &WeightInfo::name);
  prepare_loss(draft.g(), reduced);
  const PlacedLoss placed = place_loss(draft.g(), registry, reduced, &names);
  graph.outputs.clear();
  EvaluationPorts ports{.numerator = add_output(graph, placed.written.numerator),
                        .denominator = add_output(graph, placed.written.denominator)};
  CorrectRows rows;
  if (placed.others.empty()) {
    rows = write_correct_rows(draft.g(), placed.resolved.function, placed.place());
  }
  if (rows.correct != nullptr) {
    ports.correct = add_output(graph, rows.correct);
    ports.counted = add_output(graph, rows.rows);
  }
  if (options.scores) ports.scores = add_output(graph, placed.resolved.scores);
  bind_weights(graph, weights);
  cut_to_outputs(graph);
  return {.model = draft.model(), .ports = ports};
}

std::shared_ptr<ir::Model> build_prediction(const ir::Model& working,
                                            const std::vector<Value*>& outputs,
                                            const std::vector<WeightInfo>& weights) {
  std::unordered_map<const Value*, Value*> map;
  auto model = std::make_shared<ir::Model>(ir::clone(working, &map));
  ir::Graph& graph = *model->graph;
  ir::close_defaults(graph);
  graph.outputs.clear();
  for (const Value* output : outputs) graph.outputs.push_back(map.at(output));
  bind_weights(graph, weights);
  cut_to_outputs(graph);
  return model;
}

LossGraph build_loss(const ir::Model& working, const opdef::OpRegistry& registry, const Loss& loss,
                     const std::string& loss_name) {
  Draft draft(working, registry);
  prepare_loss(draft.g(), loss);
  LossGraph result{.model = draft.model(), .first_new_node = draft.graph().nodes.size()};
  const PlacedLoss placed = place_loss(draft.g(), registry, loss);
  result.info = placed.resolved.info;
  const auto add_scores = [&](const PlacedLoss& one) {
    result.inputs.push_back({.value = one.stored_scores, .name = one.resolved.info.scores});
    for (Value* value : one.read_values) {
      result.inputs.push_back({.value = value, .name = value->name});
    }
  };
  add_scores(placed);
  for (const PlacedLoss& other : placed.others) add_scores(other);
  for (const PlacedLoss& match : placed.matches) add_scores(match);
  for (Value* input : placed.teachers.inputs) {
    result.inputs.push_back({.value = input, .name = input->name});
  }
  for (Value* weight : placed.penalized) {
    result.inputs.push_back({.value = weight, .name = weight->name});
  }
  if (std::holds_alternative<OutputLoss>(loss.function)) {
    // Targets, weights and what counts rows are inputs of the model.
    if (placed.target != nullptr) {
      result.inputs.push_back({.value = placed.target, .name = placed.target->name});
    }
  } else {
    if (placed.target != nullptr && !placed.is_match) result.targets.push_back(placed.target);
    if (placed.sample_weight != nullptr) result.targets.push_back(placed.sample_weight);
  }
  for (const PlacedLoss& other : placed.others) result.targets.push_back(other.target);
  result.loss = placed.written.rows != nullptr ? placed.written.rows : placed.written.loss;
  ir::give_name(draft.graph(), result.loss, loss_name);
  draft.graph().outputs.insert(draft.graph().outputs.begin(), result.loss);
  return result;
}

}  // namespace onnxgrad::train
