#ifndef ONNXGRAD_INTERRUPT_H_
#define ONNXGRAD_INTERRUPT_H_

namespace [[gnu::visibility("default")]] onnxgrad {

/// Leaves a call that was interrupted. Not a std::exception on purpose: nothing that reads a model
/// may take it for an error in the model.
class Interrupted {};

/// While it lives, calls of this thread that read, differentiate or compile a model ask
/// `wants_stop` between their nodes, at most every 20 ms; they end with Interrupted where it
/// returns true. What they were called on is as before. Scopes may nest: the innermost one counts.
class InterruptScope {
 public:
  using WantsStop = bool (*)();
  explicit InterruptScope(WantsStop wants_stop) noexcept;
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;

 private:
  WantsStop previous_;
};

}  // namespace onnxgrad

#endif  // ONNXGRAD_INTERRUPT_H_
