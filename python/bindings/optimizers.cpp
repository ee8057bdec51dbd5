// Descriptions of optimizers and of what is done around them. Every field can be set: the Python
// package, which checks them, fills a default one.
#include "onnxgrad/optimizers.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <string>

#include "bindings.h"
#include "onnxgrad/model.h"
#include "unlocked.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace onnxgrad::python {
namespace {

template <class Spec>
nb::class_<Spec> bind_spec(nb::module_& module, const char* name) {
  nb::class_<Spec> spec(module, name);
  spec.def(nb::init<>()).def_rw("learning_rate", &Spec::learning_rate);
  return spec;
}

template <class Spec>
nb::class_<Spec> bind_moments(nb::module_& module, const char* name) {
  return bind_spec<Spec>(module, name)
      .def_rw("beta1", &Spec::beta1)
      .def_rw("beta2", &Spec::beta2)
      .def_rw("epsilon", &Spec::epsilon)
      .def_rw("weight_decay", &Spec::weight_decay);
}

void bind_descriptions(nb::module_& module) {
  bind_spec<Sgd>(module, "Sgd")
      .def_rw("momentum", &Sgd::momentum)
      .def_rw("dampening", &Sgd::dampening)
      .def_rw("nesterov", &Sgd::nesterov)
      .def_rw("weight_decay", &Sgd::weight_decay)
      .def_rw("decoupled_weight_decay", &Sgd::decoupled_weight_decay)
      .def_rw("rate_in_velocity", &Sgd::rate_in_velocity);
  bind_moments<Adam>(module, "Adam").def_rw("amsgrad", &Adam::amsgrad);
  bind_moments<AdamW>(module, "AdamW").def_rw("amsgrad", &AdamW::amsgrad);
  bind_moments<Lamb>(module, "Lamb");
  bind_spec<Adagrad>(module, "Adagrad")
      .def_rw("rate_decay", &Adagrad::rate_decay)
      .def_rw("weight_decay", &Adagrad::weight_decay)
      .def_rw("initial_accumulator", &Adagrad::initial_accumulator)
      .def_rw("epsilon", &Adagrad::epsilon);
  bind_spec<RmsProp>(module, "RmsProp")
      .def_rw("alpha", &RmsProp::alpha)
      .def_rw("epsilon", &RmsProp::epsilon)
      .def_rw("weight_decay", &RmsProp::weight_decay)
      .def_rw("momentum", &RmsProp::momentum)
      .def_rw("centered", &RmsProp::centered);
  bind_spec<Lion>(module, "Lion")
      .def_rw("beta1", &Lion::beta1)
      .def_rw("beta2", &Lion::beta2)
      .def_rw("weight_decay", &Lion::weight_decay);
  bind_spec<Lbfgs>(module, "Lbfgs")
      .def_rw("max_iterations", &Lbfgs::max_iterations)
      .def_rw("max_evaluations", &Lbfgs::max_evaluations)
      .def_rw("history", &Lbfgs::history)
      .def_rw("gradient_tolerance", &Lbfgs::gradient_tolerance)
      .def_rw("change_tolerance", &Lbfgs::change_tolerance)
      .def_rw("line_search", &Lbfgs::line_search);
}

void bind_user_optimizer(nb::module_& module) {
  bind_spec<UserOptimizer>(module, "UserOptimizer")
      .def_rw("weight_decay", &UserOptimizer::weight_decay)
      .def(
          "set_model",
          [](UserOptimizer& optimizer, const Model& model) {
            optimizer.model = std::make_shared<const std::string>(model.to_bytes());
          },
          "model"_a, Unlocked());
}

}  // namespace

void bind_optimizers(nb::module_& module) {
  bind_descriptions(module);
  bind_user_optimizer(module);
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
      .def_rw("accumulate", &UpdateOptions::accumulate);
  module.def("optimizer_from_name", &optimizer_from_name, "name"_a);
  module.def("optimizer_names", &optimizer_names);
}

}  // namespace onnxgrad::python
