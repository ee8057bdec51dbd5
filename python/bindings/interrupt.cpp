#include "interrupt.h"

#include <atomic>

namespace onnxgrad::python {
namespace {

// A signal handler gets no argument of ours, so these are the only globals of the extension.
std::atomic<Trainer*> interrupted_trainer = nullptr;
std::atomic<bool> interrupted = false;
// Python's handlers, which note the signal: an exception is raised from it later.
std::atomic<void (*)(int)> handler_of_interrupt = nullptr;
std::atomic<void (*)(int)> handler_of_termination = nullptr;

std::atomic<void (*)(int)>& handler_of(int signal_number) {
  return signal_number == SIGTERM ? handler_of_termination : handler_of_interrupt;
}

extern "C" void stop_trainer(int signal_number) {
  interrupted.store(true);
  if (Trainer* const trainer = interrupted_trainer.load()) trainer->stop();
  if (auto* const handler = handler_of(signal_number).load()) handler(signal_number);
}

}  // namespace

InterruptGuard::InterruptGuard(Trainer& trainer) {
  if (interrupted_trainer.load() != nullptr) return;
  is_active_ = true;
  interrupted.store(false);
  interrupted_trainer.store(&trainer);
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    struct sigaction& previous = previous_[i];
    if (sigaction(kSignals[i], nullptr, &previous) != 0) continue;
    const bool has_handler = (previous.sa_flags & SA_SIGINFO) == 0 &&
                             previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN;
    if (!has_handler) continue;
    handler_of(kSignals[i]).store(previous.sa_handler);
    struct sigaction ours = previous;
    ours.sa_handler = stop_trainer;
    is_installed_[i] = sigaction(kSignals[i], &ours, nullptr) == 0;
  }
}

InterruptGuard::~InterruptGuard() {
  if (!is_active_) return;
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    if (is_installed_[i]) sigaction(kSignals[i], &previous_[i], nullptr);
  }
  interrupted_trainer.store(nullptr);
}

bool InterruptGuard::was_interrupted() noexcept {
  return interrupted_trainer.load() != nullptr && interrupted.load();
}

}  // namespace onnxgrad::python
