#ifndef ONNXGRAD_COMPAT_ARTIFACT_OPTIMIZER_H_
#define ONNXGRAD_COMPAT_ARTIFACT_OPTIMIZER_H_

// The optimizer model of artifacts. One that onnxgrad wrote is a graph with outputs "next/<state>"
// and inputs "<state>", "<weight>.gradient" and "learning_rate". One of onnxruntime-training, or of
// a block of onnxblock.optim, has one of its three operators, whose formulas are here.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "onnxgrad/compat/training_checkpoint.h"
#include "onnxgrad/error.h"
#include "onnxgrad/inference_session.h"
#include "onnxgrad/model.h"

namespace onnxgrad::compat {

class ArtifactOptimizer {
 public:
  /// Throws: ModelError (no optimizer model).
  explicit ArtifactOptimizer(const Model& model);

  /// Sets `weights` to their next values; `gradients` are in the same order. All float32 or all
  /// float64; float32 only for operators of onnxruntime-training.
  void step(NamedTensors& weights, const std::vector<Tensor>& gradients);

  double learning_rate() const { return learning_rate_; }
  void set_learning_rate(double value) { learning_rate_ = value; }
  std::int64_t steps() const { return steps_; }

  /// Writes step, rate and moments of these weights to a checkpoint, or continues from those.
  void save(const NamedTensors& weights, TrainingCheckpoint& checkpoint) const;
  void restore(const TrainingCheckpoint& checkpoint);

 private:
  enum class Kind { kGraph, kSgd, kAdamW };

  void read_text(const std::string& text);
  void step_graph(NamedTensors& weights, const std::vector<Tensor>& gradients);
  void step_adamw(Tensor& weight, std::span<const float> gradient, const std::string& name,
                  float scale);
  Tensor& slot(const std::string& name, const Tensor& like);
  // Names of slots in a session, "adam_m", and of moments in a checkpoint, "momentum0".
  static std::string moment_of(const std::string& slot) {
    return slot == "adam_m" ? "momentum0" : slot == "adam_v" ? "momentum1" : slot;
  }
  static std::string slot_of(const std::string& moment) {
    return moment == "momentum0" ? "adam_m" : moment == "momentum1" ? "adam_v" : moment;
  }

  Kind kind_ = Kind::kGraph;
  std::unique_ptr<InferenceSession> session_;
  std::vector<std::string> states_;  // "<state>" of the graph, weights too
  NamedTensors slots_;               // "<slot>/<weight>", "step_count"
  double learning_rate_ = 1e-3;
  std::int64_t steps_ = 0;
  // Attributes of onnxruntime-training's operators.
  double beta1_ = 0.9, beta2_ = 0.999, epsilon_ = 1e-6, weight_decay_ = 0;
  bool corrects_ = true, decays_first_ = true;
  std::optional<double> max_norm_;
};

namespace detail {

// The number after `name` in a text such as "alpha: float = 0.9"; `absent` if there is none.
inline double number_after(std::string_view text, std::string_view name, double absent) {
  const std::size_t at = text.find(name);
  if (at == std::string_view::npos) return absent;
  return std::strtod(std::string(text.substr(at + name.size(), 40)).c_str(), nullptr);
}

inline double attribute(std::string_view text, const std::string& name, double absent) {
  for (const char* type : {": float = ", ": int = ", " = "}) {
    const double found = number_after(text, name + type, NAN);
    if (!std::isnan(found)) return found;
  }
  return absent;
}

}  // namespace detail

inline ArtifactOptimizer::ArtifactOptimizer(const Model& model) {
  for (const auto& [key, value] : model.metadata()) {
    if (key != "onnxgrad.training") continue;
    learning_rate_ = detail::number_after(value, "\"lr\": ", 1e-3);
    session_ = std::make_unique<InferenceSession>(model);
    for (const ValueInfo& output : model.outputs()) {
      if (output.name.starts_with("next/")) states_.push_back(output.name.substr(5));
    }
    return;
  }
  read_text(model.to_text());
}

inline void ArtifactOptimizer::read_text(const std::string& text) {
  const std::size_t clip = text.find("InplaceClipGradNorm");
  if (clip != std::string::npos) max_norm_ = detail::attribute(text.substr(clip), "max_norm", 1);
  const std::size_t adamw = text.find("AdamWOptimizer");
  if (adamw != std::string::npos) {
    kind_ = Kind::kAdamW;
    const std::string node = text.substr(adamw);
    beta1_ = detail::attribute(node, "alpha", beta1_);
    beta2_ = detail::attribute(node, "beta", beta2_);
    epsilon_ = detail::attribute(node, "epsilon", epsilon_);
    weight_decay_ = detail::attribute(node, "weight_decay", weight_decay_);
    corrects_ = detail::attribute(node, "correct_bias", 1) != 0;
    decays_first_ = detail::attribute(node, "adam_mode", 0) == 0;
  } else if (text.find("SGDOptimizerV2") != std::string::npos) {
    kind_ = Kind::kSgd;
  } else {
    throw ModelError({.what = "this is not an optimizer model of artifacts",
                      .hint = "Generate the artifacts again from the model."});
  }
}

inline Tensor& ArtifactOptimizer::slot(const std::string& name, const Tensor& like) {
  const auto found = std::ranges::find(slots_, name, &NamedTensor::name);
  if (found != slots_.end()) return found->tensor;
  slots_.push_back({name, Tensor::zeros(like.dtype(), like.dims())});
  return slots_.back().tensor;
}

inline void ArtifactOptimizer::step(NamedTensors& weights, const std::vector<Tensor>& gradients) {
  if (kind_ == Kind::kGraph) {
    step_graph(weights, gradients);
    ++steps_;
    return;
  }
  ++steps_;
  float scale = 1;
  if (max_norm_) {
    double squares = 0;
    for (const Tensor& gradient : gradients) {
      for (const float g : gradient.data<float>()) squares += static_cast<double>(g) * g;
    }
    scale = static_cast<float>(std::min(1.0, *max_norm_ / (std::sqrt(squares) + 1e-6)));
  }
  for (std::size_t i = 0; i < weights.size(); ++i) {
    Tensor weight = weights[i].tensor.clone();  // views that were given away keep their values
    const auto g = gradients[i].data<float>();
    if (kind_ == Kind::kAdamW) {
      step_adamw(weight, g, weights[i].name, scale);
    } else {
      const auto w = weight.mutable_data<float>();
      const auto rate = static_cast<float>(learning_rate_);
      for (std::size_t k = 0; k < w.size(); ++k) w[k] -= rate * (scale * g[k]);
    }
    weights[i].tensor = std::move(weight);
  }
}

// s = lr sqrt(1 - b2^t) / (1 - b1^t); w -= s m / (sqrt(v) + eps); w -= lr decay w: AdamW of
// transformers. With adam_mode 0, as in PyTorch, the decay is first and eps is added to the
// corrected root.
inline void ArtifactOptimizer::step_adamw(Tensor& weight, std::span<const float> gradient,
                                          const std::string& name, float scale) {
  const auto t = static_cast<double>(steps_);
  const double q1 = corrects_ ? 1 - std::pow(beta1_, t) : 1;
  const double q2 = corrects_ ? std::sqrt(1 - std::pow(beta2_, t)) : 1;
  const auto size = static_cast<float>(learning_rate_ * q2 / q1);
  const auto epsilon = static_cast<float>(decays_first_ ? epsilon_ * q2 : epsilon_);
  const auto kept = static_cast<float>(1 - learning_rate_ * weight_decay_);
  const auto b1 = static_cast<float>(beta1_);
  const auto b2 = static_cast<float>(beta2_);
  slot("adam_m/" + name, weight);
  const auto v = slot("adam_v/" + name, weight).mutable_data<float>();
  const auto m = slot("adam_m/" + name, weight).mutable_data<float>();
  const auto w = weight.mutable_data<float>();
  for (std::size_t k = 0; k < w.size(); ++k) {
    const float g = scale * gradient[k];
    m[k] = b1 * m[k] + (1 - b1) * g;
    v[k] = b2 * v[k] + (1 - b2) * g * g;
    const float move = size * m[k] / (std::sqrt(v[k]) + epsilon);
    w[k] = decays_first_ ? w[k] * kept - move : (w[k] - move) * kept;
  }
}

inline void ArtifactOptimizer::step_graph(NamedTensors& weights,
                                          const std::vector<Tensor>& gradients) {
  NamedTensors feeds = weights;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    feeds.push_back({weights[i].name + ".gradient", gradients[i]});
  }
  for (const ValueInfo& input : session_->inputs()) {
    if (input.name != "learning_rate") continue;
    feeds.push_back({input.name, Tensor::scalar_of(input.dtype, learning_rate_)});
  }
  feeds.insert(feeds.end(), slots_.begin(), slots_.end());
  std::vector<std::string> names;
  for (const std::string& state : states_) names.push_back("next/" + state);
  const std::vector<Tensor> next = session_->run(names, feeds);
  NamedTensors slots;
  for (std::size_t i = 0; i < states_.size(); ++i) {
    const auto weight = std::ranges::find(weights, states_[i], &NamedTensor::name);
    if (weight != weights.end()) {
      weight->tensor = next[i];
    } else {
      slots.push_back({states_[i], next[i]});
    }
  }
  slots_ = std::move(slots);
}

inline void ArtifactOptimizer::save(const NamedTensors& weights,
                                    TrainingCheckpoint& checkpoint) const {
  checkpoint.has_optimizer = true;
  checkpoint.step = steps_;
  checkpoint.learning_rate = static_cast<float>(learning_rate_);
  for (const NamedTensor& weight : weights) checkpoint.moments[weight.name];
  for (const auto& [name, tensor] : slots_) {
    const std::size_t slash = name.find('/');
    const std::string parameter = slash == std::string::npos ? "" : name.substr(slash + 1);
    if (checkpoint.moments.contains(parameter)) {
      checkpoint.moments[parameter].push_back({moment_of(name.substr(0, slash)), tensor});
    } else if (name != "step_count") {
      checkpoint.moments[""].push_back({name, tensor});
    }
  }
}

inline void ArtifactOptimizer::restore(const TrainingCheckpoint& checkpoint) {
  steps_ = checkpoint.step;
  learning_rate_ = checkpoint.learning_rate;
  slots_.clear();
  for (const auto& [parameter, moments] : checkpoint.moments) {
    for (const auto& [moment, tensor] : moments) {
      const std::string name = parameter.empty() ? moment : slot_of(moment) + "/" + parameter;
      const bool is_known = kind_ == Kind::kAdamW || std::ranges::count(states_, name) > 0;
      if (is_known) slots_.push_back({name, tensor.clone()});
    }
  }
  if (std::ranges::count(states_, "step_count") > 0) {
    slots_.push_back({"step_count", Tensor::scalar<std::int64_t>(steps_)});
  }
}

}  // namespace onnxgrad::compat

#endif  // ONNXGRAD_COMPAT_ARTIFACT_OPTIMIZER_H_
