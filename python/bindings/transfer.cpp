// New heads, features, normalisations put back.
#include "onnxgrad/transfer.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "bindings.h"
#include "tensor_caster.h"
#include "unlocked.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace onnxgrad::python {

void bind_transfer(nb::module_& module) {
  module.def(
      "replace_head",
      [](const Model& model, std::int64_t classes, std::vector<std::string> at,
         const std::string& scheme, const std::vector<std::int64_t>& numbers,
         std::vector<std::string> texts, std::uint64_t seed) {
        HeadOptions options{.classes = classes,
                            .at = std::move(at),
                            .scheme = init_scheme_from_name(scheme),
                            .seed = seed};
        const auto count = static_cast<std::int64_t>(numbers.size() + texts.size());
        if (!numbers.empty()) options.labels = Tensor::from(numbers, Dims{count});
        if (!texts.empty()) options.labels = Tensor::from_strings(std::move(texts), Dims{count});
        return replace_head(model, options);
      },
      "model"_a, "classes"_a, "at"_a, "scheme"_a, "numbers"_a, "texts"_a, "seed"_a, Unlocked());
  module.def("features", &features, "model"_a, "at"_a, Unlocked());
  nb::class_<PlaceTable>(module, "PlaceTable")
      .def_ro("weight", &PlaceTable::weight)
      .def_ro("rows", &PlaceTable::rows)
      .def_ro("value", &PlaceTable::value);
  module.def("place_tables", &place_tables, "model"_a, Unlocked());
  module.def("place_values", &place_values, "model"_a, "tables"_a, Unlocked());
  module.def(
      "unfold_batch_norm",
      [](const Model& model, const NamedTensors& rows, double epsilon) {
        return unfold_batch_norm(model, {.rows = rows, .epsilon = epsilon});
      },
      "model"_a, "rows"_a, "epsilon"_a, Unlocked());
}

}  // namespace onnxgrad::python
