#include "unlocked.h"

#include <optional>

namespace nb = nanobind;

namespace onnxgrad::python {
namespace {

// Kept aside while the call unwinds: what that frees may run Python code.
thread_local std::optional<nb::python_error> raised;

bool runs_handlers() {
  const nb::gil_scoped_acquire locked;
  if (PyErr_CheckSignals() == 0) return false;
  raised.emplace();
  return true;
}

}  // namespace

InterruptibleCall::InterruptibleCall() : scope_(runs_handlers) {}

void raise_interrupt() {
  if (!raised) return PyErr_SetNone(PyExc_KeyboardInterrupt);
  raised->restore();
  raised.reset();
}

}  // namespace onnxgrad::python
