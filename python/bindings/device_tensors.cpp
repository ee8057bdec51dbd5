// Arrays in the memory of devices.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings.h"
#include "dlpack.h"
#include "onnxgrad/device_tensor.h"
#include "tensor_caster.h"
#include "unlocked.h"

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace onnxgrad::python {
namespace {

using Memory = std::pair<std::int32_t, std::int32_t>;

DlpackDevice memory_of(const Memory& pair) { return {.type = pair.first, .id = pair.second}; }

}  // namespace

void bind_device_tensors(nb::module_& module) {
  nb::class_<DeviceTensor>(module, "DeviceTensor")
      .def_prop_ro("dtype",
                   [](const DeviceTensor& t) { return std::string(dtype_name(t.dtype())); })
      .def_prop_ro("shape",
                   [](const DeviceTensor& t) {
                     const auto dims = t.dims().values();
                     return std::vector<std::int64_t>(dims.begin(), dims.end());
                   })
      .def_prop_ro("ndim", [](const DeviceTensor& t) { return t.dims().rank(); })
      .def_prop_ro("device", &DeviceTensor::device)
      .def_prop_ro("dlpack_device",
                   [](const DeviceTensor& t) {
                     return Memory(t.dlpack_device().type, t.dlpack_device().id);
                   })
      .def("rows", &DeviceTensor::rows, "begin"_a, "end"_a)
      .def("copy", &DeviceTensor::copy, Unlocked())
      .def("to_host", &DeviceTensor::to_host, Unlocked())
      .def("wait", &DeviceTensor::wait, Unlocked())
      .def("wait_in", &DeviceTensor::wait_in, "foreign_stream"_a, Unlocked())
      .def("to_capsule", &to_capsule, "is_versioned"_a);
  module.def("device_tensor_of", &DeviceTensor::copy_of, "tensor"_a, "device"_a, Unlocked());
  module.def(
      "joined_device_tensors",
      [](const std::vector<DeviceTensor>& parts) { return DeviceTensor::joined(parts); }, "parts"_a,
      Unlocked());
  module.def(
      "has_dlpack_device",
      [](const Memory& memory) { return DeviceTensor::has_device(memory_of(memory)); }, "memory"_a);
  module.def(
      "dlpack_stream",
      [](const Memory& memory) { return DeviceTensor::foreign_stream(memory_of(memory)); },
      "memory"_a);
  module.def("device_tensor_from_capsule", &from_capsule, "capsule"_a);
}

}  // namespace onnxgrad::python
