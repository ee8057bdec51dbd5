#ifndef ONNXGRAD_OPTIMIZERS_H_
#define ONNXGRAD_OPTIMIZERS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

// Optimizers as plain descriptions, with groups of weights, clipping and accumulation.
// optimizer_table() (onnxgrad/tables.h) has the formula, source and states of each, and the range
// and meaning of its fields; docs/training.md shows it. If torch.optim has the optimizer, formula
// and defaults are torch's. All but L-BFGS are ONNX subgraphs of the training step.

namespace [[gnu::visibility("default")]] onnxgrad {

/// Gradient descent, with momentum and Nesterov's correction.
struct Sgd {
  double learning_rate = 0.01;
  double momentum = 0;
  double dampening = 0;
  bool nesterov = false;
  double weight_decay = 0;
  bool decoupled_weight_decay = false;
  bool rate_in_velocity = false;
};

struct Adam {
  double learning_rate = 0.001;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0;
  bool amsgrad = false;
};

/// Adam with decoupled weight decay.
struct AdamW {
  double learning_rate = 0.001;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.01;
  bool amsgrad = false;
};

struct Adagrad {
  double learning_rate = 0.01;
  double rate_decay = 0;
  double weight_decay = 0;
  double initial_accumulator = 0;
  double epsilon = 1e-10;
};

struct RmsProp {
  double learning_rate = 0.01;
  double alpha = 0.99;
  double epsilon = 1e-8;
  double weight_decay = 0;
  double momentum = 0;
  bool centered = false;
};

struct Lion {
  double learning_rate = 1e-4;
  double beta1 = 0.9;
  double beta2 = 0.99;
  double weight_decay = 0;
};

struct Lamb {
  double learning_rate = 0.001;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-6;
  double weight_decay = 0.01;
};

/// Orthogonalised momentum for matrices, AdamW for all other weights.
struct Muon {
  double learning_rate = 0.001;
  double momentum = 0.95;
  bool nesterov = true;
  double weight_decay = 0.1;
  std::int64_t iterations = 5;
  double epsilon = 1e-7;
  double beta1 = 0.9;
  double beta2 = 0.95;
};

/// Second moments of a matrix from those of its rows and columns; see optimizer_table().
struct Adafactor {
  double learning_rate = 0.01;
  double beta2_decay = -0.8;
  double epsilon1 = 0;
  double epsilon2 = 1e-3;
  double clip_threshold = 1;
  double weight_decay = 0;
};

/// AdamW without a schedule: gradients are taken at y, between the averaged weights x and the
/// sequence z. The weights of a session are y; x is their average (see WeightAverage), which
/// evaluation and trained models use.
struct ScheduleFreeAdamW {
  double learning_rate = 0.0025;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0;
  std::int64_t warm_up = 0;
  double power = 0;
  double rate_power = 2;
};

/// Limited-memory BFGS, for problems whose rows fit into one batch: a loop outside the graph.
struct Lbfgs {
  double learning_rate = 1;
  std::int64_t max_iterations = 20;
  std::int64_t max_evaluations = 0;
  std::int64_t history = 10;
  double gradient_tolerance = 1e-7;
  double change_tolerance = 1e-9;
  bool line_search = true;
};

/// A user-defined update: a model with the inputs weight, gradient, learning rate [], step []
/// (the number of this update, from 1) and any slots, in this order, and the outputs new weight and
/// the new slots in their order. It is instantiated for each weight, with the weight's shape; a
/// model that declares the weight as a vector [n] reads each one flat. Weight, gradient and slots
/// have the weights' dtype, the others any numeric one. g += weight_decay * w before it. State per
/// weight: "<name of the slot's input>/<weight>", in the weight's shape, initially the input's
/// default (one number) or 0; and the number of updates, if the model reads it.
struct UserOptimizer {
  std::shared_ptr<const std::string> model = {};  ///< a serialized ModelProto
  double learning_rate = 0.01;
  double weight_decay = 0;
};

using Optimizer = std::variant<Sgd, Adam, AdamW, Adagrad, RmsProp, Lion, Lamb, Muon, Adafactor,
                               ScheduleFreeAdamW, Lbfgs, UserOptimizer>;

/// Weights with their own update options.
struct ParameterGroup {
  std::vector<std::string> patterns = {};   ///< glob patterns of trained weights
  double rate_factor = 1;                   ///< factor of the learning rate
  std::optional<double> weight_decay = {};  ///< replaces the optimizer's
  /// Another optimizer for these weights, not L-BFGS. Its learning rate is ignored: they are
  /// updated with `rate_factor` times the common one.
  std::optional<Optimizer> optimizer = {};
};

/// Exponential moving average a = d a + (1 - d) w of weights and running statistics. The first
/// update that counts copies them.
struct ExponentialAverage {
  double decay = 0.999;
  bool warm_up = true;           ///< d = min(decay, (1 + n) / (10 + n)) after n averages
  std::int64_t start = 0;        ///< updates before the first one that counts
  std::int64_t start_epoch = 1;  ///< first epoch of a fit() that counts
  std::int64_t every = 1;        ///< updates from one that counts to the next
  bool evaluates = true;         ///< evaluation and trained models use the average
};

/// Stochastic weight averaging: the mean of weights and running statistics.
struct EqualAverage {
  std::int64_t start = 0;
  std::int64_t start_epoch = 1;
  std::int64_t every = 1;
  bool evaluates = true;
};

/// An average of the trained weights, a part of the state ("average/<weight>") that each update
/// computes; average_table() has the formulas.
using WeightAverage = std::variant<ExponentialAverage, EqualAverage>;

/// Sharpness-aware minimization: the update uses the gradient at w + rho g / |g|, of a second pass
/// over the batch. With `adaptive` at w + rho w^2 g / |w g|.
struct SharpnessAware {
  double rho = 0.05;
  bool adaptive = false;
};

/// Operations around the formula of any optimizer except L-BFGS. In order:
/// gradients are accumulated, clipped by value, clipped by norm; then decay and update.
struct UpdateOptions {
  /// A weight belongs to the first group with a pattern that matches it; weights in no group are
  /// updated by the optimizer as is. A pattern that matches no trained weight is an error.
  std::vector<ParameterGroup> groups = {};
  /// Clips each element of each gradient to [-clip_value, clip_value].
  std::optional<double> clip_value = {};
  /// Multiplies all gradients by min(1, clip_norm / (|g| + 1e-6)), with |g| the Euclidean norm
  /// of all of them together.
  std::optional<double> clip_norm = {};
  /// Number n of steps per update, with the gradient over the rows of all n batches
  /// together; the reported loss is that of each batch. State: a sum per weight, "accumulated/<w>",
  /// the sum of the losses' denominators and the number of batches.
  std::int64_t accumulate = 1;
  std::optional<WeightAverage> average = {};
  std::optional<SharpnessAware> sharpness_aware = {};
};

/// The optimizer with this name in the table. Throws: OptionError naming the nearest.
Optimizer optimizer_from_name(std::string_view name);
/// All names of optimizer_from_name, sorted.
std::vector<std::string> optimizer_names();
/// The learning rate in the description.
double learning_rate_of(const Optimizer& optimizer);
/// Text such as "Adam(learning_rate=0.001, ...)", without fields that are zero by default.
std::string to_string(const Optimizer& optimizer);

}  // namespace onnxgrad

#endif  // ONNXGRAD_OPTIMIZERS_H_
