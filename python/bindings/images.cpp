// The decoder of images, which is Python's.
#include <nanobind/stl/string_view.h>

#include <memory>
#include <string_view>
#include <utility>

#include "bindings.h"
#include "onnxgrad/image_decoder.h"
#include "tensor_caster.h"

namespace nb = nanobind;

namespace onnxgrad::python {
namespace {

// The decoder stays with the process: no reference to it may be dropped after the interpreter.
void install(nb::object decode) {
  if (decode.is_none()) return set_image_decoder({});
  const nb::handle held = decode.release();
  set_image_decoder([held](const Tensor& encoded, std::string_view pixel_format) {
    const nb::gil_scoped_acquire lock;
    return tensor_from_python(held(tensor_to_python(encoded), nb::cast(pixel_format)));
  });
}

}  // namespace

void bind_images(nb::module_& module) {
  module.def("set_image_decoder", &install, nb::arg("decode").none(),
             "Set the function of bytes [n] and pixel format that decodes images, or None.");
}

}  // namespace onnxgrad::python
