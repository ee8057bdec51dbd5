// Schedules.
#include "onnxgrad/schedules.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <utility>
#include <vector>

#include "bindings.h"
#include "onnxgrad/tables.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace onnxgrad::python {
void bind_schedules(nb::module_& module) {
  nb::class_<Schedule>(module, "Schedule").def("__str__", [](const Schedule& self) {
    return to_string(self);
  });
  module.def("schedule_table", &schedule_table);
  module.def("make_schedule", &make_schedule, "type"_a, "options"_a);
  module.def(
      "schedule_sequence",
      [](std::vector<Schedule> parts) {
        return Schedule(ScheduleSequence{.parts = std::move(parts)});
      },
      "parts"_a);
  module.def(
      "schedule_product",
      [](std::vector<Schedule> parts) {
        return Schedule(ScheduleProduct{.parts = std::move(parts)});
      },
      "parts"_a);
  module.def("schedule_rates", &schedule_rates, "schedule"_a, "rate"_a, "epochs"_a,
             "steps_per_epoch"_a, "losses"_a);
  module.def("schedule_from_name", &schedule_from_name, "name"_a);
  module.def("schedule_names", &schedule_names);
}

}  // namespace onnxgrad::python
