// Model and what describes it: inputs, outputs, weights; new weights.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings.h"
#include "onnxgrad/model.h"
#include "onnxgrad/weights.h"
#include "tensor_caster.h"
#include "unlocked.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace onnxgrad::python {
namespace {

std::vector<std::int64_t> dims_of(const WeightInfo& weight) {
  return {weight.dims.begin(), weight.dims.end()};
}

const char* storage_name(const WeightInfo& weight) {
  switch (weight.storage) {
    case WeightInfo::Storage::kInitializer:
      return "initializer";
    case WeightInfo::Storage::kConstantNode:
      return "constant";
    case WeightInfo::Storage::kAttribute:
      return "attribute";
  }
  return "";
}

/// Numbers, symbols, and None where nothing is known; None as a whole for an unknown rank.
nb::object shape_of(const ValueInfo& value) {
  if (!value.shape) return nb::none();
  nb::list shape;
  for (const Dimension& dimension : *value.shape) {
    if (dimension.is_fixed()) {
      shape.append(dimension.value);
    } else if (!dimension.symbol.empty()) {
      shape.append(dimension.symbol);
    } else {
      shape.append(nb::none());
    }
  }
  return shape;
}

void bind_infos(nb::module_& module) {
  nb::class_<ValueInfo>(module, "ValueInfo")
      .def_ro("name", &ValueInfo::name)
      .def_ro("is_tensor", &ValueInfo::is_tensor)
      .def_ro("type", &ValueInfo::type)
      .def_prop_ro("dtype",
                   [](const ValueInfo& value) { return std::string(dtype_name(value.dtype)); })
      .def_prop_ro("shape", &shape_of, nb::sig("def shape(self) -> list[int | str | None] | None"))
      .def_prop_ro("keys", [](const ValueInfo& value) {
        return value.keys.is_defined() ? std::optional(value.keys) : std::nullopt;
      });
  nb::class_<WeightInfo>(module, "WeightInfo")
      .def_ro("name", &WeightInfo::name)
      .def_ro("trainable", &WeightInfo::trainable)
      .def_ro("reason", &WeightInfo::reason)
      .def_ro("op_type", &WeightInfo::op_type)
      .def_ro("node", &WeightInfo::node)
      .def_ro("aliases", &WeightInfo::aliases)
      .def_ro("level", &WeightInfo::level)
      .def_prop_ro("dtype",
                   [](const WeightInfo& weight) { return std::string(dtype_name(weight.dtype)); })
      .def_prop_ro("shape", &dims_of)
      .def_prop_ro("storage", &storage_name);
  nb::class_<SeparatedWeight>(module, "SeparatedWeight")
      .def_ro("name", &SeparatedWeight::name)
      .def_ro("parts", &SeparatedWeight::parts);
}

}  // namespace

void bind_models(nb::module_& module) {
  bind_infos(module);
  nb::class_<Model>(module, "Model")
      .def_static(
          "load", [](const std::string& path) { return Model::load(path); }, "path"_a, Unlocked())
      .def_static(
          "from_bytes",
          [](const nb::bytes& data) {
            std::string copy(data.c_str(), data.size());
            const InterruptibleCall unlocked;
            return Model::from_bytes(std::move(copy));
          },
          "data"_a)
      .def_static(
          "from_text", [](const std::string& text) { return Model::from_text(text); }, "text"_a,
          Unlocked())
      .def("save", &Model::save, "path"_a, Unlocked())
      .def("to_bytes",
           [](const Model& model) {
             const std::string data = [&model] {
               const InterruptibleCall unlocked;
               return model.to_bytes();
             }();
             return nb::bytes(data.data(), data.size());
           })
      .def("to_text", &Model::to_text, Unlocked())
      .def_prop_ro("inputs", &Model::inputs)
      .def_prop_ro("outputs", &Model::outputs)
      .def_prop_ro("weights", &Model::weights, Unlocked())
      .def(
          "weight",
          [](const Model& model, const std::string& name) { return model.weight(name).clone(); },
          "name"_a, Unlocked())
      .def_prop_ro("path", &Model::path)
      .def_prop_ro("ir_version", &Model::ir_version)
      .def_prop_ro("producer_name", &Model::producer_name)
      .def_prop_ro("metadata", &Model::metadata)
      .def(
          "opset",
          [](const Model& model, const std::string& domain) { return model.opset(domain); },
          "domain"_a = "");

  module.def(
      "initialize",
      [](const Model& model, const std::string& scheme, std::uint64_t seed,
         std::vector<std::string> weights, bool untie) {
        return initialize(model, {.scheme = init_scheme_from_name(scheme),
                                  .seed = seed,
                                  .weights = std::move(weights),
                                  .untie = untie});
      },
      "model"_a, "scheme"_a, "seed"_a, "weights"_a, "untie"_a, Unlocked());
  module.def("set_weights", &set_weights, "model"_a, "weights"_a, Unlocked());
  module.def("state_dict", &state_dict, "model"_a, Unlocked());
  module.def(
      "load_state_dict",
      [](const Model& model, const NamedTensors& state, bool strict) {
        LoadedStateDict loaded = load_state_dict(model, state, strict);
        return std::tuple(std::move(loaded.model), std::move(loaded.missing),
                          std::move(loaded.unexpected));
      },
      "model"_a, "state"_a, "strict"_a, Unlocked());
  module.def("load_weights", &load_weights, "path"_a, Unlocked());
}

}  // namespace onnxgrad::python
