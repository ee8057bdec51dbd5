#ifndef ONNXGRAD_OPDEF_BODY_H_
#define ONNXGRAD_OPDEF_BODY_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "opdef/kernel.h"

// Subgraphs that a kernel runs (Scan, Loop, If): compiled once for given shapes, then run any
// number of times. An iteration costs a few pointer writes besides the body's own kernels: scanned
// values are read and written in place, and a state's new value is written over the old one, or the
// two buffers change their roles.
//
// On a device other than the host the kernel is a function of the host, which submits the body once
// for each iteration: its arguments are addresses of the device, and operands are computed later.

namespace onnxgrad::opdef {

/// Most iterations of a run that does not poll for an interrupt.
inline constexpr std::int64_t kMostWithoutPoll = 4096;

/// The location of an operand of a body: in iteration i at `at` + i * `stride` (bytes).
struct Slice {
  std::byte* at = nullptr;
  std::int64_t stride = 0;
};

/// A value that each iteration replaces by a new one of the same type and shape.
struct BodyState {
  const std::byte* initial = nullptr;  ///< nullptr: it is a truth value, and true
  std::byte* last = nullptr;           ///< receives its last value; nullptr: not wanted
};

/// One run of a body. Its inputs are those of the graph in order, without the states; its outputs
/// are those that follow the states' new values.
struct BodyRun {
  const BodyState* states = nullptr;
  const Slice* inputs = nullptr;
  const Slice* outputs = nullptr;
  std::int64_t count = 1;  ///< maximum number of iterations
  /// State 0 is a truth value: there are no further iterations once it is false.
  bool stops = false;
  /// Receives the number of the iteration while it runs.
  std::int64_t* counter = nullptr;
  bool counts = false;  ///< of a body that is submitted: input 0 is the number of the iteration
  /// The outputs have space for this many iterations; then grow(), if given, moves them and
  /// returns the new number.
  std::int64_t capacity = std::numeric_limits<std::int64_t>::max();
  const std::function<std::int64_t(std::int64_t done)>* grow = nullptr;
  std::byte* workspace = nullptr;  ///< CompiledBody::workspace_bytes(), 64-byte aligned
};

/// A subgraph compiled for given shapes. Immutable; all that changes is in the workspace.
class CompiledBody {
 public:
  virtual ~CompiledBody() = default;
  /// Types and shapes of the outputs after those of the states.
  virtual const std::vector<TensorDesc>& outputs() const = 0;
  virtual std::int64_t workspace_bytes() const = 0;
  /// Whether one of its kernels may throw (PreparedKernel::checks).
  virtual bool may_throw() const = 0;
  /// The sum over its kernels.
  virtual double flops() const = 0;
  /// Returns the number of iterations. Allocates nothing, but for the first run of a body that is
  /// submitted.
  virtual std::int64_t run(const BodyRun& run, const Launch& launch) const = 0;
  /// Copies an operand of the node to the host; waits until it is computed.
  virtual void read(std::byte* to, const std::byte* from, std::int64_t bytes,
                    const Launch& /*launch*/) const {
    std::memcpy(to, from, static_cast<std::size_t>(bytes));
  }
};

/// The inputs of a body that are states: `num_states` from number `first_state` on. Their new
/// values are its first outputs.
struct BodyForm {
  std::size_t first_state = 0;
  std::size_t num_states = 0;
};

/// Compiles the bodies of a node for its kernel. The node is in a closed form: values of enclosing
/// graphs that a body reads are inputs of node and body (after their own), unless they are
/// constants.
class BodyCompiler {
 public:
  virtual ~BodyCompiler() = default;
  /// Whether the bodies are submitted to a device.
  virtual bool submits() const { return false; }
  /// Compiles a body; `inputs`: all inputs of the body. nullptr, with a reason, if its shapes
  /// depend on values, or if a state's next value has another type or shape. Equal calls share one
  /// result.
  virtual std::shared_ptr<const CompiledBody> compile(const ir::Graph& body,
                                                      std::span<const TensorDesc> inputs,
                                                      BodyForm form, std::string& reason) const = 0;
};

}  // namespace onnxgrad::opdef

#endif  // ONNXGRAD_OPDEF_BODY_H_
