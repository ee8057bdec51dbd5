#ifndef ONNXGRAD_PYTHON_BINDINGS_TENSOR_CASTER_H_
#define ONNXGRAD_PYTHON_BINDINGS_TENSOR_CASTER_H_

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>

#include "onnxgrad/model.h"
#include "onnxgrad/tensor.h"

// Conversion of tensors and dictionaries of tensors, without a copy of their elements.
//
//   Python                                          C++
//   contiguous NumPy array of numbers or bool       Tensor::view that keeps the array alive
//   (list of str, shape)                            string tensor (copied)
//   (array of bits, "bfloat16")                     tensor of that type
//   NumPy array that shares the memory              Tensor
//   ((list of str, shape), "string"),
//   (array of bits, dtype name)                     tensors of types that NumPy does not know
//   DeviceTensor                                    Tensor, copied to the host
//   dict of str to these                            NamedTensors
//
// onnxgrad._arrays brings other arrays into these forms, and these forms to the user.

namespace onnxgrad::python {

/// Converts any of the forms above. Throws: nb::cast_error if `source` is none of them;
/// onnxgrad::Error (its shape). Holds the interpreter lock.
Tensor tensor_from_python(nanobind::handle source);
/// Converts to the forms above. Holds the interpreter lock.
nanobind::object tensor_to_python(const Tensor& tensor);

}  // namespace onnxgrad::python

namespace nanobind::detail {

template <>
struct type_caster<onnxgrad::Tensor> {
  NB_TYPE_CASTER(onnxgrad::Tensor, const_name("typing.Any"))

  bool from_python(handle source, std::uint32_t /*flags*/, cleanup_list* /*cleanup*/) noexcept {
    try {
      value = onnxgrad::python::tensor_from_python(source);
      return true;
    } catch (const std::exception&) {
      PyErr_Clear();
      return false;
    }
  }

  static handle from_cpp(const onnxgrad::Tensor& tensor, rv_policy /*policy*/,
                         cleanup_list* /*cleanup*/) noexcept {
    try {
      return onnxgrad::python::tensor_to_python(tensor).release();
    } catch (python_error& error) {
      error.restore();
      return {};
    } catch (const std::exception& error) {
      PyErr_SetString(PyExc_RuntimeError, error.what());
      return {};
    }
  }
};

template <>
struct type_caster<onnxgrad::NamedTensors> {
  NB_TYPE_CASTER(onnxgrad::NamedTensors, const_name("dict[str, typing.Any]"))

  bool from_python(handle source, std::uint32_t flags, cleanup_list* cleanup) noexcept {
    if (!PyDict_Check(source.ptr())) return false;
    value.clear();
    for (const auto& [key, item] : borrow<dict>(source)) {
      make_caster<std::string> name;
      make_caster<onnxgrad::Tensor> tensor;
      if (!name.from_python(key, flags, cleanup) || !tensor.from_python(item, flags, cleanup)) {
        return false;
      }
      value.push_back({.name = name.value, .tensor = tensor.value});
    }
    return true;
  }

  static handle from_cpp(const onnxgrad::NamedTensors& tensors, rv_policy policy,
                         cleanup_list* cleanup) noexcept {
    dict result;
    for (const auto& [name, tensor] : tensors) {
      const object item = steal(make_caster<onnxgrad::Tensor>::from_cpp(tensor, policy, cleanup));
      const object key = steal(make_caster<std::string>::from_cpp(name, policy, cleanup));
      if (!item.is_valid() || !key.is_valid() ||
          PyDict_SetItem(result.ptr(), key.ptr(), item.ptr()) != 0) {
        return {};
      }
    }
    return result.release();
  }
};

}  // namespace nanobind::detail

#endif  // ONNXGRAD_PYTHON_BINDINGS_TENSOR_CASTER_H_
