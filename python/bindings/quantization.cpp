// Quantization of models.
#include "onnxgrad/quantization.h"

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

void bind_quantization(nb::module_& module) {
  module.def(
      "quantize",
      [](const Model& model, const std::vector<NamedTensors>& batches, const std::string& weights,
         const std::string& scales, std::int64_t block_size, bool activations,
         const std::string& calibration, double percentile, bool learn_ranges,
         std::vector<std::string> layers, std::vector<std::string> exclude, bool skip_first,
         bool skip_last, bool fold_batch_norms) {
        return quantize(model, batches,
                        {.weights = dtype_from_name(weights).value_or(DataType::kUndefined),
                         .groups = scale_groups_from_name(scales),
                         .block_size = block_size,
                         .activations = activations,
                         .calibration = calibration_from_name(calibration),
                         .percentile = percentile,
                         .learn_ranges = learn_ranges,
                         .layers = std::move(layers),
                         .exclude = std::move(exclude),
                         .skip_first = skip_first,
                         .skip_last = skip_last,
                         .fold_batch_norms = fold_batch_norms});
      },
      "model"_a, "batches"_a, "weights"_a, "scales"_a, "block_size"_a, "activations"_a,
      "calibration"_a, "percentile"_a, "learn_ranges"_a, "layers"_a, "exclude"_a, "skip_first"_a,
      "skip_last"_a, "fold_batch_norms"_a, Unlocked());
  module.def("float_weights", &float_weights, "model"_a);
  module.def("with_float_weights", &with_float_weights, "model"_a, "weights"_a, Unlocked());
}

}  // namespace onnxgrad::python
