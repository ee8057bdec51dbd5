// Optimizers and what is done around them.
#include "onnxgrad/optimizers.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "bindings.h"
#include "onnxgrad/model.h"
#include "onnxgrad/tables.h"
#include "unlocked.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace onnxgrad::python {
namespace {

void bind_user_optimizer(nb::module_& module) {
  nb::class_<UserOptimizer>(module, "UserOptimizer")
      .def(nb::init<>())
      .def_rw("learning_rate", &UserOptimizer::learning_rate)
      .def_rw("weight_decay", &UserOptimizer::weight_decay)
      .def(
          "set_model",
          [](UserOptimizer& optimizer, const Model& model) {
            optimizer.model = std::make_shared<const std::string>(model.to_bytes());
          },
          "model"_a, Unlocked());
}

// A class for each struct; make_optimizer sets its fields.
template <std::size_t... kIndices>
void bind_structs(nb::module_& module, std::index_sequence<kIndices...>) {
  const std::vector<DescriptionInfo> table = optimizer_table();
  const auto bind = [&]<class Spec>(std::type_identity<Spec>, const DescriptionInfo& info) {
    if constexpr (!std::is_same_v<Spec, UserOptimizer>) {
      nb::class_<Spec>(module, info.type.c_str()).def("__repr__", [](const Spec& spec) {
        return to_string(spec);
      });
    }
  };
  (bind(std::type_identity<std::variant_alternative_t<kIndices, Optimizer>>{}, table[kIndices]),
   ...);
}

}  // namespace

void bind_optimizers(nb::module_& module) {
  bind_user_optimizer(module);
  bind_structs(module, std::make_index_sequence<std::variant_size_v<Optimizer>>());
  nb::class_<ParameterGroup>(module, "ParameterGroup")
      .def(nb::init<>())
      .def_rw("patterns", &ParameterGroup::patterns)
      .def_rw("rate_factor", &ParameterGroup::rate_factor)
      .def_rw("optimizer", &ParameterGroup::optimizer, nb::arg().none())
      .def_rw("weight_decay", &ParameterGroup::weight_decay, nb::arg().none());
  nb::class_<UpdateOptions>(module, "UpdateOptions")
      .def(nb::init<>())
      .def_rw("groups", &UpdateOptions::groups)
      .def_rw("clip_value", &UpdateOptions::clip_value, nb::arg().none())
      .def_rw("clip_norm", &UpdateOptions::clip_norm, nb::arg().none())
      .def_rw("accumulate", &UpdateOptions::accumulate)
      .def_rw("average", &UpdateOptions::average, nb::arg().none())
      .def(
          "set_sharpness_aware",
          [](UpdateOptions& options, double rho, bool adaptive) {
            options.sharpness_aware = SharpnessAware{.rho = rho, .adaptive = adaptive};
          },
          "rho"_a, "adaptive"_a);
  const nb::class_<ExponentialAverage> exponential(module, "ExponentialAverage");
  const nb::class_<EqualAverage> equal(module, "EqualAverage");
  module.def("average_table", &average_table);
  module.def("make_average", &make_average, "type"_a, "options"_a);
  module.def("optimizer_table", &optimizer_table);
  module.def("make_optimizer", &make_optimizer, "type"_a, "options"_a);
  module.def("optimizer_from_name", &optimizer_from_name, "name"_a);
  module.def("optimizer_names", &optimizer_names);
}

}  // namespace onnxgrad::python
