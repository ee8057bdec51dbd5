#include "interrupt.h"

#include <atomic>

namespace onnxgrad::python {
namespace {

// A signal handler gets no argument of ours, so these are the only globals of the extension.
std::atomic<Trainer*> interrupted_trainer = nullptr;
std::atomic<void (*)(int)> previous_handler = nullptr;
std::atomic<bool> interrupted = false;

extern "C" void stop_trainer(int signal_number) {
  interrupted.store(true);
  if (Trainer* const trainer = interrupted_trainer.load()) trainer->stop();
  // Python's own handler: it notes the signal, to be raised as KeyboardInterrupt.
  if (auto* const handler = previous_handler.load()) handler(signal_number);
}

}  // namespace

InterruptGuard::InterruptGuard(Trainer& trainer) {
  if (interrupted_trainer.load() != nullptr || sigaction(SIGINT, nullptr, &previous_) != 0) return;
  const bool has_handler = (previous_.sa_flags & SA_SIGINFO) == 0 &&
                           previous_.sa_handler != SIG_DFL && previous_.sa_handler != SIG_IGN;
  if (!has_handler) return;
  previous_handler.store(previous_.sa_handler);
  interrupted.store(false);
  interrupted_trainer.store(&trainer);
  struct sigaction ours = previous_;
  ours.sa_handler = stop_trainer;
  is_installed_ = sigaction(SIGINT, &ours, nullptr) == 0;
  if (!is_installed_) interrupted_trainer.store(nullptr);
}

InterruptGuard::~InterruptGuard() {
  if (!is_installed_) return;
  sigaction(SIGINT, &previous_, nullptr);
  interrupted_trainer.store(nullptr);
}

bool InterruptGuard::was_interrupted() noexcept {
  return interrupted_trainer.load() != nullptr && interrupted.load();
}

}  // namespace onnxgrad::python
