#ifndef ONNXGRAD_RUNTIME_TESTING_MODEL_DRAFT_H_
#define ONNXGRAD_RUNTIME_TESTING_MODEL_DRAFT_H_

#include <memory>
#include <utility>

#include "ir/builder.h"
#include "ir/graph.h"
#include "onnx/inference.h"
#include "runtime/testing/builtin_engine.h"

namespace onnxgrad::runtime {

/// A model under construction.
struct ModelDraft {
  ir::Model model = [] {
    ir::Model empty;
    empty.set_opset("", ir::kInternalOpset);
    return empty;
  }();
  std::unique_ptr<ir::TypeInferer> inferer = onnx_io::make_type_inferer(model);
  ir::GraphBuilder g{model, *model.graph, *inferer, builtin_engine().ops};

  template <class Shape>
  ir::Value* input(const char* name, Shape shape, DataType dtype) {
    return model.graph->add_input(name, ir::Type::tensor(dtype, std::move(shape)));
  }
  ir::Value* state(const char* name, const Tensor& initial) {
    ir::Value* value = input(name, initial.dims(), initial.dtype());
    value->initializer = initial;
    model.graph->initializers.push_back(value);
    return value;
  }
};

}  // namespace onnxgrad::runtime

#endif  // ONNXGRAD_RUNTIME_TESTING_MODEL_DRAFT_H_
