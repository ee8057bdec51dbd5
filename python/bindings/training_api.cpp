// Steps of onnxruntime's training interface: between the gradient and the update, gradients and
// weights do not become Python objects.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <utility>
#include <vector>

#include "bindings.h"
#include "onnxgrad/forward_backward.h"
#include "onnxgrad/training_session.h"
#include "tensor_caster.h"
#include "unlocked.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace onnxgrad::python {
namespace {

/// Gradients of the weights of a ForwardBackward, named as the inputs of a session that updates.
struct GradientFeeds {
  std::vector<std::string> names;  ///< in the order of weight_infos()
  NamedTensors tensors = {};       ///< empty: not computed yet
};

std::vector<Tensor> compute(GradientFeeds& feeds, ForwardBackward& passes,
                            const std::vector<Tensor>& inputs) {
  auto result = passes.run(inputs);
  feeds.tensors = std::move(result.gradients.weights);
  for (std::size_t i = 0; i < feeds.tensors.size(); ++i) {
    feeds.tensors[i].name = feeds.names.at(i);
  }
  return std::move(result.outputs);
}

void update(const GradientFeeds& feeds, TrainingSession& session, ForwardBackward& passes) {
  session.step(feeds.tensors);
  passes.set_weights(session.weights());
}

}  // namespace

void bind_training_api(nb::module_& module) {
  nb::class_<GradientFeeds>(module, "GradientFeeds")
      .def(
          "__init__",
          [](GradientFeeds* place, std::vector<std::string> names) {
            new (place) GradientFeeds{.names = std::move(names)};
          },
          "names"_a)
      .def_rw("tensors", &GradientFeeds::tensors)
      .def("compute", &compute, "passes"_a, "inputs"_a, Unlocked())
      .def("update", &update, "session"_a, "passes"_a, Unlocked());
}

}  // namespace onnxgrad::python
