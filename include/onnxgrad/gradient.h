#ifndef ONNXGRAD_GRADIENT_H_
#define ONNXGRAD_GRADIENT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "onnxgrad/losses.h"
#include "onnxgrad/model.h"
#include "onnxgrad/optimizers.h"
#include "onnxgrad/precision.h"
#include "onnxgrad/schedules.h"
#include "onnxgrad/training_mode.h"

namespace [[gnu::visibility("default")]] onnxgrad {

/// Options for writing graphs for other runtimes: standard operators and, unless inlined,
/// model-local functions of domain "onnxgrad" composed of them. The IR version follows the opset:
/// 10 from opset 21 on, 9 for 19 and 20, 8 for 15 to 18 and wherever local functions remain, 7
/// before.
struct WriteOptions {
  std::int64_t target_opset = 26;  ///< opset of ai.onnx, 9 to 26
  bool inline_functions = false;   ///< no local function remains, for runtimes without them
};

struct GradientOptions {
  /// Weights, inputs and inner values to differentiate with respect to, by name; empty: the
  /// trainable weights, of a model without weights all floating-point inputs.
  std::vector<std::string> wrt = {};
  /// Outputs to differentiate; empty: "loss" if there is one, else every floating tensor output.
  std::vector<std::string> outputs = {};
  /// False: the gradient of each output is a new input `<output>_grad` of the output's shape.
  /// True: it is ones, so the result is the gradient of the sum of all output elements.
  bool fill_grad = false;
  bool keep_outputs = false;  ///< keep the differentiated outputs, after the gradients
  /// Values, or nodes for all their outputs, by their names in `model`, also of subgraphs: no
  /// gradient flows through them.
  std::vector<std::string> stop_gradient = {};
  WriteOptions write = {};
  /// Receives the names in `wrt` whose gradient is always zero; null: not wanted.
  std::vector<std::string>* zeros = nullptr;
};

/// Builds the gradient as a separate model. Inputs: those of `model` that are needed, then each
/// weight of `wrt` (no longer an initializer), then `<output>_grad`. Outputs: `<name>_grad` for
/// every name in `wrt`, with its shape and dtype; zeros where the outputs do not depend on it.
/// Weights are the tensors of the file: one read by several layers has one gradient, the sum.
/// Throws: GradientError (names every node on a path to `wrt` without a gradient),
///         ModelError (unknown name, opset out of range).
Model gradient(const Model& model, const GradientOptions& options = {});

struct DerivativeOptions {
  /// Names of the values to differentiate with respect to; see GradientOptions.
  std::vector<std::string> wrt = {};
  std::vector<std::string> outputs = {};
  bool keep_outputs = false;  ///< keep the differentiated outputs, after the derivatives
  std::vector<std::string> stop_gradient = {};
  WriteOptions write = {};
  /// Receives the names of the derivatives that are always zero; null: not wanted.
  std::vector<std::string>* zeros = nullptr;
};

// Four further derivatives, in the form of gradient(): x_1, x_2, ... are the values of
// `wrt`, y_1, y_2, ... those of `outputs`. Weights of `wrt` become inputs; every derivative has the
// dtype of its value; what does not depend on a value has zeros for it. Dimensions may be open.
// They throw what gradient() throws; a rule that cannot be differentiated again is a GradientError.

/// Vector-Jacobian products: for cotangents u_i, inputs `<y_i>_grad` of the shape of y_i, the
/// outputs `<x_j>_grad` = sum_i (dy_i/dx_j)^T u_i, of the shape of x_j. The graph of gradient().
Model vjp(const Model& model, const DerivativeOptions& options = {});

/// Jacobian-vector products: for tangents v_j, inputs `<x_j>_tangent` of the shape of x_j, the
/// outputs `<y_i>_tangent` = sum_j (dy_i/dx_j) v_j, of the shape of y_i. It is the gradient of
/// vjp() by its cotangents, which it is linear in; what only vjp() needed is removed.
Model jvp(const Model& model, const DerivativeOptions& options = {});

/// Products with the Hessian of y = sum_i y_i: for inputs `<x_j>_tangent` = v_j, the outputs
/// `<x_j>_hvp` = sum_k (d^2 y / dx_j dx_k) v_k, of the shape of x_j: the gradient of
/// sum_k <dy/dx_k, v_k>. Costs a few times as much as the gradient. Each output has one element.
/// Throws: ModelError (an output with more).
Model hvp(const Model& model, const DerivativeOptions& options = {});

/// The Hessian of y = sum_i y_i, outputs with one element each, in blocks: for each pair of `wrt`,
/// in the order of the rows, an output `<x_j>_<x_k>_hessian` of the shape of x_j followed by that
/// of x_k, whose element [a, b] is d^2 y / dx_j[a] dx_k[b]. A Scan over the elements of x_j (a Loop
/// where their number is open) computes a row of all blocks at a time with one Hessian-vector
/// product: time grows with the number of elements of `wrt`, memory with its square. Throws:
/// ModelError (an output with more than one element).
Model hessian(const Model& model, const DerivativeOptions& options = {});

struct TrainingStepOptions {
  /// Glob patterns of weights to train; empty: the trainable ones.
  std::vector<std::string> trainable = {};
  /// Glob patterns of weights to leave unchanged.
  std::vector<std::string> frozen = {};
  /// Weights that share a tensor of the file by accident are trained separately; false: as one. See
  /// SeparatedWeight.
  bool untie = true;
  UpdateOptions update = {};  ///< groups of weights, clipping, accumulation
  bool gradients = false;     ///< also output `<weight>_grad`
  /// Values that no gradient flows through; to leave weights as they are, use `frozen`.
  std::vector<std::string> stop_gradient = {};
  TrainingMode training_mode = TrainingMode::kAuto;
  MixedPrecision precision = {};  ///< inserts Casts; with kFloat16 the loss scale is state
  /// The graph computes the rate of each update from `learning_rate` and the number of updates.
  std::optional<Schedule> schedule = {};
  /// Number of updates in the whole training, for schedules whose length is a fraction of it or all
  /// of it, and for those that count epochs. 0: unknown.
  std::int64_t updates = 0;
  std::int64_t epochs = 1;  ///< epochs that these updates make up
  WriteOptions write = {};
};

/// One training step as one model. Inputs: the model's, the target, the sample weight if there is
/// one, `learning_rate` (rank 0; OptimalRate has none), for a schedule with plateaus the product
/// of their factors so far (`plateau_factor`, float64, rank 0: the caller computes it from the
/// epochs' losses), then the
/// state: each weight, the optimizer's slots
/// ("momentum/<weight>", "adam_m/<weight>", "adam_v/<weight>", ...) and "step_count"; state inputs
/// have their initial values as initializers. Outputs: the loss, gradients if requested, then
/// "next/<state>" in the same order. Feeding outputs back trains in any runtime. Throws: what
/// find_loss and gradient throw; ModelError for L-BFGS, which is a loop around such a graph.
Model training_step(const Model& model, const Loss& loss = {}, const Optimizer& optimizer = Sgd{},
                    const TrainingStepOptions& options = {});

}  // namespace onnxgrad

#endif  // ONNXGRAD_GRADIENT_H_
