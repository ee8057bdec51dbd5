#ifndef ONNXGRAD_TRAIN_FORWARD_BACKWARD_H_
#define ONNXGRAD_TRAIN_FORWARD_BACKWARD_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "onnxgrad/forward_backward.h"
#include "runtime/executor.h"
#include "runtime/input_sizes.h"
#include "train/graphs/split_graph.h"
#include "train/tools/engine.h"

namespace onnxgrad {

/// The tensors of an open forward pass, in the memory of the device. Everything is shared: with the
/// caller (inputs, outputs), with the ForwardBackward (weights), or owned only here (the block of
/// saved tensors).
struct ForwardBackward::Context::Data {
  /// Names of the forward graph's outputs; the object itself identifies its SplitRunner.
  std::shared_ptr<const std::vector<std::string>> names = {};
  std::vector<DeviceTensor> inputs = {};        ///< inputs of forward that backward reads
  std::vector<DeviceTensor> kept = {};          ///< outputs of forward that backward reads
  std::vector<opdef::TensorDesc> outputs = {};  ///< outputs of the model
  std::vector<Dims> input_dims = {};            ///< shapes of the model's inputs
  std::size_t num_outputs = 0;                  ///< `kept` from here on is saved only for backward
  opdef::StepCells cells = {};
  bool is_open = true;
};

namespace train {

/// The implementation of ForwardBackward. Not thread-safe.
class SplitRunner {
 public:
  using Context = ForwardBackward::Context;

  SplitRunner(Source source, ForwardBackwardOptions options);

  /// Takes what a pass has computed before the pass counts: if this throws, it has not been.
  using TakeResult = std::function<void(const ForwardBackward::DeviceResult&)>;
  using TakeGradients = std::function<void(const ForwardBackward::DeviceGradients&)>;

  /// `take` may do the backward pass, and is called again if the pass is done with less memory.
  ForwardBackward::DeviceResult forward(const NamedDeviceTensors& inputs, bool training,
                                        const TakeResult& take = {});
  ForwardBackward::DeviceGradients backward(std::span<const DeviceTensor> output_gradients,
                                            const Context& context, const TakeGradients& take = {});

  const std::vector<Context>& contexts() const { return open_; }
  void discard(const Context& context);

  const SplitGraph& graphs() const { return split_; }
  const std::vector<ValueInfo>& inputs() const { return inputs_; }
  const std::vector<ValueInfo>& outputs() const { return outputs_; }

  NamedTensors weights() const;
  void set_weights(const NamedTensors& weights);
  MemoryReport memory() const;

 private:
  // `repeat_cheap`: see SplitOptions.
  void split(bool repeat_cheap);
  void make_executors();
  bool is_on_host() const { return backend_.engine->device.is_host(); }
  std::vector<DeviceTensor> run(runtime::Executor& executor,
                                const std::vector<DeviceTensor>& feeds) const;
  DeviceTensor placed(const Tensor& tensor) const;
  ForwardBackward::DeviceResult run_forward(const NamedDeviceTensors& inputs, bool training,
                                            const TakeResult& take);
  // Prepares a backward pass. Throws: DeviceError, if it does not fit into the budget.
  void prepare_backward(const Context::Data& data);
  std::int64_t bytes_of(const ir::Type& type) const;
  void check_open(const Context& context) const;
  std::vector<DeviceTensor> backward_feeds(std::span<const DeviceTensor> output_gradients,
                                           const Context::Data& data) const;
  DeviceTensor checked_gradient(std::span<const DeviceTensor> given, std::size_t output,
                                const Context::Data& data) const;
  void check_input_gradient(const DeviceTensor& gradient, const std::string& name,
                            const Context::Data& data) const;

  Source source_;
  ForwardBackwardOptions options_;
  Backend backend_;
  bool repeats_cheap_ = false;
  bool is_split_ = false;  ///< false: split() has thrown
  SplitGraph split_;
  std::optional<runtime::Executor> inference_;
  std::optional<runtime::Executor> forward_;
  std::optional<runtime::Executor> backward_;
  std::vector<ValueInfo> inputs_;
  std::vector<ValueInfo> outputs_;
  std::vector<WeightInfo> weight_infos_;                   // weights, then running statistics
  std::vector<DeviceTensor> weights_;                      // in the memory of the device
  std::shared_ptr<const std::vector<std::string>> names_;  // see Context::Data
  std::vector<bool> reads_input_;   // per input of the forward graph: the backward graph reads it
  std::vector<bool> reads_output_;  // per output of the forward graph
  std::vector<Dims> input_dims_;    // shapes in the last forward pass for training
  runtime::SizeWatch sizes_;
  std::uint64_t passes_ = 0;
  std::vector<Context> open_;
};

}  // namespace train
}  // namespace onnxgrad

#endif  // ONNXGRAD_TRAIN_FORWARD_BACKWARD_H_
