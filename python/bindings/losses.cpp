// Descriptions of losses, and finding the place of a loss.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings.h"
#include "onnxgrad/losses.h"
#include "tensor_caster.h"
#include "unlocked.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace onnxgrad::python {
namespace {

void bind_functions(nb::module_& module) {
  nb::class_<AutoLoss>(module, "AutoLoss").def(nb::init<>());
  nb::class_<SquaredError>(module, "SquaredError").def(nb::init<>());
  nb::class_<AbsoluteError>(module, "AbsoluteError").def(nb::init<>());
  nb::class_<Huber>(module, "Huber")
      .def(nb::init<double>(), "delta"_a = Huber{}.delta)
      .def_ro("delta", &Huber::delta);
  nb::class_<SmoothL1>(module, "SmoothL1")
      .def(nb::init<double>(), "beta"_a = SmoothL1{}.beta)
      .def_ro("beta", &SmoothL1::beta);
  nb::class_<Elastic>(module, "Elastic")
      .def(nb::init<double, double>(), "l1_weight"_a = Elastic{}.l1_weight,
           "l2_weight"_a = Elastic{}.l2_weight)
      .def_ro("l1_weight", &Elastic::l1_weight)
      .def_ro("l2_weight", &Elastic::l2_weight);
  nb::class_<Poisson>(module, "Poisson")
      .def(nb::init<bool>(), "log_input"_a = Poisson{}.log_input)
      .def_ro("log_input", &Poisson::log_input);
  nb::class_<Cosine>(module, "Cosine").def(nb::init<>());
  nb::class_<SoftmaxCrossEntropy>(module, "SoftmaxCrossEntropy")
      .def(
          "__init__",
          [](SoftmaxCrossEntropy* place, std::optional<std::int64_t> ignore_index,
             std::vector<double> class_weights, double label_smoothing, bool one_hot) {
            new (place) SoftmaxCrossEntropy{.ignore_index = ignore_index,
                                            .class_weights = std::move(class_weights),
                                            .label_smoothing = label_smoothing,
                                            .one_hot = one_hot};
          },
          "ignore_index"_a = nb::none(), "class_weights"_a = std::vector<double>{},
          "label_smoothing"_a = SoftmaxCrossEntropy{}.label_smoothing,
          "one_hot"_a = SoftmaxCrossEntropy{}.one_hot)
      .def_ro("ignore_index", &SoftmaxCrossEntropy::ignore_index)
      .def_ro("class_weights", &SoftmaxCrossEntropy::class_weights)
      .def_ro("label_smoothing", &SoftmaxCrossEntropy::label_smoothing)
      .def_ro("one_hot", &SoftmaxCrossEntropy::one_hot);
  nb::class_<BinaryCrossEntropy>(module, "BinaryCrossEntropy")
      .def(nb::init<bool>(), "soft_targets"_a = BinaryCrossEntropy{}.soft_targets)
      .def_ro("soft_targets", &BinaryCrossEntropy::soft_targets);
  nb::class_<LogLoss>(module, "LogLoss")
      .def(nb::init<double, bool>(), "min_probability"_a = LogLoss{}.min_probability,
           "soft_targets"_a = LogLoss{}.soft_targets)
      .def_ro("min_probability", &LogLoss::min_probability)
      .def_ro("soft_targets", &LogLoss::soft_targets);
  nb::class_<NegativeLogLikelihood>(module, "NegativeLogLikelihood")
      .def(nb::init<double, std::optional<std::int64_t>>(),
           "min_probability"_a = NegativeLogLikelihood{}.min_probability,
           "ignore_index"_a = nb::none())
      .def_ro("min_probability", &NegativeLogLikelihood::min_probability)
      .def_ro("ignore_index", &NegativeLogLikelihood::ignore_index);
  nb::class_<KlDivergence>(module, "KlDivergence").def(nb::init<>());
  nb::class_<UserLoss>(module, "UserLoss")
      .def(
          "__init__",
          [](UserLoss* place, const Model& model, bool takes_scores) {
            new (place) UserLoss{.model = std::make_shared<const std::string>(model.to_bytes()),
                                 .takes_scores = takes_scores};
          },
          "model"_a, "takes_scores"_a, Unlocked())
      .def_ro("takes_scores", &UserLoss::takes_scores);
  nb::class_<OutputLoss>(module, "OutputLoss").def(nb::init<>());
  nb::class_<OneVsRest> one_vs_rest(module, "OneVsRest");
  nb::enum_<OneVsRest::Kind>(one_vs_rest, "Kind")
      .value("log", OneVsRest::Kind::kLog)
      .value("hinge", OneVsRest::Kind::kHinge)
      .value("squared_hinge", OneVsRest::Kind::kSquaredHinge)
      .value("modified_huber", OneVsRest::Kind::kModifiedHuber);
  one_vs_rest.def(nb::init<OneVsRest::Kind>(), "kind"_a = OneVsRest{}.kind)
      .def_ro("kind", &OneVsRest::kind);
}

void bind_loss(nb::module_& module) {
  bind_functions(module);
  nb::enum_<Reduction>(module, "Reduction")
      .value("mean", Reduction::kMean)
      .value("sum", Reduction::kSum)
      .value("none", Reduction::kNone);
  nb::class_<Penalty>(module, "Penalty")
      .def(
          "__init__",
          [](Penalty* place, double l1, double l2, std::vector<std::string> weights) {
            new (place) Penalty{.l1 = l1, .l2 = l2, .weights = std::move(weights)};
          },
          "l1"_a, "l2"_a, "weights"_a);
  nb::class_<Loss>(module, "Loss")
      .def(
          "__init__",
          [](Loss* place, const LossFunction& function, const std::string& output, bool walk_back,
             const std::string& target, const std::string& sample_weight, Reduction reduction,
             std::vector<Penalty> penalties, double factor, std::vector<Loss> others,
             std::optional<std::int64_t> class_axis) {
            new (place) Loss{.function = function,
                             .output = output,
                             .walk_back = walk_back,
                             .class_axis = class_axis,
                             .target = target,
                             .sample_weight = sample_weight,
                             .reduction = reduction,
                             .penalties = std::move(penalties),
                             .factor = factor,
                             .others = std::move(others)};
          },
          "function"_a, "output"_a, "walk_back"_a, "target"_a, "sample_weight"_a, "reduction"_a,
          "penalties"_a, "factor"_a, "others"_a, "class_axis"_a = nb::none());
  nb::class_<LossInfo>(module, "LossInfo")
      .def_ro("line", &LossInfo::line)
      .def_ro("function", &LossInfo::function)
      .def_ro("scores", &LossInfo::scores)
      .def_ro("output", &LossInfo::output)
      .def_ro("is_classifier", &LossInfo::is_classifier)
      .def_ro("num_classes", &LossInfo::num_classes)
      .def_ro("class_axis", &LossInfo::class_axis)
      .def_ro("is_class_axis_open", &LossInfo::is_class_axis_open)
      .def_prop_ro("classes",
                   [](const LossInfo& info) -> nb::object {
                     return info.classes.is_defined() ? nb::cast(info.classes) : nb::none();
                   })
      .def_ro("target", &LossInfo::target)
      .def_ro("penalized", &LossInfo::penalized)
      .def_ro("others", &LossInfo::others);
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
