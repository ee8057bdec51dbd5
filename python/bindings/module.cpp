// The extension onnxgrad._core. Each topic has its own file with one bind_<topic>(module) function;
// there is no logic here.
#include <nanobind/nanobind.h>

#include "onnxgrad/version.h"

namespace nb = nanobind;

NB_MODULE(_core, module) {
  module.doc() = "Private extension of onnxgrad; use the functions of package onnxgrad.";
  module.def("version", &onnxgrad::version, "The version of the C++ library.");
}
