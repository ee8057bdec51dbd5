#ifndef ONNXGRAD_INTERRUPT_H_
#define ONNXGRAD_INTERRUPT_H_

namespace [[gnu::visibility("default")]] onnxgrad {

/// Thrown out of an interrupted call. Deliberately not a std::exception: code that reads a model
/// must not mistake it for an error in the model.
class Interrupted {};

/// Makes calls interruptible: during its lifetime, calls on this thread that read, differentiate,
/// compile or run a model call `wants_stop` between nodes, at most every 20 ms, and throw
/// Interrupted when it returns true. What they were called on is unchanged: a run that updates
/// weights or other state ends first. Scopes may nest: the innermost one applies.
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
