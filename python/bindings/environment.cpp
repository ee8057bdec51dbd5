// Versions of the library and of what it was built with.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <utility>
#include <vector>

#include "bindings.h"
#include "onnxgrad/version.h"

namespace nb = nanobind;

namespace onnxgrad::python {
namespace {

std::vector<std::pair<std::string, std::string>> environment() {
  return {{"version", version()},
          {"compiler", __VERSION__},
          {"nanobind", std::to_string(NB_VERSION_MAJOR) + "." + std::to_string(NB_VERSION_MINOR)}};
}

}  // namespace

void bind_environment(nb::module_& module) {
  module.def("version", &version, "The version of the C++ library.");
  module.def("environment", &environment, "Versions of the library and of its build.");
}

}  // namespace onnxgrad::python
