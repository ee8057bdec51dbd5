// Every C++ error becomes the Python class of the same name in onnxgrad.errors, with its fields.
#include <nanobind/stl/string.h>

#include <exception>
#include <new>
#include <string>

#include "bindings.h"
#include "onnxgrad/error.h"
#include "unlocked.h"

namespace nb = nanobind;

namespace onnxgrad::python {
namespace {

/// Messages may quote a file; what is not UTF-8 in it is shown as \\xNN.
nb::object text(const std::string& bytes) {
  PyObject* const decoded =
      PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "backslashreplace");
  if (decoded == nullptr) throw nb::python_error();
  return nb::steal(decoded);
}

void set_python_error(const Error& error) {
  try {
    const Problem& problem = error.problem();
    const Place& place = problem.where;
    const nb::str name(error.kind().data(), error.kind().size());
    const nb::object type = nb::module_::import_("onnxgrad.errors").attr(name);
    const nb::object instance =
        type(text(error.what()), nb::arg("what") = text(problem.what),
             nb::arg("file") = text(place.file), nb::arg("graph") = text(place.graph),
             nb::arg("node") = text(place.node), nb::arg("op_type") = text(place.op_type),
             nb::arg("value") = text(place.value), nb::arg("detail") = text(problem.detail),
             nb::arg("hint") = text(problem.hint));
    PyErr_SetObject(type.ptr(), instance.ptr());
  } catch (nb::python_error& failure) {
    failure.restore();
  }
}

void translate(const std::exception_ptr& pending, void* /*payload*/) {
  try {
    std::rethrow_exception(pending);
  } catch (const Error& error) {
    set_python_error(error);
  } catch (const Interrupted&) {
    raise_interrupt();
  } catch (const std::bad_alloc&) {
    set_python_error(DeviceError(
        {.what = "the system has no more memory", .hint = "Use a smaller batch or model."}));
  }
}

}  // namespace

void bind_errors(nb::module_& /*module*/) { nb::register_exception_translator(translate, nullptr); }

}  // namespace onnxgrad::python
