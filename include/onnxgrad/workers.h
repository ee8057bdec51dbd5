#ifndef ONNXGRAD_WORKERS_H_
#define ONNXGRAD_WORKERS_H_

#include <cstdint>
#include <memory>

namespace [[gnu::visibility("default")]] onnxgrad {

namespace dist {
class Communicator;  ///< the connection to the other workers
}

/// The way on which devices other than the CPU exchange gradients with those of other workers.
enum class DeviceExchange : std::uint8_t {
  kDirect,   ///< by the device's own library (NCCL between cards), in an order of its own
  kOrdered,  ///< by that library, and sums are taken in the order of ranks, as on the CPU
  kHost,     ///< through the memory of the host, as messages
};

/// Data-parallel training: each of several workers computes its rows of every batch, and the
/// results are combined to those of a single worker; see docs/distributed.md. All workers make the
/// same calls with the same arguments.
struct WorkerOptions {
  /// Connection to the other workers; nullptr: this process is alone.
  std::shared_ptr<dist::Communicator> communicator = nullptr;
  /// Float32 gradients are sent as bfloat16: half the traffic. They are added up in float32.
  bool as_bfloat16 = false;
  /// BatchNormalization takes its statistics over the rows of all workers; false: over each
  /// worker's, and the running ones are averaged at the end of an epoch.
  bool sync_normalization = false;
  /// Each worker keeps the optimizer's state of a slice of the weights, updates that and sends it
  /// to the others (ZeRO's first stage). Results are the same.
  bool shares_update = false;
  /// Steps between two exchanges of weights. More than 1: each worker updates its own weights from
  /// its rows alone. After so many steps, and at the end of each epoch, the mean change of the
  /// weights is the gradient of an outer optimizer, gradient descent with Nesterov's momentum
  /// (DiLoCo, Douillard et al. 2023).
  std::int64_t sync_every = 1;
  double outer_learning_rate = 0.7;
  double outer_momentum = 0.9;
  DeviceExchange exchange = DeviceExchange::kDirect;
};

}  // namespace onnxgrad

#endif  // ONNXGRAD_WORKERS_H_
