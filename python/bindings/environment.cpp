// Versions of the library and of what it was built with, and what computes its large products.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <utility>
#include <vector>

#include "bindings.h"
#include "onnxgrad/amx.h"
#include "onnxgrad/cuda_libraries.h"
#include "onnxgrad/devices.h"
#include "onnxgrad/version.h"

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace onnxgrad::python {
namespace {

std::vector<std::pair<std::string, std::string>> environment() {
  return {{"version", version()},
          {"compiler", __VERSION__},
          {"nanobind", std::to_string(NB_VERSION_MAJOR) + "." + std::to_string(NB_VERSION_MINOR)}};
}

std::vector<std::pair<std::string, std::string>> installed_devices() {
  std::vector<std::pair<std::string, std::string>> result;
  for (const DeviceInfo& device : devices()) result.emplace_back(device.name, device.origin);
  return result;
}

// Where this interpreter finds its packages: wheels of NVIDIA may be there.
void add_wheels_of_interpreter() {
  std::vector<std::string> folders;
  for (const nb::handle entry : nb::module_::import_("sys").attr("path")) {
    if (nb::isinstance<nb::str>(entry)) folders.push_back(nb::cast<std::string>(entry));
  }
  add_cuda_wheels(folders);
}

}  // namespace

void bind_environment(nb::module_& module) {
  add_wheels_of_interpreter();
  module.def("version", &version, "The version of the C++ library.");
  module.def("environment", &environment, "Versions of the library and of its build.");
  module.def("devices", &installed_devices, "Name and origin of each device.");
  module.def("load_device_plugin", &load_device_plugin, "file"_a, "Loads a device plugin.");
  module.def("use_amx_for_float32", &use_amx_for_float32, "on"_a,
             "Large products of float32 in parts of bfloat16 by AMX.");
  module.def("amx_computes_float32", &amx_computes_float32, "Whether they are: false without AMX.");
}

}  // namespace onnxgrad::python
