#ifndef ONNXGRAD_PYTHON_BINDINGS_DEVICE_TENSOR_CASTER_H_
#define ONNXGRAD_PYTHON_BINDINGS_DEVICE_TENSOR_CASTER_H_

#include "onnxgrad/device_tensor.h"
#include "tensor_caster.h"

// Conversion of dictionaries whose values are DeviceTensors, or host arrays in the forms of
// tensor_caster.h.

namespace nanobind::detail {

template <>
struct type_caster<onnxgrad::NamedDeviceTensors> {
  NB_TYPE_CASTER(onnxgrad::NamedDeviceTensors, const_name("dict[str, typing.Any]"))

  bool from_python(handle source, std::uint32_t flags, cleanup_list* cleanup) noexcept {
    if (!PyDict_Check(source.ptr())) return false;
    value.clear();
    for (const auto& [key, item] : borrow<dict>(source)) {
      make_caster<std::string> name;
      if (!name.from_python(key, flags, cleanup)) return false;
      if (isinstance<onnxgrad::DeviceTensor>(item)) {
        value.push_back({.name = name.value, .tensor = cast<onnxgrad::DeviceTensor>(item)});
        continue;
      }
      make_caster<onnxgrad::Tensor> tensor;
      if (!tensor.from_python(item, flags, cleanup)) return false;
      value.push_back({.name = name.value, .tensor = onnxgrad::DeviceTensor(tensor.value)});
    }
    return true;
  }
};

}  // namespace nanobind::detail

#endif  // ONNXGRAD_PYTHON_BINDINGS_DEVICE_TENSOR_CASTER_H_
