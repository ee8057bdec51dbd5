// Losses with a teacher.
#include "onnxgrad/distillation.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings.h"
#include "unlocked.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace onnxgrad::python {

void bind_distillation(nb::module_& module) {
  using Pairs = std::vector<std::pair<std::string, std::string>>;
  using Values = std::vector<std::tuple<std::string, std::string, std::string, double>>;
  module.def(
      "distill",
      [](const Model& student, const Model& teacher, const Loss& task, const std::string& outputs,
         double temperature, double alpha, std::string teacher_output, const Values& values,
         double attention, Pairs attention_maps, Pairs inputs, std::uint64_t seed) {
        DistillationOptions options{.outputs = matched_outputs_from_name(outputs),
                                    .temperature = temperature,
                                    .alpha = alpha,
                                    .teacher_output = std::move(teacher_output),
                                    .attention = attention,
                                    .attention_maps = std::move(attention_maps),
                                    .inputs = std::move(inputs),
                                    .seed = seed};
        for (const auto& [own, other, function, factor] : values) {
          options.values.push_back({.student = own,
                                    .teacher = other,
                                    .function = loss_from_name(function),
                                    .factor = factor});
        }
        return distill(student, teacher, options, task);
      },
      "student"_a, "teacher"_a, "task"_a, "outputs"_a, "temperature"_a, "alpha"_a,
      "teacher_output"_a, "values"_a, "attention"_a, "attention_maps"_a, "inputs"_a, "seed"_a,
      Unlocked());
}

}  // namespace onnxgrad::python
