#ifndef ONNXGRAD_API_MODEL_IMPL_H_
#define ONNXGRAD_API_MODEL_IMPL_H_

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/memory_budget.h"
#include "onnx/model_io.h"
#include "onnxgrad/model.h"
#include "train/session.h"

namespace onnxgrad {

/// What a Model stands for: the file, and lazily its working copy.
struct Model::Impl {
  Impl(onnx_io::FileModel file_model, LoadOptions load_options);

  /// The working copy; made at the first call, by one thread while others wait.
  const std::shared_ptr<const ir::Model>& working() const;
  train::Source source() const { return {.file = file, .working = working()}; }
  const std::vector<WeightInfo>& weight_list() const;
  std::string bytes() const;

  onnx_io::FileModel file;
  LoadOptions options;
  std::vector<ValueInfo> inputs;
  std::vector<ValueInfo> outputs;

 private:
  mutable std::once_flag working_made_;
  mutable std::shared_ptr<const ir::Model> working_;
  mutable std::vector<WeightInfo> weights_;
};

namespace api {

/// A public model of a graph that was made here. Its bytes are serialized when they are asked for.
Model wrap(ir::Model model);

/// The same file with other numbers in the places of these weights.
Model with_weights(const Model& model, const NamedTensors& weights);

/// A model from the bytes of `model` with some of them changed: same path and options.
Model from_changed_bytes(const Model& model, std::string bytes);

/// The weight of that name in the working copy. Throws: ModelError naming the nearest.
ir::Value* find_weight(const ir::Model& working, std::string_view name);

}  // namespace api
}  // namespace onnxgrad

#endif  // ONNXGRAD_API_MODEL_IMPL_H_
