#include "onnxgrad/training_session.h"

#include <fmt/format.h>

#include <utility>

#include "api/call_guard.h"
#include "api/measures.h"
#include "api/training_session_impl.h"
#include "train/checkpoints/checkpoint_folder.h"
#include "train/graphs/weights_line.h"
#include "train/session/session_checkpoint.h"

namespace onnxgrad {

using api::CallGuard;
using Kind = CallGuard::Kind;

namespace {

// Session with the training that the file describes, if it describes one.
std::unique_ptr<TrainingSession::Impl> make_impl(const Model& model,
                                                 const TrainingOptions& options) {
  if (!has_training_info(model)) {
    return std::make_unique<TrainingSession::Impl>(model, Loss{}, Sgd{}, options);
  }
  auto loaded = std::make_shared<Model::Impl>(model.impl().current_file(), model.impl().options);
  loaded->operators = model.impl().operators;
  return std::make_unique<TrainingSession::Impl>(Model(loaded), loaded->file, options);
}

}  // namespace

TrainingSession::TrainingSession(const Model& model, const Loss& loss, const Optimizer& optimizer,
                                 const TrainingOptions& options)
    : impl_(std::make_unique<Impl>(model, loss, optimizer, options)) {
  // Throws before the training if trained_model() could not write the opened batch.
  if (options.open_batch == BatchOpening::kOn) open_batch(impl_->model);
}
TrainingSession::TrainingSession(const Model& model, const TrainingOptions& options)
    : impl_(make_impl(model, options)) {}
TrainingSession::~TrainingSession() = default;
TrainingSession::TrainingSession(TrainingSession&&) noexcept = default;
TrainingSession& TrainingSession::operator=(TrainingSession&&) noexcept = default;

StepResult TrainingSession::step(const NamedTensors& feeds) {
  const CallGuard guard(impl_->busy);
  return impl_->session.step(feeds);
}

EvaluationResult TrainingSession::evaluate(const NamedTensors& feeds) {
  const CallGuard guard(impl_->busy, Kind::kFromCallback);
  return impl_->session.evaluate(feeds);
}

std::vector<Tensor> TrainingSession::predict(const NamedTensors& feeds,
                                             std::span<const std::string> output_names) {
  const CallGuard guard(impl_->busy, Kind::kFromCallback);
  return impl_->session.predict(feeds, output_names);
}

StepResult TrainingSession::step(const NamedDeviceTensors& feeds) {
  const CallGuard guard(impl_->busy);
  return impl_->session.step(feeds);
}

EvaluationResult TrainingSession::evaluate(const NamedDeviceTensors& feeds) {
  const CallGuard guard(impl_->busy, Kind::kFromCallback);
  return impl_->session.evaluate(feeds);
}

std::vector<DeviceTensor> TrainingSession::predict_on_device(
    const NamedDeviceTensors& feeds, std::span<const std::string> output_names) {
  const CallGuard guard(impl_->busy, Kind::kFromCallback);
  return impl_->session.predict_on_device(feeds, output_names);
}

const std::vector<ValueInfo>& TrainingSession::inputs() const { return impl_->session.inputs(); }

const std::vector<ValueInfo>& TrainingSession::outputs() const { return impl_->session.outputs(); }

bool TrainingSession::is_of_file() const { return impl_->session.file_training() != nullptr; }

LossInfo TrainingSession::loss() const { return impl_->session.copy_loss(); }

const Optimizer& TrainingSession::optimizer() const { return impl_->session.optimizer(); }

std::vector<WeightInfo> TrainingSession::trained_weights() const {
  return impl_->session.copy_weight_infos();
}

const std::vector<SeparatedWeight>& TrainingSession::separated_weights() const {
  return impl_->model.impl().separated;
}

std::string TrainingSession::weights_line() const {
  const CallGuard guard(impl_->busy, Kind::kFromCallback);
  return train::weights_line(*impl_->session.source().working, impl_->session.graph(),
                             impl_->session.options(), impl_->model.weights()) +
         train::separation_line(separated_weights()) +
         (is_of_file() ? "" : train::tie_line(impl_->model.impl().tied()));
}

std::vector<std::string> TrainingSession::pattern_warnings(
    std::span<const std::string> patterns) const {
  const CallGuard guard(impl_->busy, Kind::kFromCallback);
  const ir::Model& working = *impl_->session.source().working;
  if (!patterns.empty()) return train::pattern_warnings(working, patterns);
  const TrainingOptions& options = impl_->session.options();
  std::vector<std::string> given = options.trainable;
  given.insert(given.end(), options.frozen.begin(), options.frozen.end());
  for (const ParameterGroup& group : options.update.groups) {
    given.insert(given.end(), group.patterns.begin(), group.patterns.end());
  }
  for (const Penalty& penalty : impl_->session.asked_loss().penalties) {
    given.insert(given.end(), penalty.weights.begin(), penalty.weights.end());
  }
  return train::pattern_warnings(working, given);
}

void TrainingSession::freeze(std::span<const std::string> patterns) {
  const CallGuard guard(impl_->busy);
  impl_->session.freeze(patterns);
}

void TrainingSession::unfreeze(std::span<const std::string> patterns) {
  const CallGuard guard(impl_->busy);
  impl_->session.unfreeze(patterns);
}

Tensor TrainingSession::encode_target(const Tensor& labels, const std::string& output) const {
  return impl_->session.encode_target(labels, output);
}

void TrainingSession::use_sample_weights(const std::string& name, bool of_places) {
  const CallGuard guard(impl_->busy);
  impl_->session.use_sample_weights(name, of_places);
}

double TrainingSession::learning_rate() const { return impl_->session.learning_rate(); }

void TrainingSession::set_learning_rate(double learning_rate) {
  const CallGuard guard(impl_->busy, Kind::kFromCallback);
  impl_->session.expect_learning_rate();
  impl_->session.runner().set_learning_rate(learning_rate);
}

std::int64_t TrainingSession::steps() const { return impl_->session.steps(); }

NamedTensors TrainingSession::weights() const {
  const CallGuard guard(impl_->busy, Kind::kFromCallback);
  return impl_->session.weight_views();
}

NamedTensors TrainingSession::state() const {
  const CallGuard guard(impl_->busy, Kind::kFromCallback);
  return impl_->session.state();
}

void TrainingSession::load_state(const NamedTensors& state) {
  const CallGuard guard(impl_->busy);
  impl_->session.runner().state().load(state);
}

void TrainingSession::save(const std::string& path) const {
  const CallGuard guard(impl_->busy, Kind::kFromCallback);
  train::Checkpoint checkpoint = train::checkpoint_of(impl_->session);
  train::save_checkpoint_file(path, checkpoint);
}

void TrainingSession::load(const std::string& path) {
  const CallGuard guard(impl_->busy);
  train::restore_session(impl_->session, train::read_checkpoint(path));
}

void TrainingSession::reset() {
  const CallGuard guard(impl_->busy);
  impl_->session.reset();
}

bool TrainingSession::has_average() const {
  const CallGuard guard(impl_->busy, Kind::kFromCallback);
  return impl_->session.has_average();
}

bool TrainingSession::uses_average() const {
  const CallGuard guard(impl_->busy, Kind::kFromCallback);
  return impl_->session.uses_average();
}

void TrainingSession::use_average(bool on) {
  const CallGuard guard(impl_->busy);
  impl_->session.use_average(on);
}

Model TrainingSession::trained_model(WeightKind kind) const {
  const CallGuard guard(impl_->busy, Kind::kFromCallback);
  if (is_of_file()) {
    return Model(std::make_shared<const Model::Impl>(impl_->model.impl(), impl_->session.state(),
                                                     impl_->session.graph().model));
  }
  Model trained = api::with_trained_weights(impl_->model, impl_->session.weights(kind));
  if (impl_->session.options().open_batch != BatchOpening::kOn) return trained;
  return api::with_open_batch(trained, impl_->session.batch());
}

std::int64_t TrainingSession::fixed_batch() const { return impl_->session.batch().fixed_rows(); }

std::string TrainingSession::batch_line() const {
  const train::BatchForm& batch = impl_->session.batch();
  if (batch.rows == 0) return "";
  std::string line =
      fmt::format("batch: {} row{} in the file, ", batch.rows, batch.rows == 1 ? "" : "s");
  if (!batch.is_opened()) {
    return line + "not opened (" + batch.obstacle + "): smaller batches are filled up";
  }
  const bool writes = impl_->session.options().open_batch == BatchOpening::kOn;
  return line + (writes ? "opened, also in the trained model"
                        : "opened; the trained model keeps the file's shape");
}

std::string TrainingSession::plan_summary() const {
  const CallGuard guard(impl_->busy, Kind::kFromCallback);
  return impl_->session.runner().plan_summary();
}

void TrainingSession::set_profiling(bool on) {
  const CallGuard guard(impl_->busy, Kind::kFromCallback);
  impl_->session.runner().executor().set_profiling(on);
}

Profile TrainingSession::profile() const {
  const CallGuard guard(impl_->busy, Kind::kFromCallback);
  return api::profile_of(impl_->session.runner().executor());
}

MemoryReport TrainingSession::memory() const {
  const CallGuard guard(impl_->busy, Kind::kFromCallback);
  return impl_->session.memory();
}

std::int64_t TrainingSession::num_compiled() const {
  const CallGuard guard(impl_->busy, Kind::kFromCallback);
  return impl_->session.runner().executor().num_compiled();
}

std::int64_t TrainingSession::num_cached() const {
  const CallGuard guard(impl_->busy, Kind::kFromCallback);
  return impl_->session.runner().executor().num_cached();
}

}  // namespace onnxgrad
