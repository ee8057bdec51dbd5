// Writing of files that are there in full or not at all.
#include "onnxgrad/files.h"

#include <nanobind/stl/string.h>

#include <string>
#include <string_view>

#include "bindings.h"

namespace nb = nanobind;

namespace onnxgrad::python {

void bind_file_writer(nb::module_& module) {
  module.def(
      "write_file",
      [](const std::string& path, const nb::bytes& contents) {
        const std::string_view text(contents.c_str(), contents.size());
        const nb::gil_scoped_release unlocked;
        write_file(path, text);
      },
      nb::arg("path"), nb::arg("contents"),
      "Write a file whole or not at all. Raises: CheckpointError.");
  module.def(
      "write_own_file",
      [](const std::string& path, const nb::bytes& contents) {
        const std::string_view text(contents.c_str(), contents.size());
        const nb::gil_scoped_release unlocked;
        write_own_file(path, text);
      },
      nb::arg("path"), nb::arg("contents"),
      "Write a file of a folder that onnxgrad keeps; links are replaced, not followed.");
  module.def("open_own_file", &open_own_file, nb::arg("path"), nb::arg("flags"),
             nb::call_guard<nb::gil_scoped_release>(),
             "Open a file of a folder that onnxgrad keeps, and return its descriptor.");
  module.def("check_writable", &check_writable, nb::arg("path"), nb::arg("bytes"),
             nb::call_guard<nb::gil_scoped_release>(),
             "Raise the CheckpointError that writing so many bytes would raise.");
}

}  // namespace onnxgrad::python
