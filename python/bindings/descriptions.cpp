// Tables of option structs as data.
#include "onnxgrad/description.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <array>

#include "bindings.h"

namespace nb = nanobind;

namespace onnxgrad::python {

void bind_descriptions(nb::module_& module) {
  nb::class_<FieldInfo>(module, "FieldInfo")
      .def_ro("name", &FieldInfo::name)
      .def_ro("option", &FieldInfo::option)
      .def_ro("default_value", &FieldInfo::default_value)
      .def_prop_ro("kind",
                   [](const FieldInfo& field) {
                     static constexpr std::array<const char*, 8> kKinds{
                         "flag",   "whole",   "number", "text",
                         "wholes", "numbers", "texts",  "optional whole"};
                     return kKinds.at(field.default_value.index());
                   })
      .def_prop_ro("minimum", [](const FieldInfo& field) { return field.range.minimum; })
      .def_prop_ro("is_open", [](const FieldInfo& field) { return field.range.is_open; })
      .def_prop_ro("maximum", [](const FieldInfo& field) { return field.range.maximum; })
      .def_prop_ro("below", [](const FieldInfo& field) { return field.range.below; })
      .def_ro("none_is", &FieldInfo::none_is)
      .def_ro("choices", &FieldInfo::choices)
      .def_ro("is_duration", &FieldInfo::is_duration)
      .def_ro("aliases", &FieldInfo::aliases)
      .def_ro("meaning", &FieldInfo::meaning)
      .def_ro("topic", &FieldInfo::topic);
  nb::class_<StateInfo>(module, "StateInfo")
      .def_ro("name", &StateInfo::name)
      .def_ro("meaning", &StateInfo::meaning);
  nb::class_<NamedValues>(module, "NamedValues")
      .def_ro("name", &NamedValues::name)
      .def_ro("values", &NamedValues::values)
      .def_ro("aliases", &NamedValues::aliases);
  nb::class_<DescriptionInfo>(module, "DescriptionInfo")
      .def_ro("type", &DescriptionInfo::type)
      .def_ro("python_name", &DescriptionInfo::python_name)
      .def_ro("summary", &DescriptionInfo::summary)
      .def_ro("source", &DescriptionInfo::source)
      .def_ro("formula", &DescriptionInfo::formula)
      .def_ro("fields", &DescriptionInfo::fields)
      .def_ro("states", &DescriptionInfo::states)
      .def_ro("names", &DescriptionInfo::names);
}

}  // namespace onnxgrad::python
