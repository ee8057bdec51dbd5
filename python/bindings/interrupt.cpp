#include "interrupt.h"

#include <array>
#include <atomic>
#include <cstddef>

namespace onnxgrad::python {
namespace {

using Handler = void (*)(int);

// A signal handler gets no argument of ours, so these are the only globals of the extension.
std::atomic<Trainer*> interrupted_trainer = nullptr;
std::array<std::atomic<Handler>, NSIG> handlers = {};  // previous handlers

extern "C" void interrupt_trainer(int signal_number) {
  // Python notes the signal first, so that it is there when the trainer asks.
  if (const Handler handler = handlers[static_cast<std::size_t>(signal_number)].load()) {
    handler(signal_number);
  }
  if (Trainer* const trainer = interrupted_trainer.load()) trainer->interrupt();
}

bool has_handler(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) == 0 && action.sa_handler != SIG_DFL &&
         action.sa_handler != SIG_IGN;
}

}  // namespace

InterruptGuard::InterruptGuard(Trainer& trainer, const std::vector<int>& signals)
    : outer_(interrupted_trainer.exchange(&trainer)) {
  for (const int number : signals) {
    struct sigaction previous{};
    if (number < 1 || number >= NSIG || sigaction(number, nullptr, &previous) != 0) continue;
    if (!has_handler(previous) || previous.sa_handler == interrupt_trainer) continue;
    handlers[static_cast<std::size_t>(number)].store(previous.sa_handler);
    struct sigaction ours = previous;
    ours.sa_handler = interrupt_trainer;
    if (sigaction(number, &ours, nullptr) == 0) previous_.emplace_back(number, previous);
  }
}

InterruptGuard::~InterruptGuard() {
  for (const auto& [number, previous] : previous_) {
    struct sigaction now{};
    // A callback may have installed another handler, which stays.
    const bool is_ours = sigaction(number, nullptr, &now) == 0 && has_handler(now) &&
                         now.sa_handler == interrupt_trainer;
    if (is_ours) sigaction(number, &previous, nullptr);
  }
  interrupted_trainer.store(outer_);
}

}  // namespace onnxgrad::python
