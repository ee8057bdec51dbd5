#ifndef ONNXGRAD_OPTIMIZERS_H_
#define ONNXGRAD_OPTIMIZERS_H_

#include <string>
#include <string_view>
#include <variant>
#include <vector>

// Optimizers as plain descriptions; formulas and defaults are those of torch.optim. w is a weight,
// g its gradient, lr the learning rate of the step.

namespace onnxgrad {

/// g += weight_decay * w. Without momentum: w -= lr * g. With it: b = g at the first step, else
/// b = momentum * b + (1 - dampening) * g; then w -= lr * b, or with nesterov
/// w -= lr * (g + momentum * b). nesterov needs momentum > 0 and dampening == 0.
/// State per weight: b (only with momentum).
struct Sgd {
  double learning_rate = 0.01;
  double momentum = 0;
  double dampening = 0;
  bool nesterov = false;
  double weight_decay = 0;
};

/// Kingma and Ba, 2014, as torch writes it. g += weight_decay * w; m = beta1 * m + (1 - beta1) * g;
/// v = beta2 * v + (1 - beta2) * g^2; t counts steps from 1;
/// w -= lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + epsilon).
/// State per weight: m, v; and t once.
struct Adam {
  double learning_rate = 0.001;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0;
};

using Optimizer = std::variant<Sgd, Adam>;

/// "sgd", "momentum" (0.9), "nesterov" (0.9), "adam", with the defaults above.
/// Throws: ModelError naming the nearest.
Optimizer optimizer_from_name(std::string_view name);
/// All names of optimizer_from_name, sorted.
std::vector<std::string> optimizer_names();
/// The learning rate in the description.
double learning_rate_of(const Optimizer& optimizer);
/// "Adam(learning_rate=0.001, ...)".
std::string to_string(const Optimizer& optimizer);

}  // namespace onnxgrad

#endif  // ONNXGRAD_OPTIMIZERS_H_
