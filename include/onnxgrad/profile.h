#ifndef ONNXGRAD_PROFILE_H_
#define ONNXGRAD_PROFILE_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace [[gnu::visibility("default")]] onnxgrad {

/// Time of one kernel over the steps or runs since profiling began.
struct KernelTime {
  std::string op_type;
  std::string node;    ///< name of the node (of the first one, if several were fused)
  std::string kernel;  ///< implementation, e.g. "xsmm 15x50x100"
  std::int64_t calls = 0;
  double total_s = 0;
  double flops = 0;  ///< floating-point operations of one call; 0: not known
  int threads = 1;   ///< threads that the kernel took
};

/// Times of kernels in training steps or runs.
struct Profile {
  std::vector<KernelTime> kernels;  ///< slowest first
  /// Single calls (the first million) in the Trace Event format, JSON, for Perfetto or
  /// chrome://tracing.
  std::string trace_json;
  /// `kernels` as text, one line each: fraction, time, calls, mean, GFlop/s, operator, node,
  /// kernel.
  std::string to_text() const;
};

/// Bytes that a session holds, by purpose: in the memory of its device, but for snapshots, the file
/// and what is on the host.
struct MemoryReport {
  std::int64_t weights = 0;          ///< weights, including running statistics
  std::int64_t optimizer_state = 0;  ///< slots and counters
  std::int64_t activations = 0;      ///< values and gradients of the largest step so far
  std::int64_t scratch = 0;          ///< work space of kernels during a step
  std::int64_t constants = 0;   ///< folded values, weights not read in the file's bytes; all plans
  std::int64_t dynamic = 0;     ///< plans of branches and of data-dependent shapes
  std::int64_t evaluation = 0;  ///< all of these for evaluate() and predict()
  std::int64_t snapshots = 0;   ///< copies of the state during fit(), to roll back to
  std::int64_t file = 0;        ///< the model's file with the first values of its weights
  std::int64_t host = 0;        ///< constants that the host keeps for plans of another device
  std::string device = "cpu";   ///< the session's
  /// Recomputation in a step to fit EngineOptions::memory_limit_bytes: values that are not kept,
  /// their bytes, and the operations of the products and convolutions that run twice.
  std::int64_t recomputed_values = 0;
  std::int64_t recomputed_bytes = 0;
  double recomputed_flops = 0;
  std::int64_t total() const {
    return weights + optimizer_state + activations + scratch + constants + dynamic + evaluation +
           snapshots + file + host;
  }
  /// The bytes in the memory of each device, the host's ("cpu") first.
  std::vector<std::pair<std::string, std::int64_t>> by_device() const;
  /// One line per purpose.
  std::string to_text() const;
};

}  // namespace onnxgrad

#endif  // ONNXGRAD_PROFILE_H_
