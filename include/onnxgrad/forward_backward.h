#ifndef ONNXGRAD_FORWARD_BACKWARD_H_
#define ONNXGRAD_FORWARD_BACKWARD_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "onnxgrad/device_tensor.h"
#include "onnxgrad/gradient.h"
#include "onnxgrad/inference_session.h"
#include "onnxgrad/model.h"
#include "onnxgrad/precision.h"
#include "onnxgrad/profile.h"

namespace [[gnu::visibility("default")]] onnxgrad {

struct ForwardBackwardOptions {
  /// Glob patterns of the weights to differentiate; empty: WeightInfo::trainable ones; a model
  /// without such weights is differentiated only with respect to its inputs.
  std::vector<std::string> weights = {};
  /// Glob patterns of weights to treat as constants.
  std::vector<std::string> frozen = {};
  /// Weights that share a tensor of the file by accident get separate gradients, and are written
  /// separately; false: the file keeps its tensors. See SeparatedWeight.
  bool untie = true;
  /// Names of inputs to differentiate; empty: all of floating type.
  std::vector<std::string> inputs = {};
  bool input_gradients = true;                       ///< false: gradients of weights only
  std::vector<std::string> stop_gradient = {};       ///< see TrainingOptions
  TrainingMode training_mode = TrainingMode::kAuto;  ///< for forward passes for training
  /// Precision of passes for training; values saved between them have 16 bits. There is no loss to
  /// scale: with kFloat16 the caller scales the gradients of the outputs.
  MixedPrecision precision = {};
  EngineOptions engine = {};
};

/// A model as a function with a gradient, for training loops, losses and layers outside onnxgrad:
/// forward() computes outputs and saves what the gradients need, backward() takes gradients of the
/// outputs and returns those of weights and inputs. Nothing is copied between the two: kernels
/// write saved tensors and outputs into memory that the context and the results own, and weights
/// and inputs are read in place. Both are graphs, each an ordinary model.
/// One call at a time: a call while another thread is in one throws Error.
class ForwardBackward {
 public:
  /// The values that one forward pass saved for its backward pass. Copies share it; it outlives the
  /// ForwardBackward, and its memory is freed with the last copy.
  class Context {
   public:
    struct Data;  ///< private to the library
    Context() = default;
    explicit Context(std::shared_ptr<Data> data) : data_(std::move(data)) {}
    /// Bytes of the saved tensors, without inputs and weights, which are shared.
    std::int64_t saved_bytes() const;
    /// Views of the saved tensors by name in forward_graph(), until the backward pass; copies if
    /// they are in the memory of a device.
    NamedTensors saved() const;
    bool operator==(const Context&) const = default;
    const std::shared_ptr<Data>& data() const { return data_; }

   private:
    std::shared_ptr<Data> data_;
  };

  struct Result {
    std::vector<Tensor> outputs;  ///< in the order of outputs()
    Context context;              ///< empty if not for training
  };

  struct Gradients {
    NamedTensors weights;  ///< by name of the weight, in the order of weight_infos()
    NamedTensors inputs;   ///< by name of the input
  };

  /// Results in the memory of the device; see InferenceSession::run_on_device().
  struct DeviceResult {
    std::vector<DeviceTensor> outputs;
    Context context;
  };
  struct DeviceGradients {
    NamedDeviceTensors weights;
    NamedDeviceTensors inputs;
  };

  struct OutputsAndGradients {
    std::vector<Tensor> outputs;  ///< in the order of outputs()
    Gradients gradients;
  };

  /// Builds the forward and backward graphs. Throws: GradientError (names every node without a
  /// gradient), ModelError (a pattern or name without a match, nothing to differentiate),
  /// UnsupportedOperatorError, DeviceError.
  explicit ForwardBackward(const Model& model, const ForwardBackwardOptions& options = {});
  ~ForwardBackward();
  ForwardBackward(ForwardBackward&&) noexcept;
  ForwardBackward& operator=(ForwardBackward&&) noexcept;

  /// Computes the outputs for these inputs. `inputs` are read in place; with `training`, inputs and
  /// outputs must not be modified before the backward pass. Without `training` nothing is saved.
  /// Several passes may be open, each with its own context. Passes for training are in training
  /// mode (see TrainingMode) and update running statistics. Throws: DataError (missing or unknown
  /// input, dtype), ShapeError.
  Result forward(const NamedTensors& inputs, bool training = true);
  /// Computes the gradients of sum_i <output_gradients[i], output_i> for the last open forward
  /// pass, which is closed; a stack of passes is thus traversed backwards. An undefined tensor
  /// means zeros, and so do missing ones at the end; outputs that are not floating-point take none.
  /// Throws: DataError (too many, dtype), ShapeError; the pass is then still open. Error (no pass
  /// is open).
  Gradients backward(std::span<const Tensor> output_gradients);
  /// Computes the gradients for any open pass, which is closed. Throws: Error if it is closed or of
  /// another ForwardBackward.
  Gradients backward(std::span<const Tensor> output_gradients, const Context& context);
  /// The outputs for `inputs`, in the order of inputs(), and the gradients of the sum of the first
  /// output: forward() and backward() with ones, for training loops whose loss is that output.
  /// Throws: what these do; no pass stays open.
  OutputsAndGradients run(std::span<const Tensor> inputs);
  /// forward() and backward() of arrays in any memory, with results on the device. Saved tensors
  /// and weights are there with every function.
  DeviceResult forward_on_device(const NamedDeviceTensors& inputs, bool training = true);
  DeviceGradients backward_on_device(std::span<const DeviceTensor> output_gradients);
  DeviceGradients backward_on_device(std::span<const DeviceTensor> output_gradients,
                                     const Context& context);
  /// Open passes, oldest first.
  std::vector<Context> contexts() const;
  /// Closes a pass without computing gradients. Throws: Error, as backward() does.
  void discard(const Context& context);

  const std::vector<ValueInfo>& inputs() const;
  const std::vector<ValueInfo>& outputs() const;
  const std::vector<WeightInfo>& weight_infos() const;
  const std::vector<std::string>& gradient_inputs() const;

  /// Views of the current weights, then of the running statistics (copies on other devices than the
  /// CPU): set_weights() makes new tensors and does not write to these.
  NamedTensors weights() const;
  /// Sets some weights, copied, for forward passes from now on. Open passes keep the weights that
  /// they were run with. Throws: ModelError (unknown weight, different dtype or shape).
  void set_weights(const NamedTensors& weights);
  /// Memory held by this object. `activations` covers the largest passes so far, with saved tensors
  /// and results that are in use or kept for reuse. Cheap values that
  /// EngineOptions::memory_limit_bytes does not let a forward pass save are among those that are
  /// computed again.
  MemoryReport memory() const;
  /// The file as it was loaded, with the current weights.
  Model trained_model() const;

  /// The graph of forward passes. Inputs: the model's, then the weights, then running statistics.
  Model inference_graph(const WriteOptions& options = {}) const;
  /// The forward graph in training mode; saved values, then new running statistics are further
  /// outputs.
  Model forward_graph(const WriteOptions& options = {}) const;
  /// The graph of backward passes. Inputs: "<output>_grad", then the inputs and weights of the
  /// forward graph that it needs, then the outputs that it needs, under their names there. Outputs:
  /// "<name>_grad".
  Model backward_graph(const WriteOptions& options = {}) const;

  struct Impl;  ///< private to the library

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace onnxgrad

#endif  // ONNXGRAD_FORWARD_BACKWARD_H_
