// Descriptions of losses, and finding the place of a loss.
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "bindings.h"
#include "onnxgrad/losses.h"
#include "onnxgrad/tables.h"
#include "tensor_caster.h"
#include "unlocked.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace onnxgrad::python {
namespace {

// A class for each struct, with what its fields are; make_loss_function sets them.
template <std::size_t... kIndices>
void bind_functions(nb::module_& module, std::index_sequence<kIndices...>) {
  const std::vector<DescriptionInfo> table = loss_table();
  const auto bind = [&]<class Spec>(std::type_identity<Spec>, const DescriptionInfo& info) {
    nb::class_<Spec> function(module, info.type.c_str());
    for (const FieldInfo& field : info.fields) {
      if (field.name == "class_axis" || field.name == "partners" || field.name == "views") {
        continue;  // fields of the Loss
      }
      function.def_prop_ro(field.name.c_str(), [name = field.name](const Spec& spec) {
        return loss_field(spec, name);
      });
    }
    if constexpr (std::is_same_v<Spec, UserLoss>) {
      function.def(
          "__init__",
          [](UserLoss* place, const Model& model, bool takes_scores) {
            new (place) UserLoss{.model = std::make_shared<const std::string>(model.to_bytes()),
                                 .takes_scores = takes_scores};
          },
          "model"_a, "takes_scores"_a, Unlocked());
    }
  };
  (bind(std::type_identity<std::variant_alternative_t<kIndices, LossFunction>>{}, table[kIndices]),
   ...);
}

void bind_loss(nb::module_& module) {
  bind_functions(module, std::make_index_sequence<std::variant_size_v<LossFunction>>());
  nb::enum_<Reduction>(module, "Reduction")
      .value("mean", Reduction::kMean)
      .value("sum", Reduction::kSum)
      .value("none", Reduction::kNone);
  nb::class_<Penalty>(module, "Penalty");  // NOLINT(bugprone-unused-raii)
  nb::class_<Loss>(module, "Loss")
      .def(
          "__init__",
          [](Loss* place, const LossFunction& function, const std::string& output, bool walk_back,
             const std::string& target, const std::string& sample_weight, Reduction reduction,
             std::vector<Penalty> penalties, double factor, std::vector<Loss> others,
             std::optional<std::int64_t> class_axis, std::vector<std::string> partners,
             std::int64_t views) {
            new (place) Loss{.function = function,
                             .output = output,
                             .walk_back = walk_back,
                             .class_axis = class_axis,
                             .target = target,
                             .sample_weight = sample_weight,
                             .reduction = reduction,
                             .penalties = std::move(penalties),
                             .factor = factor,
                             .others = std::move(others),
                             .partners = std::move(partners),
                             .views = views};
          },
          "function"_a, "output"_a, "walk_back"_a, "target"_a, "sample_weight"_a, "reduction"_a,
          "penalties"_a, "factor"_a, "others"_a, "class_axis"_a = nb::none(),
          "partners"_a = std::vector<std::string>(), "views"_a = 1)
      .def_ro("views", &Loss::views);
  nb::class_<LossInfo>(module, "LossInfo")
      .def_ro("line", &LossInfo::line)
      .def_ro("function", &LossInfo::function)
      .def_ro("scores", &LossInfo::scores)
      .def_ro("output", &LossInfo::output)
      .def_ro("is_classifier", &LossInfo::is_classifier)
      .def_ro("num_classes", &LossInfo::num_classes)
      .def_ro("class_axis", &LossInfo::class_axis)
      .def_ro("one_hot_targets", &LossInfo::one_hot_targets)
      .def_ro("is_class_axis_open", &LossInfo::is_class_axis_open)
      .def_prop_ro("classes",
                   [](const LossInfo& info) -> nb::object {
                     return info.classes.is_defined() ? nb::cast(info.classes) : nb::none();
                   })
      .def_ro("target", &LossInfo::target)
      .def_ro("penalized", &LossInfo::penalized)
      .def_ro("others", &LossInfo::others);
  module.def("loss_table", &loss_table);
  module.def("penalty_table", &penalty_table);
  module.def("make_loss_function", &make_loss_function, "type"_a, "options"_a);
  module.def("make_penalty", &make_penalty, "type"_a, "options"_a);
  module.def("loss_name", &loss_name, "function"_a);
  module.def("loss_from_name", &loss_from_name, "name"_a);
  module.def("loss_names", &loss_names);
  module.def("find_loss", &find_loss, "model"_a, "loss"_a,
             nb::call_guard<nb::gil_scoped_release>());
  module.def(
      "add_loss",
      [](const Model& model, const Loss& loss, const std::string& loss_name, bool keep_outputs,
         std::int64_t target_opset) {
        return add_loss(
            model, loss,
            {.loss_name = loss_name, .keep_outputs = keep_outputs, .target_opset = target_opset});
      },
      "model"_a, "loss"_a, "loss_name"_a, "keep_outputs"_a, "target_opset"_a,
      nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace

void bind_losses(nb::module_& module) { bind_loss(module); }

}  // namespace onnxgrad::python
