// Adapters: small weights that are trained instead of a model's own.
#include "onnxgrad/adapters.h"
#include "onnxgrad/quantized_weights.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <utility>
#include <vector>

#include "bindings.h"
#include "tensor_caster.h"
#include "unlocked.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace onnxgrad::python {

void bind_adapters(nb::module_& module) {
  nb::class_<AdapterLayer>(module, "AdapterLayer")
      .def_ro("module", &AdapterLayer::module)
      .def_ro("weight", &AdapterLayer::weight)
      .def_ro("role", &AdapterLayer::role)
      .def_ro("tensors", &AdapterLayer::tensors)
      .def_ro("rank", &AdapterLayer::rank)
      .def_ro("scale", &AdapterLayer::scale);
  nb::class_<AdapterInfo>(module, "AdapterInfo")
      .def_ro("name", &AdapterInfo::name)
      .def_prop_ro(
          "kind", [](const AdapterInfo& info) { return std::string(adapter_kind_name(info.kind)); })
      .def_ro("rank", &AdapterInfo::rank)
      .def_ro("alpha", &AdapterInfo::alpha)
      .def_ro("scale", &AdapterInfo::scale)
      .def_ro("dropout", &AdapterInfo::dropout)
      .def_ro("rank_stabilized", &AdapterInfo::rank_stabilized)
      .def_ro("layers", &AdapterInfo::layers)
      .def_ro("full", &AdapterInfo::full);
  module.def(
      "add_adapter",
      [](const Model& model, const std::string& kind, std::int64_t rank, double alpha,
         bool rank_stabilized, double dropout, std::vector<std::string> targets,
         std::vector<std::string> exclude, std::vector<std::string> full, std::string name,
         std::uint64_t seed) {
        return add_adapter(model, {.kind = adapter_kind_from_name(kind),
                                   .rank = rank,
                                   .alpha = alpha,
                                   .rank_stabilized = rank_stabilized,
                                   .dropout = dropout,
                                   .targets = std::move(targets),
                                   .exclude = std::move(exclude),
                                   .full = std::move(full),
                                   .name = std::move(name),
                                   .seed = seed});
      },
      "model"_a, "kind"_a, "rank"_a, "alpha"_a, "rank_stabilized"_a, "dropout"_a, "targets"_a,
      "exclude"_a, "full"_a, "name"_a, "seed"_a, Unlocked());
  module.def("adapters", &adapters, "model"_a, Unlocked());
  module.def("merge_adapters", &merge_adapters, "model"_a, Unlocked());
  module.def(
      "quantize_weights",
      [](const Model& model, const std::string& format, std::int64_t block_size, bool is_symmetric,
         bool uses_dequantize_linear, std::vector<std::string> targets,
         std::vector<std::string> exclude) {
        return quantize_weights(model, {.format = weight_format_from_name(format),
                                        .block_size = block_size,
                                        .is_symmetric = is_symmetric,
                                        .uses_dequantize_linear = uses_dequantize_linear,
                                        .targets = std::move(targets),
                                        .exclude = std::move(exclude)});
      },
      "model"_a, "format"_a, "block_size"_a, "is_symmetric"_a, "uses_dequantize_linear"_a,
      "targets"_a, "exclude"_a, Unlocked());
  module.def("dequantize_weights", &dequantize_weights, "model"_a, Unlocked());
  module.def("adapters_as_inputs", &adapters_as_inputs, "model"_a, Unlocked());
  module.def(
      "adapter_state",
      [](const Model& model, const std::string& name) { return adapter_state(model, name); },
      "model"_a, "name"_a, Unlocked());
  module.def(
      "set_adapter_state",
      [](const Model& model, const NamedTensors& tensors, const std::string& name) {
        return set_adapter_state(model, tensors, name);
      },
      "model"_a, "tensors"_a, "name"_a, Unlocked());
  module.def(
      "save_adapter",
      [](const Model& model, const std::string& folder, const std::string& name) {
        save_adapter(model, folder, name);
      },
      "model"_a, "folder"_a, "name"_a, Unlocked());
  module.def(
      "load_adapter",
      [](const Model& model, const std::string& folder, const std::string& name) {
        return load_adapter(model, folder, name);
      },
      "model"_a, "folder"_a, "name"_a, Unlocked());
}

}  // namespace onnxgrad::python
