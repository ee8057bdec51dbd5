#ifndef ONNXGRAD_COMPAT_ONNXRUNTIME_TRAINING_CXX_API_H_
#define ONNXGRAD_COMPAT_ONNXRUNTIME_TRAINING_CXX_API_H_

// On-device training of onnxruntime 1.19 under its names, on onnxgrad: a program compiles after a
// change of this include. It reads the artifacts and checkpoints of generate_artifacts, of onnxgrad
// and of onnxruntime. Passes run with the evaluation model; without its path, a file of the
// training model's folder with "eval_model" in place of "training_model" is taken.
//
//   Ort::Env env(ORT_LOGGING_LEVEL_WARNING, "train");
//   Ort::SessionOptions options;
//   auto state = Ort::CheckpointState::LoadCheckpoint("checkpoint");
//   Ort::TrainingSession session(env, options, state, "training_model.onnx", "eval_model.onnx",
//                                "optimizer_model.onnx");
//   const auto loss = session.TrainStep(inputs);  // std::vector<Ort::Value>
//   session.OptimizerStep();
//   session.LazyResetGrad();

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "onnxgrad/compat/artifact_models.h"
#include "onnxgrad/compat/artifact_optimizer.h"
#include "onnxgrad/compat/onnxruntime_values.h"
#include "onnxgrad/compat/training_checkpoint.h"
#include "onnxgrad/files.h"
#include "onnxgrad/forward_backward.h"
#include "onnxgrad/inference_session.h"
#include "onnxgrad/model.h"

namespace Ort {
inline namespace of_onnxgrad {  // onnxruntime itself may be part of the program

using Property = onnxgrad::compat::CheckpointProperty;

namespace detail {

std::string read_file(const std::string& path);

// The number that SetSeed() was called with.
inline std::atomic<std::uint64_t>& seed() {
  static std::atomic<std::uint64_t> value = 0;
  return value;
}

// Shared by a state and the sessions that train it.
struct TrainingState {
  onnxgrad::compat::TrainingCheckpoint checkpoint;
  std::uint64_t changes = 0;  // by the user
  onnxgrad::compat::ArtifactOptimizer* optimizer = nullptr;

  onnxgrad::Tensor& find(const std::string& name);
};

}  // namespace detail

/// Seeds Dropout and other random operators of sessions whose first step is still to come.
void SetSeed(std::int64_t seed);

/// Parameters, properties and optimizer state; moved, not copied.
class CheckpointState {
 public:
  CheckpointState(CheckpointState&&) noexcept = default;
  CheckpointState& operator=(CheckpointState&&) noexcept = default;

  /// Throws: Ort::Exception (no such file, damaged).
  static CheckpointState LoadCheckpoint(const std::basic_string<ORTCHAR_T>& path_to_checkpoint);
  static CheckpointState LoadCheckpointFromBuffer(const std::vector<std::uint8_t>& buffer);
  static void SaveCheckpoint(const CheckpointState& checkpoint_state,
                             const std::basic_string<ORTCHAR_T>& path_to_checkpoint,
                             bool include_optimizer_state = false);

  void AddProperty(const std::string& property_name, const Property& property_value);
  Property GetProperty(const std::string& property_name);
  /// Sets a parameter to a tensor of the same type and shape.
  void UpdateParameter(const std::string& parameter_name, const Value& parameter);
  Value GetParameter(const std::string& parameter_name);

 private:
  friend class TrainingSession;
  explicit CheckpointState(onnxgrad::compat::TrainingCheckpoint checkpoint)
      : state_(std::make_shared<detail::TrainingState>()) {
    state_->checkpoint = std::move(checkpoint);
  }
  std::shared_ptr<detail::TrainingState> state_;
};

/// Training, evaluation and updates with the artifacts.
class TrainingSession {
 public:
  TrainingSession(
      const Env& env, const SessionOptions& session_options, CheckpointState& checkpoint_state,
      const std::basic_string<ORTCHAR_T>& train_model_path,
      const std::optional<std::basic_string<ORTCHAR_T>>& eval_model_path = std::nullopt,
      const std::optional<std::basic_string<ORTCHAR_T>>& optimizer_model_path = std::nullopt);
  TrainingSession(
      const SessionOptions& session_options, CheckpointState& checkpoint_state,
      const std::basic_string<ORTCHAR_T>& train_model_path,
      const std::optional<std::basic_string<ORTCHAR_T>>& eval_model_path = std::nullopt,
      const std::optional<std::basic_string<ORTCHAR_T>>& optimizer_model_path = std::nullopt)
      : TrainingSession(Env(), session_options, checkpoint_state, train_model_path, eval_model_path,
                        optimizer_model_path) {}
  /// From the bytes of the models; `eval_model_data` is required here.
  TrainingSession(const Env& env, const SessionOptions& session_options,
                  CheckpointState& checkpoint_state,
                  const std::vector<std::uint8_t>& train_model_data,
                  const std::vector<std::uint8_t>& eval_model_data,
                  const std::vector<std::uint8_t>& optim_model_data = {});
  TrainingSession(TrainingSession&&) noexcept = default;
  TrainingSession& operator=(TrainingSession&&) noexcept = default;
  ~TrainingSession();

  /// Returns the outputs, the loss first, and adds to the gradients; inputs in the order of
  /// InputNames(true).
  std::vector<Value> TrainStep(const std::vector<Value>& input_values);
  std::vector<Value> EvalStep(const std::vector<Value>& input_values);
  /// Forgets the gradients at the next TrainStep().
  void LazyResetGrad() { reset_ = true; }
  void OptimizerStep();
  void SetLearningRate(float learning_rate) { optimizer().set_learning_rate(learning_rate); }
  float GetLearningRate() const { return static_cast<float>(optimizer().learning_rate()); }
  /// Step s has the rate initial_lr s / warmup, then falls to 0 at `total_step_count`.
  void RegisterLinearLRScheduler(std::int64_t warmup_step_count, std::int64_t total_step_count,
                                 float initial_lr);
  void SchedulerStep();
  void ExportModelForInferencing(const std::basic_string<ORTCHAR_T>& inference_model_path,
                                 const std::vector<std::string>& graph_output_names);
  std::vector<std::string> InputNames(bool training) const;
  std::vector<std::string> OutputNames(bool training) const;
  /// All parameters, or those that are trained, as a vector float32 [n].
  Value ToBuffer(bool only_trainable);
  /// Sets all parameters, or those that are trained, by the size; completes a nominal state.
  void FromBuffer(Value& buffer);

 private:
  struct Schedule {
    std::int64_t warmup = 0;
    std::int64_t total = 0;
    float initial = 0;
  };

  void build(std::string eval_bytes, const std::string& folder,
             const std::optional<onnxgrad::Model>& optimizer_model);
  onnxgrad::compat::ArtifactOptimizer& optimizer() const;
  onnxgrad::ForwardBackward& passes();
  std::vector<Value> run(const std::vector<Value>& inputs, bool training);
  onnxgrad::NamedTensors parameters(bool only_trainable) const;

  std::shared_ptr<detail::TrainingState> state_;
  std::string eval_bytes_;
  std::string folder_;
  std::vector<std::string> inputs_;
  std::vector<std::string> outputs_;
  std::unique_ptr<onnxgrad::ForwardBackward> passes_;
  std::unique_ptr<onnxgrad::compat::ArtifactOptimizer> optimizer_;
  std::vector<onnxgrad::Tensor> gradients_;
  bool reset_ = true;
  std::uint64_t seen_ = 0;
  std::optional<Schedule> schedule_;
};

namespace detail {

inline std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file || std::filesystem::is_directory(path)) {
    throw Exception("cannot read '" + path + "'", ORT_NO_SUCHFILE);
  }
  return {std::istreambuf_iterator<char>(file), {}};
}

inline onnxgrad::Tensor& TrainingState::find(const std::string& name) {
  for (auto* tensors : {&checkpoint.trained, &checkpoint.frozen}) {
    const auto found = std::ranges::find(*tensors, name, &onnxgrad::NamedTensor::name);
    if (found != tensors->end()) return found->tensor;
  }
  throw Exception("'" + name + "' is not a parameter of the checkpoint", ORT_INVALID_ARGUMENT);
}

}  // namespace detail

inline void SetSeed(std::int64_t seed) { detail::seed() = static_cast<std::uint64_t>(seed); }

inline CheckpointState CheckpointState::LoadCheckpoint(
    const std::basic_string<ORTCHAR_T>& path_to_checkpoint) {
  return detail::translated([&] {
    return CheckpointState(onnxgrad::compat::parse_training_checkpoint(
        detail::read_file(path_to_checkpoint), path_to_checkpoint));
  });
}

inline CheckpointState CheckpointState::LoadCheckpointFromBuffer(
    const std::vector<std::uint8_t>& buffer) {
  return detail::translated([&] {
    return CheckpointState(onnxgrad::compat::parse_training_checkpoint(
        {reinterpret_cast<const char*>(buffer.data()), buffer.size()}));
  });
}

inline void CheckpointState::SaveCheckpoint(const CheckpointState& checkpoint_state,
                                            const std::basic_string<ORTCHAR_T>& path_to_checkpoint,
                                            bool include_optimizer_state) {
  detail::translated([&] {
    const detail::TrainingState& state = *checkpoint_state.state_;
    onnxgrad::compat::TrainingCheckpoint stored = state.checkpoint;
    if (!include_optimizer_state) {
      stored.has_optimizer = false;
    } else if (state.optimizer != nullptr) {
      stored.moments.clear();
      state.optimizer->save(stored.trained, stored);
    }
    onnxgrad::write_file(path_to_checkpoint, onnxgrad::compat::write_training_checkpoint(stored));
  });
}

inline void CheckpointState::AddProperty(const std::string& property_name,
                                         const Property& property_value) {
  state_->checkpoint.properties[property_name] = property_value;
}

inline Property CheckpointState::GetProperty(const std::string& property_name) {
  const auto found = state_->checkpoint.properties.find(property_name);
  if (found != state_->checkpoint.properties.end()) return found->second;
  throw Exception("'" + property_name + "' is not a property", ORT_INVALID_ARGUMENT);
}

inline void CheckpointState::UpdateParameter(const std::string& parameter_name,
                                             const Value& parameter) {
  onnxgrad::Tensor& old = state_->find(parameter_name);
  const onnxgrad::Tensor& value = parameter.tensor();
  if (old.dtype() != value.dtype() || old.dims() != value.dims()) {
    throw Exception("parameter '" + parameter_name + "' has the shape " + old.dims().to_string() +
                        ", not " + value.dims().to_string(),
                    ORT_INVALID_ARGUMENT);
  }
  old = value.clone();
  ++state_->changes;
}

inline Value CheckpointState::GetParameter(const std::string& parameter_name) {
  return Value(state_->find(parameter_name).clone());
}

inline TrainingSession::TrainingSession(
    const Env&, const SessionOptions&, CheckpointState& checkpoint_state,
    const std::basic_string<ORTCHAR_T>& train_model_path,
    const std::optional<std::basic_string<ORTCHAR_T>>& eval_model_path,
    const std::optional<std::basic_string<ORTCHAR_T>>& optimizer_model_path)
    : state_(checkpoint_state.state_) {
  detail::translated([&] {
    const std::filesystem::path train(train_model_path);
    std::string eval = eval_model_path.value_or("");
    if (eval.empty()) {
      std::string name = train.filename().string();
      const std::size_t at = name.find("training_model");
      if (at != std::string::npos) name.replace(at, 14, "eval_model");
      eval = (train.parent_path() / name).string();
      if (at == std::string::npos || !std::filesystem::exists(eval)) {
        throw Exception("give the path of the evaluation model of '" + train_model_path + "'",
                        ORT_INVALID_ARGUMENT);
      }
    }
    std::optional<onnxgrad::Model> update;
    if (optimizer_model_path) update = onnxgrad::Model::load(*optimizer_model_path);
    build(detail::read_file(eval), std::filesystem::path(eval).parent_path().string(), update);
  });
}

inline TrainingSession::TrainingSession(const Env&, const SessionOptions&,
                                        CheckpointState& checkpoint_state,
                                        const std::vector<std::uint8_t>&,
                                        const std::vector<std::uint8_t>& eval_model_data,
                                        const std::vector<std::uint8_t>& optim_model_data)
    : state_(checkpoint_state.state_) {
  detail::translated([&] {
    std::optional<onnxgrad::Model> update;
    if (!optim_model_data.empty()) {
      update = onnxgrad::Model::from_bytes({optim_model_data.begin(), optim_model_data.end()});
    }
    build({eval_model_data.begin(), eval_model_data.end()}, "", update);
  });
}

inline TrainingSession::~TrainingSession() {
  if (state_ != nullptr && optimizer_ != nullptr && state_->optimizer == optimizer_.get()) {
    if (state_->checkpoint.has_optimizer || optimizer_->steps() > 0) {
      state_->checkpoint.moments.clear();
      optimizer_->save(state_->checkpoint.trained, state_->checkpoint);
    }
    state_->optimizer = nullptr;
  }
}

inline void TrainingSession::build(std::string eval_bytes, const std::string& folder,
                                   const std::optional<onnxgrad::Model>& optimizer_model) {
  eval_bytes_ = std::move(eval_bytes);
  folder_ = folder;
  const auto model = onnxgrad::Model::from_bytes(eval_bytes_, {.external_root = folder_});
  for (const onnxgrad::ValueInfo& output : model.outputs()) outputs_.push_back(output.name);
  auto& checkpoint = state_->checkpoint;
  for (const onnxgrad::ValueInfo& input : model.inputs()) {
    const bool is_parameter = [&] {
      for (auto* tensors : {&checkpoint.trained, &checkpoint.frozen}) {
        for (auto& [name, tensor] : *tensors) {
          if (name != input.name) continue;
          std::vector<std::int64_t> dims;
          for (const auto& dim : input.shape.value_or(std::vector<onnxgrad::Dimension>())) {
            dims.push_back(std::max<std::int64_t>(0, dim.value));
          }
          if (checkpoint.is_nominal)
            tensor = onnxgrad::Tensor::zeros(input.dtype, onnxgrad::Dims(dims));
          return true;
        }
      }
      return false;
    }();
    if (!is_parameter) inputs_.push_back(input.name);
  }
  if (!optimizer_model) return;
  optimizer_ = std::make_unique<onnxgrad::compat::ArtifactOptimizer>(*optimizer_model);
  if (checkpoint.has_optimizer) optimizer_->restore(checkpoint);
  state_->optimizer = optimizer_.get();
}

inline onnxgrad::compat::ArtifactOptimizer& TrainingSession::optimizer() const {
  if (optimizer_ == nullptr) {
    throw Exception("the session has no optimizer model", ORT_INVALID_ARGUMENT);
  }
  return *optimizer_;
}

// Compiled at the first step, and again if the user has changed parameters.
inline onnxgrad::ForwardBackward& TrainingSession::passes() {
  if (state_->checkpoint.is_nominal) {
    throw Exception("the checkpoint is nominal: set the parameters with FromBuffer", ORT_FAIL);
  }
  if (passes_ != nullptr && seen_ == state_->changes) return *passes_;
  std::vector<std::string> trained;
  for (const auto& entry : state_->checkpoint.trained) trained.push_back(entry.name);
  passes_ = std::make_unique<onnxgrad::ForwardBackward>(
      onnxgrad::Model::from_bytes(
          onnxgrad::compat::with_initializers(eval_bytes_, parameters(false)),
          {.external_root = folder_}),
      onnxgrad::ForwardBackwardOptions{.weights = std::move(trained),
                                       .untie = false,
                                       .input_gradients = false,
                                       .engine = {.seed = detail::seed()}});
  seen_ = state_->changes;
  return *passes_;
}

inline std::vector<Value> TrainingSession::run(const std::vector<Value>& inputs, bool training) {
  if (inputs.size() != inputs_.size()) {
    throw Exception(std::to_string(inputs.size()) + " inputs were given, the model has " +
                        std::to_string(inputs_.size()),
                    ORT_INVALID_ARGUMENT);
  }
  std::vector<onnxgrad::Tensor> feeds;
  for (const Value& input : inputs) feeds.push_back(input.tensor());
  const auto as_values = [](const std::vector<onnxgrad::Tensor>& tensors) {
    std::vector<Value> values;
    for (const onnxgrad::Tensor& tensor : tensors) values.emplace_back(tensor.clone());
    return values;
  };
  if (!training) {
    onnxgrad::NamedTensors named;
    for (std::size_t i = 0; i < feeds.size(); ++i) named.push_back({inputs_[i], feeds[i]});
    return as_values(passes().forward(named, false).outputs);
  }
  const auto result = passes().run(feeds);
  const onnxgrad::NamedTensors& found = result.gradients.weights;
  std::vector<onnxgrad::Tensor> fresh;
  for (const auto& entry : state_->checkpoint.trained) {
    fresh.push_back(std::ranges::find(found, entry.name, &onnxgrad::NamedTensor::name)->tensor);
  }
  if (reset_ || gradients_.empty()) {
    gradients_ = std::move(fresh);
  } else {
    for (std::size_t i = 0; i < fresh.size(); ++i) detail::add(gradients_[i], fresh[i]);
  }
  reset_ = false;
  return as_values(result.outputs);
}

inline std::vector<Value> TrainingSession::TrainStep(const std::vector<Value>& input_values) {
  return detail::translated([&] { return run(input_values, true); });
}

inline std::vector<Value> TrainingSession::EvalStep(const std::vector<Value>& input_values) {
  return detail::translated([&] { return run(input_values, false); });
}

inline void TrainingSession::OptimizerStep() {
  detail::translated([&] {
    if (gradients_.empty()) throw Exception("OptimizerStep() needs a TrainStep() before it");
    auto& passes = this->passes();
    optimizer().step(state_->checkpoint.trained, gradients_);
    passes.set_weights(state_->checkpoint.trained);
  });
}

inline void TrainingSession::RegisterLinearLRScheduler(std::int64_t warmup_step_count,
                                                       std::int64_t total_step_count,
                                                       float initial_lr) {
  schedule_ = Schedule{warmup_step_count, total_step_count, initial_lr};
  SchedulerStep();
}

inline void TrainingSession::SchedulerStep() {
  if (!schedule_) return;
  const auto [warmup, total, initial] = *schedule_;
  const std::int64_t done = optimizer().steps();
  const auto ratio = [](std::int64_t a, std::int64_t b) {
    return static_cast<float>(a) / static_cast<float>(std::max<std::int64_t>(1, b));
  };
  const float factor =
      done < warmup ? ratio(done, warmup) : std::max(0.0F, ratio(total - done, total - warmup));
  SetLearningRate(initial * factor);
}

inline void TrainingSession::ExportModelForInferencing(
    const std::basic_string<ORTCHAR_T>& inference_model_path,
    const std::vector<std::string>& graph_output_names) {
  detail::translated([&] {
    onnxgrad::NamedTensors values = parameters(false);
    for (const auto& entry : passes().weights()) {  // running statistics too
      if (std::ranges::count(values, entry.name, &onnxgrad::NamedTensor::name) == 0) {
        values.push_back(entry);
      }
    }
    std::string bytes = onnxgrad::compat::computing(
        onnxgrad::compat::with_initializers(eval_bytes_, values), graph_output_names);
    onnxgrad::Model model = onnxgrad::Model::from_bytes(bytes, {.external_root = folder_});
    if (std::ranges::count(model.outputs(), onnxgrad::DataType::kUndefined,
                           &onnxgrad::ValueInfo::dtype) > 0) {
      const onnxgrad::InferenceSession inferred(model);
      bytes = onnxgrad::compat::with_outputs(bytes, inferred.outputs());
      model = onnxgrad::Model::from_bytes(bytes, {.external_root = folder_});
    }
    model.save(inference_model_path);
  });
}

inline std::vector<std::string> TrainingSession::InputNames(bool) const { return inputs_; }
inline std::vector<std::string> TrainingSession::OutputNames(bool) const { return outputs_; }

inline onnxgrad::NamedTensors TrainingSession::parameters(bool only_trainable) const {
  onnxgrad::NamedTensors all = state_->checkpoint.trained;
  const auto& frozen = state_->checkpoint.frozen;
  if (!only_trainable) all.insert(all.end(), frozen.begin(), frozen.end());
  return all;
}

inline Value TrainingSession::ToBuffer(bool only_trainable) {
  std::vector<float> flat;
  for (const auto& entry : parameters(only_trainable)) {
    const auto values = entry.tensor.cast(onnxgrad::DataType::kFloat32);
    flat.insert(flat.end(), values.data<float>().begin(), values.data<float>().end());
  }
  return Value(onnxgrad::Tensor::from(flat, {static_cast<std::int64_t>(flat.size())}));
}

inline void TrainingSession::FromBuffer(Value& buffer) {
  const auto flat = buffer.tensor().data<float>();
  for (const bool only_trainable : {false, true}) {
    std::size_t size = 0;
    for (const auto& entry : parameters(only_trainable)) {
      size += static_cast<std::size_t>(entry.tensor.num_elements());
    }
    if (size != flat.size()) continue;
    std::size_t at = 0;
    for (const auto& entry : parameters(only_trainable)) {
      const auto count = static_cast<std::size_t>(entry.tensor.num_elements());
      const std::span<const float> part = flat.subspan(at, count);
      state_->find(entry.name) =
          onnxgrad::Tensor::from(part, entry.tensor.dims()).cast(entry.tensor.dtype());
      at += count;
    }
    if (!only_trainable || state_->checkpoint.frozen.empty()) state_->checkpoint.is_nominal = false;
    ++state_->changes;
    return;
  }
  throw Exception("the buffer has " + std::to_string(flat.size()) + " elements",
                  ORT_INVALID_ARGUMENT);
}

}  // namespace of_onnxgrad
}  // namespace Ort

#endif  // ONNXGRAD_COMPAT_ONNXRUNTIME_TRAINING_CXX_API_H_
