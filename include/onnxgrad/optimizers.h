#ifndef ONNXGRAD_OPTIMIZERS_H_
#define ONNXGRAD_OPTIMIZERS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

// Optimizers as plain descriptions, and what is done around their formulas: groups of weights,
// clipping, accumulation. Where torch.optim has the optimizer, formula and defaults are torch's.
// w is a weight, g its gradient, lr the learning rate of the step, t the number of the step from 1.
// All but L-BFGS are ONNX subgraphs of the training step.

namespace [[gnu::visibility("default")]] onnxgrad {

/// Without momentum: w -= lr * g. With it: b = g at the first step, else
/// b = momentum * b + (1 - dampening) * g; then w -= lr * b, or with nesterov
/// w -= lr * (g + momentum * b). nesterov needs momentum > 0 and dampening == 0.
/// weight_decay: g += weight_decay * w before all that, or if decoupled w *= 1 - lr * weight_decay.
/// rate_in_velocity, which needs momentum > 0 and no dampening: as scikit-learn, the velocity holds
/// the rates of its steps, v = momentum * v - lr * g; then w += v, or with nesterov
/// w += momentum * v - lr * g. The same while lr does not change.
/// State per weight: b, or v (only with momentum).
struct Sgd {
  double learning_rate = 0.01;
  double momentum = 0;
  double dampening = 0;
  bool nesterov = false;
  double weight_decay = 0;
  bool decoupled_weight_decay = false;
  bool rate_in_velocity = false;
};

/// Kingma and Ba, 2014. g += weight_decay * w; m = beta1 * m + (1 - beta1) * g;
/// v = beta2 * v + (1 - beta2) * g^2;
/// w -= lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + epsilon).
/// amsgrad (Reddi, Kale and Kumar, 2018): the largest v so far stands in place of v.
/// State per weight: m, v, with amsgrad max(v); and t once.
struct Adam {
  double learning_rate = 0.001;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0;
  bool amsgrad = false;
};

/// Loshchilov and Hutter, 2017: Adam with w *= 1 - lr * weight_decay in place of the decay in g.
struct AdamW {
  double learning_rate = 0.001;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.01;
  bool amsgrad = false;
};

/// Duchi, Hazan and Singer, 2011. g += weight_decay * w; s += g^2;
/// w -= lr / (1 + (t - 1) * rate_decay) * g / (sqrt(s) + epsilon).
/// State per weight: s, which starts as initial_accumulator; t once, with rate_decay.
struct Adagrad {
  double learning_rate = 0.01;
  double rate_decay = 0;
  double weight_decay = 0;
  double initial_accumulator = 0;
  double epsilon = 1e-10;
};

/// Hinton, 2012, as torch writes it. g += weight_decay * w; s = alpha * s + (1 - alpha) * g^2;
/// r = sqrt(s) + epsilon, or if centered (Graves, 2013) a = alpha * a + (1 - alpha) * g and
/// r = sqrt(max(s - a^2, 0)) + epsilon; w -= lr * g / r, or with momentum
/// b = momentum * b + g / r and w -= lr * b.
/// State per weight: s, if centered a, with momentum b.
struct RmsProp {
  double learning_rate = 0.01;
  double alpha = 0.99;
  double epsilon = 1e-8;
  double weight_decay = 0;
  double momentum = 0;
  bool centered = false;
};

/// Chen et al., 2023, algorithm 2.
/// w = w * (1 - lr * weight_decay) - lr * sign(beta1 * m + (1 - beta1) * g);
/// m = beta2 * m + (1 - beta2) * g.
/// State per weight: m.
struct Lion {
  double learning_rate = 1e-4;
  double beta1 = 0.9;
  double beta2 = 0.99;
  double weight_decay = 0;
};

/// You et al., 2019, algorithm 2 with phi(x) = x. m and v as Adam's;
/// u = m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + epsilon) + weight_decay * w;
/// w -= lr * |w| / |u| * u with Euclidean norms over the weight; the factor |w| / |u| is 1 where
/// one of the norms is 0.
/// State per weight: m, v; and t once.
struct Lamb {
  double learning_rate = 0.001;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-6;
  double weight_decay = 0.01;
};

/// Limited-memory BFGS (Nocedal and Wright, Numerical Optimization, algorithms 7.4 and 3.5): for
/// problems whose rows fit into one batch. One training step does up to `max_iterations` iterations
/// on its batch; each evaluates loss and gradient several times, in a loop outside the graph. The
/// line search ends where the strong Wolfe conditions with c1 = 1e-4 and c2 = 0.9 hold; its first
/// step length is lr (in the first iteration lr * min(1, 1 / |g|_1)).
/// A step ends early when the largest |g| is at most gradient_tolerance, or loss or weights change
/// by less than change_tolerance. All numbers but the weights are float64.
/// State: the last `history` pairs of changes of weights and gradients.
struct Lbfgs {
  double learning_rate = 1;
  std::int64_t max_iterations = 20;
  std::int64_t max_evaluations = 0;  ///< of loss and gradient in a step; 0: 1.25 * max_iterations
  std::int64_t history = 10;
  double gradient_tolerance = 1e-7;
  double change_tolerance = 1e-9;
  bool line_search = true;  ///< false: every step has the length lr
};

/// An update of the user's: a model with the inputs weight, gradient, learning rate [], step []
/// (the number of this update, from 1) and any slots, in this order, and the outputs new weight and
/// the new slots in their order. It is written once for each weight, with the weight's shape; a
/// model that declares the weight as a vector [n] reads each one flat. Weight, gradient and slots
/// have the weights' dtype, the others any numeric one. g += weight_decay * w before it. State per
/// weight: "<name of the slot's input>/<weight>", in the weight's shape; it starts as the input's
/// default, one number, or 0. The number of updates, if the model reads it.
struct UserOptimizer {
  std::shared_ptr<const std::string> model = {};  ///< a serialized ModelProto
  double learning_rate = 0.01;
  double weight_decay = 0;
};

using Optimizer =
    std::variant<Sgd, Adam, AdamW, Adagrad, RmsProp, Lion, Lamb, Lbfgs, UserOptimizer>;

/// Weights that are updated in a way of their own.
struct ParameterGroup {
  std::vector<std::string> patterns = {};   ///< glob patterns of trained weights
  double rate_factor = 1;                   ///< times the learning rate
  std::optional<double> weight_decay = {};  ///< instead of the optimizer's
  /// Another optimizer for these weights, not L-BFGS. Its learning rate is not read: they are
  /// updated with `rate_factor` times that of all.
  std::optional<Optimizer> optimizer = {};
};

/// What is done around the formula of any optimizer but L-BFGS, inside the graph. In order:
/// gradients are accumulated, clipped by value, clipped by norm; then come decay and update.
struct UpdateOptions {
  /// A weight belongs to the first group with a pattern that matches it; the others are updated as
  /// the optimizer says. A pattern that matches no trained weight is an error.
  std::vector<ParameterGroup> groups = {};
  /// Each element of each gradient is clipped to [-clip_value, clip_value].
  std::optional<double> clip_value = {};
  /// All gradients are multiplied by min(1, clip_norm / (|g| + 1e-6)), with |g| the Euclidean norm
  /// of all of them together.
  std::optional<double> clip_norm = {};
  /// The update is done at every n-th step, with the gradient of the rows of all n batches
  /// together; the loss of each batch is of that batch. State: a sum per weight, "accumulated/<w>",
  /// the sum of the losses' denominators and the number of batches.
  std::int64_t accumulate = 1;
};

/// With the defaults above: "adagrad", "adam", "adamw", "lamb", "lbfgs", "lion", "momentum" (Sgd
/// with 0.9), "nesterov" (0.9), "rmsprop", "sgd". Throws: OptionError naming the nearest.
Optimizer optimizer_from_name(std::string_view name);
/// All names of optimizer_from_name, sorted.
std::vector<std::string> optimizer_names();
/// The learning rate in the description.
double learning_rate_of(const Optimizer& optimizer);
/// "Adam(learning_rate=0.001, ...)".
std::string to_string(const Optimizer& optimizer);

}  // namespace onnxgrad

#endif  // ONNXGRAD_OPTIMIZERS_H_
