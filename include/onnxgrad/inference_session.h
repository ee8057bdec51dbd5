#ifndef ONNXGRAD_INFERENCE_SESSION_H_
#define ONNXGRAD_INFERENCE_SESSION_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "onnxgrad/device_tensor.h"
#include "onnxgrad/model.h"
#include "onnxgrad/profile.h"

namespace [[gnu::visibility("default")]] onnxgrad {

/// Options of the engine, common to all sessions.
struct EngineOptions {
  /// One of devices() (onnxgrad/devices.h), or "auto" for the first one other than the CPU, if
  /// there is one. Empty: that of the environment variable ONNXGRAD_DEVICE, without it the CPU.
  std::string device = {};
  int threads = 0;         ///< 0: the cores that this process may use
  std::uint64_t seed = 0;  ///< for Dropout and other random operators
  /// Limit on the memory of a session: weights, optimizer state, values of a step and the model's
  /// file, but not the rest of the process. Training steps compute values again where they would
  /// need more. On a device with memory of its own it is the limit there, and once more that on the
  /// host. 0: three quarters of the machine's (or cgroup's) memory, and all of the device's.
  std::int64_t memory_limit_bytes = 0;
  bool fuse = true;  ///< false: one kernel per node, for debugging
  /// How products and convolutions of float32 are computed: "float32", or "tf32", which rounds
  /// their factors to 10 bits on devices that are faster with these. The CPU is not.
  std::string math = "float32";
  /// False: a device may use faster kernels, whose results have other bits in each run.
  bool deterministic = true;
  /// Receives a sentence about inputs that can be run but do not agree with the model's
  /// declarations; called by the thread of the run. nullptr: a line on standard error.
  std::function<void(const std::string& message)> warn = nullptr;
};

/// Packs a sequence of tensors, or an optional that holds one tensor or sequence, into one tensor
/// of bytes, uint8 [n]: the form in which InferenceSession::run takes and returns these types. Maps
/// are rows of a tensor (see ValueInfo::keys); the elements of one that cannot be are its keys and
/// its values, one tensor each. Copies the elements.
Tensor pack_values(std::span<const Tensor> elements);
/// Packs an empty optional.
Tensor pack_nothing();
/// Unpacks the elements, copied; nullopt: an empty optional. Throws: DataError (other bytes).
std::optional<std::vector<Tensor>> unpack_values(const Tensor& packed);

/// Runs a model. Plans are compiled per input shape and cached. One call at a time: a call from
/// another thread while one is running throws Error; sessions are independent of each other.
class InferenceSession {
 public:
  /// Outputs that cannot be computed are no error until a run requests them, if there are others.
  /// Throws: UnsupportedOperatorError (names every node without a kernel), ModelError, DeviceError.
  explicit InferenceSession(const Model& model, const EngineOptions& options = {});
  ~InferenceSession();
  InferenceSession(InferenceSession&&) noexcept;
  InferenceSession& operator=(InferenceSession&&) noexcept;

  /// Inputs to feed. Weights of gradient models are ordinary inputs.
  const std::vector<ValueInfo>& inputs() const;
  /// Inputs with a default, which a run may be given other values for.
  const std::vector<ValueInfo>& overridable_inputs() const;
  /// Outputs; a ZipMap's maps are the tensor [N, C] that it reads, with the keys of its columns.
  const std::vector<ValueInfo>& outputs() const;

  /// Computes the named outputs (empty: all) and returns copies. Only inputs that they depend on
  /// need to be fed. Feeds are read, not copied. Sequences and optionals are packed: see
  /// pack_values(). Plans for the last eight sets of outputs, of fed and of overridden inputs are
  /// kept. Throws: DataError (unknown output, unknown or missing input, dtype), ShapeError,
  /// UnsupportedOperatorError (an output that cannot be computed).
  std::vector<Tensor> run(std::span<const std::string> output_names, const NamedTensors& feeds);
  /// Like run(), with feeds in any memory and results that stay in the memory of the session's
  /// device: a feed from there is read in place, others are copied. The call may return before the
  /// results are computed. Strings are in host memory.
  std::vector<DeviceTensor> run_on_device(std::span<const std::string> output_names,
                                          const NamedDeviceTensors& feeds);

  /// The plan of the last run, one line per kernel; empty before the first.
  std::string plan_summary() const;

  /// Turns timing of kernels on or off. Turning it on clears the profile.
  void set_profiling(bool on);
  /// Measurements so far.
  Profile profile() const;
  /// Memory by purpose. Weights are constants of the plans: those that are read in the file's bytes
  /// count as `file`, all others, and their packed copies, as `constants`. `activations` are inner
  /// values and outputs; `scratch` and `dynamic` are the only other purposes.
  MemoryReport memory() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace onnxgrad

#endif  // ONNXGRAD_INFERENCE_SESSION_H_
