// Descriptions of schedules; like those of optimizers, filled by the Python package.
#include "onnxgrad/schedules.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace onnxgrad::python {
namespace {

// Also makes the rule convertible to a Schedule.
template <class Rule>
nb::class_<Rule> bind_rule(nb::module_& module, const char* name) {
  nb::class_<Rule> rule(module, name);
  rule.def(nb::init<>());
  if constexpr (requires(Rule& r) { r.length; }) rule.def_rw("length", &Rule::length);
  if constexpr (requires(Rule& r) { r.unit; }) rule.def_rw("unit", &Rule::unit);
  if constexpr (requires(Rule& r) { r.factor; }) rule.def_rw("factor", &Rule::factor);
  if constexpr (requires(Rule& r) { r.minimum_factor; }) {
    rule.def_rw("minimum_factor", &Rule::minimum_factor);
  }
  return rule;
}

void bind_rules(nb::module_& module) {
  bind_rule<ConstantRate>(module, "ConstantRate");
  bind_rule<InverseScaling>(module, "InverseScaling").def_rw("power", &InverseScaling::power);
  bind_rule<OptimalRate>(module, "OptimalRate")
      .def_rw("alpha", &OptimalRate::alpha)
      .def_rw("first_is_rate", &OptimalRate::first_is_rate);
  bind_rule<StepDecay>(module, "StepDecay").def_rw("every", &StepDecay::every);
  bind_rule<MultiStepDecay>(module, "MultiStepDecay")
      .def_rw("milestones", &MultiStepDecay::milestones);
  bind_rule<ExponentialDecay>(module, "ExponentialDecay");
  bind_rule<CosineDecay>(module, "CosineDecay");
  bind_rule<CosineRestarts>(module, "CosineRestarts")
      .def_rw("length_factor", &CosineRestarts::length_factor)
      .def_rw("restart_factor", &CosineRestarts::restart_factor);
  bind_rule<OneCycle>(module, "OneCycle")
      .def_rw("rise", &OneCycle::rise)
      .def_rw("start_divisor", &OneCycle::start_divisor)
      .def_rw("end_divisor", &OneCycle::end_divisor)
      .def_rw("linear", &OneCycle::linear);
  bind_rule<LinearRate>(module, "LinearRate")
      .def_rw("start_factor", &LinearRate::start_factor)
      .def_rw("end_factor", &LinearRate::end_factor);
  bind_rule<PolynomialDecay>(module, "PolynomialDecay")
      .def_rw("power", &PolynomialDecay::power)
      .def_rw("end_factor", &PolynomialDecay::end_factor);
  bind_rule<Plateau>(module, "Plateau")
      .def_rw("patience", &Plateau::patience)
      .def_rw("threshold", &Plateau::threshold)
      .def_rw("cooldown", &Plateau::cooldown);
  bind_rule<ScheduleSequence>(module, "ScheduleSequence").def_rw("parts", &ScheduleSequence::parts);
  bind_rule<ScheduleProduct>(module, "ScheduleProduct").def_rw("parts", &ScheduleProduct::parts);
}

}  // namespace

void bind_schedules(nb::module_& module) {
  nb::enum_<ScheduleUnit>(module, "ScheduleUnit")
      .value("step", ScheduleUnit::kStep)
      .value("epoch", ScheduleUnit::kEpoch);
  nb::class_<Schedule> schedule(module, "Schedule");
  bind_rules(module);
  schedule
      .def(
          "__init__",
          [](Schedule* place, const Schedule::Rule& rule) {
            new (place) Schedule();
            place->rule = rule;
          },
          "rule"_a)
      .def("__str__", [](const Schedule& self) { return to_string(self); });
  module.def("schedule_rates", &schedule_rates, "schedule"_a, "rate"_a, "epochs"_a,
             "steps_per_epoch"_a, "losses"_a);
  module.def("schedule_names", &schedule_names);
}

}  // namespace onnxgrad::python
