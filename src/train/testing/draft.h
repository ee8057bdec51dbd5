#ifndef ONNXGRAD_TRAIN_TESTING_DRAFT_H_
#define ONNXGRAD_TRAIN_TESTING_DRAFT_H_

#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "ir/builder.h"
#include "onnx/inference.h"
#include "train/tools/engine.h"

// Helpers for the tests of src/train: graphs written with the builder, and stored reference values.

namespace onnxgrad::train_test {

/// A model under construction.
class Draft {
 public:
  Draft()
      : model(std::make_shared<ir::Model>()),
        inferer(onnx_io::make_type_inferer(*model)),
        g(*model, *model->graph, *inferer, train::builtin_ops()) {
    model->set_opset("", ir::kInternalOpset);
    model->graph->name = "test";
  }

  ir::Value* input(const std::string& name, DataType dtype, ir::SymbolicShape shape) {
    return model->graph->add_input(name, ir::Type::tensor(dtype, std::move(shape)));
  }
  ir::Value* weight(const std::string& name, Tensor value) {
    return model->graph->add_initializer(name, std::move(value));
  }
  void output(ir::Value* value, const std::string& name = "") {
    if (!name.empty()) model->graph->rename(value, model->graph->names().unique(name));
    model->graph->outputs.push_back(value);
  }

  std::shared_ptr<ir::Model> model;
  std::unique_ptr<ir::TypeInferer> inferer;
  ir::GraphBuilder g;
};

/// x [N, 2] -> MatMul 'W' [2, 1] -> Add 'b' [1] -> output 'y', float32.
inline Draft linear_model(const std::vector<float>& w = {0, 0}, float b = 0) {
  Draft draft;
  ir::Value* x = draft.input("x", DataType::kFloat32, {ir::Dim::named("N"), 2});
  ir::Value* weight = draft.weight("W", Tensor::from(w, Dims{2, 1}));
  ir::Value* bias = draft.weight("b", Tensor::from(std::vector{b}, Dims{1}));
  draft.output(draft.g.add(draft.g.matmul(x, weight), bias), "y");
  return draft;
}

/// Numbers of a JSON array in a type of tensors.
inline Tensor tensor_of(const nlohmann::json& numbers, DataType dtype, Dims dims) {
  return Tensor::from(numbers.get<std::vector<double>>(), std::move(dims)).cast(dtype);
}

inline Dims dims_of(const nlohmann::json& numbers) {
  return Dims(numbers.get<std::vector<std::int64_t>>());
}

/// tests/data/training_values.json; its script is next to it.
const nlohmann::json& training_values();

/// The folder of the sources, for test data.
inline std::string source_dir() {
  const char* folder = std::getenv("ONNXGRAD_SOURCE_DIR");
  return folder == nullptr ? "." : folder;
}

}  // namespace onnxgrad::train_test

#endif  // ONNXGRAD_TRAIN_TESTING_DRAFT_H_
