#include "train/session/session.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "onnxgrad/option_error.h"
#include "train/data/targets.h"
#include "train/graphs/file_training.h"
#include "train/graphs/graph_description.h"
#include "train/graphs/loss_parts.h"
#include "train/graphs/place_loss.h"
#include "train/graphs/stop_gradient.h"
#include "train/graphs/training_mode.h"
#include "train/losses/losses.h"
#include "train/optimizers/optimizers.h"
#include "train/session/forward_runner.h"
#include "train/session/mixed_targets.h"
#include "train/session/session_weights.h"
#include "train/session/shared_slots.h"
#include "train/session/trained_set.h"
#include "train/tools/device_links.h"
#include "train/tools/feeds.h"

namespace onnxgrad::train {
namespace {

using runtime::Port;

std::int64_t rows_of(const Tensor& target) {
  return target.dims().rank() > 0 ? target.dims()[0] : 1;
}

constexpr const char* kFileTrainingHint =
    "Pass loss= and optimizer= to train the model otherwise than its file describes.";

// Options of a step that we write.
void check_for_file_training(const TrainingOptions& options) {
  const UpdateOptions& update = options.update;
  const std::pair<const char*, bool> given[] = {
      {"trainable=", !options.trainable.empty()},
      {"frozen=", !options.frozen.empty()},
      {"outputs=", !options.outputs.empty()},
      {"groups=", !update.groups.empty()},
      {"clip_value=", update.clip_value.has_value()},
      {"clip_norm=", update.clip_norm.has_value()},
      {"average=", update.average.has_value()},
      {"sam=", update.sharpness_aware.has_value()},
      {"accumulate=", update.accumulate != 1},
      {"stop_gradient=", !options.stop_gradient.empty()},
      {"training_mode=", options.training_mode != TrainingMode::kAuto},
      {"precision=", options.precision.type != Precision::kFloat32}};
  for (const auto& [name, is_given] : given) {
    if (!is_given) continue;
    throw OptionError({.what = fmt::format("{} has no effect on the training that the model's file "
                                           "describes",
                                           name),
                       .hint = kFileTrainingHint});
  }
}

void check_workers(const WorkerOptions& options, const Optimizer& optimizer) {
  const bool updates_alone = options.sync_every > 1;
  if (options.sync_every < 1) {
    throw OptionError(
        {.what = fmt::format("sync_every is {}, expected 1 or more", options.sync_every),
         .hint = "1: workers add up their gradients in every step."});
  }
  if (is_host_loop(optimizer) && (options.shares_update || updates_alone)) {
    throw OptionError({.what = "L-BFGS takes neither zero= nor sync_every=",
                       .hint = "Leave them out, or use another optimizer."});
  }
  if (options.shares_update && std::holds_alternative<ScheduleFreeAdamW>(optimizer)) {
    throw OptionError({.what = "schedule-free AdamW takes no zero=: every worker needs its average",
                       .hint = "Leave zero= out, or use AdamW with average='ema'."});
  }
  if (!updates_alone) return;
  if (options.shares_update || options.sync_normalization) {
    throw OptionError({.what = "sync_every= is for workers that update their own weights: without "
                               "zero= and sync_batch_norm=",
                       .hint = "Leave these out, or use sync_every=1."});
  }
}

double first_rate(const Optimizer& optimizer) {
  return std::visit([](const auto& spec) { return spec.learning_rate; }, optimizer);
}

}  // namespace

Session::Session(Source source, const Loss& loss, const Optimizer& optimizer,
                 const TrainingOptions& options)
    : Session(std::move(source), loss, optimizer, options, nullptr) {}

Session::Session(const onnx_io::FileModel& file, std::shared_ptr<const FileTraining> training,
                 const TrainingOptions& options)
    : Session({.file = file, .working = training->working()}, training->loss(), Sgd{}, options,
              training) {}

Session::Session(Source source, const Loss& loss, const Optimizer& optimizer,
                 const TrainingOptions& options, std::shared_ptr<const FileTraining> training)
    : source_(std::move(source)),
      training_(std::move(training)),
      loss_(loss),
      optimizer_(optimizer),
      options_(options),
      backend_(backend_for(options.engine)),
      workers_(options.workers.communicator),
      checks_(options.engine.warn) {
  workers_.set_rows_of_unit(rows_of_unit(loss.function));
  if (workers_.has_others()) {
    if (training_ != nullptr) {
      throw OptionError({.what = "the training that the model's file describes cannot be shared "
                                 "among workers",
                         .hint = kFileTrainingHint});
    }
    check_workers(options.workers, optimizer);
    link_device(backend_.engine->device, options.workers);
  }
  charge_file();
  check_average(options.update, optimizer);
  if (training_ == nullptr) {
    source_.working = in_inference_form(std::move(source_.working));
    open_batch();
  }
  source_.working = with_stops(std::move(source_.working), builtin_ops(), options.stop_gradient);
  source_.working = with_own_weights(std::move(source_.working), loss_);
  const std::shared_ptr<const ir::Model> given = source_.working;
  if (training_ == nullptr) {
    NumberedModel numbered = number_texts(given);
    source_.working = std::move(numbered.model);
    texts_ = std::move(numbered.texts);
  } else {
    check_for_file_training(options);
  }
  build_first();
  step_->set_learning_rate(training_ == nullptr ? first_rate(optimizer)
                                                : training_->learning_rate());
  values_ = find_session_values({.source = source_,
                                 .given = *given,
                                 .step = *step_,
                                 .loss = loss_,
                                 .batch = batch_,
                                 .training = training_.get(),
                                 .texts = texts_.get()});
}

// The file was read before there was a limit. Plans read weights that are not trained in it.
void Session::charge_file() {
  if (source_.file.bytes == nullptr) return;
  backend_.options.counted_elsewhere = source_.file.bytes->memory();
  if (!backend_.options.fits_budget) return;
  const auto bytes = std::ssize(source_.file.bytes->memory());
  backend_.options.budget->reserve(bytes);
  file_charge_ = {nullptr, [budget = backend_.options.budget, bytes](const void* /*nothing*/) {
                    budget->release(bytes);
                  }};
}

// The first step, with weights for rows if batches are filled up. A loss that the model itself
// computes, or a formula over whole batches, takes none: then only whole batches are possible.
void Session::build_first() {
  if (batch_.fixed_rows() > 0 && training_ == nullptr &&
      !std::holds_alternative<OutputLoss>(loss_.function)) {
    build({});
    // A first dimension that the scores do not have counts no rows: indices of bags, say.
    const ir::Value* const scores = source_.working->graph->find(loss().scores);
    const bool is_known = scores != nullptr && scores->type.has_rank() && scores->type.rank() > 0;
    const bool has_rows = !is_known || ((*scores->type.shape)[0].is_static() &&
                                        (*scores->type.shape)[0].value() == batch_.fixed_rows());
    if (!has_rows) {
      batch_ = {.model = batch_.model};
      build({});
      return;
    }
  }
  const bool fills = batch_.fixed_rows() > 1 && loss_.sample_weight.empty() &&
                     training_ == nullptr && !std::holds_alternative<OutputLoss>(loss_.function);
  if (fills) {
    loss_.sample_weight = "sample_weight";
    try {
      build({});
      fills_batches_ = true;
      return;
    } catch (const ModelError&) {
      loss_.sample_weight.clear();
    }
  }
  build({});
}

// The dimension that the file fixes. A session on the training that a file describes keeps it.
void Session::open_batch() {
  const bool opens = options_.open_batch != BatchOpening::kOff;
  batch_ = opens ? train::open_batch(source_.working) : keep_batch(source_.working);
  if (options_.open_batch == BatchOpening::kOn && batch_.fixed_rows() > 0) {
    throw ModelError({.what = "the batch dimension cannot be opened: " + batch_.obstacle,
                      .hint = "Omit open_batch=True: batches of " + std::to_string(batch_.rows) +
                              " rows are then filled up; or export the model with a dynamic "
                              "batch, in PyTorch dynamic_shapes={\"x\": {0: \"batch\"}}."});
  }
  source_.working = batch_.model;
}

StepGraph Session::write_step(const std::optional<TrainedSet>& set, bool of_worker) const {
  if (training_ != nullptr) return training_->build(options_.skip_non_finite);
  WorkerGraphOptions workers;
  if (of_worker && !options_.evaluation_only) {
    workers = {.size = workers_.size(),
               .as_bfloat16 = options_.workers.as_bfloat16,
               .route = route_of(options_.workers.exchange),
               .syncs_normalization = options_.workers.sync_normalization,
               .updates_alone = updates_alone(),
               .rank = workers_.rank(),
               .shares_update = options_.workers.shares_update};
  }
  StepGraph step =
      build_step(*source_.working, builtin_ops(),
                 reads_mixed_targets_ ? mixed_form(loss_, step_->graph().loss) : loss_, optimizer_,
                 {.trainable = options_.trainable,
                  .frozen = options_.frozen,
                  .exact = set,
                  .training_mode = options_.training_mode,
                  .custom_gradients = source_.gradients.get(),
                  .precision = options_.precision,
                  .skip_non_finite = options_.skip_non_finite,
                  .update = options_.update,
                  .outputs = options_.outputs,
                  .target_losses = true,
                  .gradient_norm = logs_gradient_norm_,
                  .noise_scale = logs_noise_scale_,
                  .evaluation_only = options_.evaluation_only,
                  .workers = workers});
  if (reads_mixed_targets_) step.loss = step_->graph().loss;  // of rows as they are given
  return step;
}

std::string Session::checksum() const {
  if (!workers_.has_others()) return training_checksum(graph());
  if (checksum_.empty()) {
    checksum_ = training_checksum(write_step(built_with_, /*of_worker=*/false));
  }
  return checksum_;
}

bool Session::has_own_state() const {
  if (!workers_.has_others()) return false;
  const bool has_statistics = !graph().statistics.empty() && !options_.workers.sync_normalization;
  return !graph().owners.empty() || step_->state().outer() != nullptr || has_statistics ||
         graph().steps_per_update > 1;
}

// The step with initial values, all or nothing. Returns the previous one.
// With `keeps_state`, its memory becomes the new one's where that has the same states.
std::unique_ptr<StepRunner> Session::build(const std::optional<TrainedSet>& set, bool keeps_state) {
  if (is_fitting_) {
    throw Error({.what = "the trained weights cannot be changed while fit() runs",
                 .hint = "Freeze and unfreeze between two fits."});
  }
  Backend backend = backend_;
  if (keeps_state && step_ != nullptr) backend.options.state_of = &step_->executor();
  std::optional<OuterStep::Options> outer;
  if (updates_alone()) {
    outer = {.every = options_.workers.sync_every,
             .rate = options_.workers.outer_learning_rate,
             .momentum = options_.workers.outer_momentum};
  }
  StepGraph graph = write_step(set);
  // Slots that are now shared in another way are other states, if only on some of the workers.
  if (step_ != nullptr && graph.owners != step_->graph().owners) backend.options.state_of = nullptr;
  auto step = std::make_unique<StepRunner>(std::move(graph), std::get_if<Lbfgs>(&optimizer_),
                                           backend, workers_, outer);
  step->set_fixed_rows(batch_.fixed_rows());
  step->read_averages(step_ == nullptr ? evaluates_average(options_.update)
                                       : step_->reads_averages());
  workers_.forget();
  built_with_ = set;
  checksum_.clear();
  if (step_ != nullptr) {
    step->set_learning_rate(step_->learning_rate());
    step->set_steps(step_->steps());
    step->set_seed(step_->seed());
  }
  evaluation_.reset();
  predictions_.clear();
  const std::scoped_lock lock(replacing_);
  return std::exchange(step_, std::move(step));
}

void Session::expect_own_step(const std::string& what) const {
  if (training_ == nullptr) return;
  throw OptionError(
      {.what = what + ": the model's file describes its training", .hint = kFileTrainingHint});
}

void Session::expect_training() const {
  if (!options_.evaluation_only) return;
  throw OptionError({.what = "this session only evaluates and predicts: it was made with "
                             "evaluation_only",
                     .hint = "Make another without it."});
}

void Session::expect_learning_rate() const {
  expect_training();
  if (training_ == nullptr || !graph().learning_rate.empty()) return;
  throw OptionError({.what = "the training that the model's file describes has no learning rate "
                             "that can be set",
                     .detail = "That is an initializer 'learning_rate' of algorithm, one "
                               "floating-point number of rank 0 that nothing updates.",
                     .hint = kFileTrainingHint});
}

void Session::change_trained(TrainedSet set) {
  hold_slots(set, *step_);
  const auto before = build(set, /*keeps_state=*/true);
  step_->state().take(before->state());
  if (graph().owners != before->graph().owners) move_slots(*step_, *before);
}

template <class T>
void Session::change(T& option, T value) {
  std::swap(option, value);
  try {
    change_trained(trained_set(graph()));
  } catch (...) {
    std::swap(option, value);
    throw;
  }
}

void Session::freeze(std::span<const std::string> patterns) {
  expect_own_step("the trained weights cannot be changed");
  TrainedSet set = trained_set(graph());
  train::freeze(set, patterns, *source_.working);
  change_trained(std::move(set));
}

void Session::unfreeze(std::span<const std::string> patterns) {
  expect_own_step("the trained weights cannot be changed");
  TrainedSet set = trained_set(graph());
  const std::size_t before = set.trained.size();
  train::unfreeze(set, patterns, *source_.working);
  if (set.trained.size() > before) change_trained(std::move(set));
}

void Session::ask_loss(Loss loss) { change(loss_, std::move(loss)); }

void Session::use_sample_weights(const std::string& name, bool of_places) {
  if (!loss_.sample_weight.empty() && (loss_.weigh_places || !of_places)) return;
  expect_own_step("there is no input for sample weights");
  Loss weighted = loss_;
  if (weighted.sample_weight.empty()) weighted.sample_weight = name;
  weighted.weigh_places = of_places;
  ask_loss(std::move(weighted));
}

void Session::guard_updates() {
  if (!options_.skip_non_finite) change(options_.skip_non_finite, true);
}

void Session::log_gradient_norm(bool wanted) {
  if (wanted) expect_own_step("the norm of the gradients is not known");
  if (logs_gradient_norm_ != wanted) change(logs_gradient_norm_, wanted);
}

void Session::log_noise_scale(bool wanted) {
  if (wanted) expect_own_step("the noise scale of the gradients is not known");
  if (logs_noise_scale_ != wanted) change(logs_noise_scale_, wanted);
}

void Session::read_mixed_targets(bool wanted) {
  if (wanted) expect_own_step("targets cannot be mixed");
  const bool needs_change = wanted && needs_mixed_form(loss());
  if (reads_mixed_targets_ != needs_change) change(reads_mixed_targets_, needs_change);
}

StepResult Session::step(const NamedTensors& feeds, OnDevice on_device) {
  expect_training();
  if (reads_mixed_targets_) read_mixed_targets(false);
  filler().expect_whole_batch(feeds);
  if (texts_ != nullptr) return step_on(fit_feeds(*this, encode_texts(texts_.get(), feeds)), {});
  if (needs_fitting(*this, feeds)) return step_on(fit_feeds(*this, feeds), on_device);
  return step_on(feeds, on_device);
}

// Tells the step which rows of the batch of all workers are this one's.
void Session::share_rows(std::int64_t rows) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(workers_.size()), 0);
  const auto mine = all.begin() + workers_.rank();
  *mine = rows;
  workers_.add_up(std::span(all));
  step_->set_rows({.first = std::accumulate(all.begin(), mine, std::int64_t{0}), .rows = rows},
                  std::accumulate(all.begin(), all.end(), std::int64_t{0}));
}

StepResult Session::step_on(const NamedTensors& feeds, OnDevice on_device) {
  const auto ports = step_->data_ports();
  const NamedTensors filled = fills_batches_ ? filler().with_weights(feeds) : NamedTensors();
  const auto ordered = order_feeds(fills_batches_ ? filled : feeds, ports, values_.unused_inputs);
  checks_.check(checked_step(), ports, ordered);
  runtime::Execution& plan = bind_all(*step_, ordered, on_device);
  if (workers_.has_others()) share_rows(ordered.empty() ? 1 : rows_of(*ordered.front()));
  StepRunner::Results results = step_->run_with_results(plan);
  return {.loss = results.loss,
          .row_losses = std::move(results.row_losses),
          .outputs = std::move(results.outputs)};
}

std::shared_ptr<Evaluation> Session::evaluation(bool with_scores) {
  if (evaluation_ == nullptr || (with_scores && !evaluation_->has_scores())) {
    evaluation_ = std::make_shared<Evaluation>(
        build_evaluation(
            *source_.working, builtin_ops(), loss_,
            training_ == nullptr ? graph().state_weights() : training_->evaluated_states(),
            {.scores = with_scores}),
        *step_, backend_);
  }
  return evaluation_;
}

Tensor Session::encode_target(const Tensor& labels, const std::string& output) const {
  const LossInfo all = copy_loss();
  return train::encode_target(output.empty() ? all : find_loss_on(all, output), labels);
}

LossInfo Session::copy_loss() const {
  const std::scoped_lock lock(replacing_);
  return loss();
}

std::vector<WeightInfo> Session::copy_weight_infos() const {
  const std::scoped_lock lock(replacing_);
  return graph().weights;
}

double Session::learning_rate() const {
  const std::scoped_lock lock(replacing_);
  return step_->learning_rate();
}

std::int64_t Session::steps() const {
  const std::scoped_lock lock(replacing_);
  return step_->steps();
}

EvaluationResult Session::evaluate(const NamedTensors& feeds, OnDevice on_device) {
  if (texts_ != nullptr) {
    return evaluate_on(fit_feeds(*this, encode_texts(texts_.get(), feeds)), {});
  }
  if (needs_fitting(*this, feeds)) return evaluate_on(fit_feeds(*this, feeds), on_device);
  return evaluate_on(feeds, on_device);
}

EvaluationResult Session::evaluate_on(const NamedTensors& feeds, OnDevice on_device) {
  if (const auto rows = filler().rows_to_split(feeds)) return evaluate_parts(feeds, *rows);
  const NamedTensors filled = fills_batches_ ? filler().with_weights(feeds) : NamedTensors();
  std::int64_t rows = 0;
  const LossSums sums = sums_on(fills_batches_ ? filled : feeds, on_device, rows);
  return result_of(sums, rows);
}

EvaluationResult Session::evaluate_parts(const NamedTensors& feeds, std::int64_t rows) {
  const std::int64_t fixed = batch_.fixed_rows();
  const BatchFiller filler = this->filler();
  filler.expect_filling(rows);
  const NamedTensors weighted = filler.with_weights(feeds);
  LossSums sums;
  std::int64_t batch_rows = 0;
  for (std::int64_t begin = 0; begin < rows; begin += fixed) {
    sums += sums_on(filler.batch_of(weighted, begin, rows), {}, batch_rows);
  }
  return result_of(sums, rows);
}

// `rows`: of the targets, or of the first input if the loss has none.
LossSums Session::sums_on(const NamedTensors& feeds, OnDevice on_device, std::int64_t& rows) {
  const auto evaluated = evaluation();
  const auto ports = evaluated->data_ports();
  const auto ordered = order_feeds(feeds, ports, values_.unused_inputs);
  for (std::size_t i = 0; i < ports.size(); ++i) {
    if (find_target(loss(), ports[i].name) != nullptr) rows = rows_of(*ordered[i]);
  }
  if (loss().target.name.empty() && !ordered.empty()) rows = rows_of(*ordered[0]);
  checks_.check(checked_step(), ports, ordered);
  return evaluated->run(bind_all(*evaluated, ordered, on_device));
}

EvaluationResult Session::result_of(const LossSums& sums, std::int64_t rows) {
  EvaluationResult result{.rows = rows};
  result.loss = graph().is_mean ? mean_of(sums.numerator, sums.denominator) : sums.numerator;
  if (evaluation()->counts_correct_rows()) result.accuracy = mean_of(sums.correct, sums.counted);
  return result;
}

std::vector<Tensor> Session::predict(const NamedTensors& feeds,
                                     std::span<const std::string> output_names) {
  if (const auto rows = filler().rows_to_split(feeds))
    return predict_parts(feeds, *rows, output_names);
  return predict_batch(feeds, output_names);
}

std::vector<Tensor> Session::predict_parts(const NamedTensors& feeds, std::int64_t rows,
                                           std::span<const std::string> output_names) {
  const std::int64_t fixed = batch_.fixed_rows();
  std::vector<std::vector<Tensor>> parts;  // per output, of all batches
  for (std::int64_t begin = 0; begin < rows; begin += fixed) {
    const auto outputs = predict_batch(filler().batch_of(feeds, begin, rows), output_names);
    parts.resize(outputs.size());
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      const Tensor& output = outputs[i];
      if (output.dims().rank() == 0 || output.dims()[0] != fixed) {
        throw ShapeError(
            {.what = fmt::format("an output of shape {} has no row for each of the {} rows that "
                                 "the file's batch has",
                                 output.dims().to_string(), fixed),
             .hint = fmt::format("Name the other outputs, or give {} rows at a time.", fixed)});
      }
      const std::int64_t left = std::min(fixed, rows - begin);
      parts[i].push_back(left < fixed ? first_rows(output, left) : output);
    }
  }
  std::vector<Tensor> results;
  for (const std::vector<Tensor>& outputs : parts) results.push_back(joined_rows(outputs));
  return results;
}

std::vector<Tensor> Session::predict_batch(const NamedTensors& feeds,
                                           std::span<const std::string> output_names) {
  return prediction(output_names).run(encode_texts(texts_.get(), feeds), input_names());
}

Prediction& Session::prediction(std::span<const std::string> output_names) {
  constexpr std::size_t kMaxPredictions = 4;
  const std::vector<std::size_t> wanted = choose_outputs(values_.runnable, output_names);
  const auto known =
      std::ranges::find_if(predictions_, [&](const auto& entry) { return entry.first == wanted; });
  if (known != predictions_.end()) {
    predictions_.splice(predictions_.begin(), predictions_, known);
  } else {
    std::vector<RunnableOutput> outputs;
    for (const std::size_t i : wanted) outputs.push_back(values_.runnable[i]);
    if (predictions_.size() == kMaxPredictions) predictions_.pop_back();
    predictions_.emplace_front(
        std::piecewise_construct, std::forward_as_tuple(wanted),
        std::forward_as_tuple(*source_.working, std::move(outputs), *step_, backend_));
  }
  return predictions_.front().second;
}

std::vector<std::string> Session::input_names() const {
  std::vector<std::string> names;
  for (const ValueInfo& input : values_.inputs) names.push_back(input.name);
  return names;
}

NamedTensors Session::state() const {
  NamedTensors result = step_->state().read();
  for (NamedTensor& entry : result) entry.tensor = entry.tensor.clone();
  return result;
}

void Session::reset() {
  step_->set_steps(0);
  if (graph().held.empty() && graph().with_own_count.empty()) return step_->state().reset();
  TrainedSet set = trained_set(graph());
  set.with_own_count.clear();  // all begin together
  build(set);
}

MemoryReport Session::memory() const {
  MemoryReport report{
      .snapshots = step_->snapshot_bytes(),
      .file = source_.file.bytes == nullptr ? 0 : std::ssize(source_.file.bytes->memory())};
  add_memory(report, step_->executor());
  for (const WeightInfo& weight : graph().state_weights()) {
    const auto& states = step_->executor().state();
    const ir::Type& type = states[step_->state().find(weight.name).value()].type;
    report.weights += type.fixed_dims().size_bytes(type.dtype);
  }
  report.optimizer_state = step_->state().bytes() - report.weights;
  if (evaluation_ != nullptr) report.evaluation += evaluation_->memory_bytes();
  for (const auto& [outputs, prediction] : predictions_) {
    report.evaluation += prediction.memory_bytes();
  }
  return report;
}

}  // namespace onnxgrad::train
