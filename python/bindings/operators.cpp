// Operators and gradients that users register.
#include "onnxgrad/operators.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <vector>

#include "bindings.h"
#include "unlocked.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace onnxgrad::python {

void bind_operators(nb::module_& module) {
  nb::class_<OperatorSpec>(module, "OperatorSpec")
      .def(
          "__init__",
          [](OperatorSpec* place, std::string name, std::string body, std::string gradient,
             std::vector<int> gradient_inputs) {
            new (place) OperatorSpec{.name = std::move(name),
                                     .body = std::move(body),
                                     .gradient = std::move(gradient),
                                     .gradient_inputs = std::move(gradient_inputs)};
          },
          "name"_a, "body"_a, "gradient"_a, "gradient_inputs"_a);
  nb::class_<RegisteredOperator>(module, "RegisteredOperator")
      .def_ro("name", &RegisteredOperator::name)
      .def_ro("has_body", &RegisteredOperator::has_body)
      .def_ro("has_gradient", &RegisteredOperator::has_gradient);
  module.def("register_operators", &register_operators, "library"_a, "specs"_a, "overwrite"_a,
             Unlocked());
  module.def("unregister_operators", &unregister_operators, "registration"_a, Unlocked());
  module.def("registered_operators", &registered_operators, Unlocked());
}

}  // namespace onnxgrad::python
