#ifndef ONNXGRAD_API_MODEL_IMPL_H_
#define ONNXGRAD_API_MODEL_IMPL_H_

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/memory_budget.h"
#include "onnx/model_io.h"
#include "onnx/operator_table.h"
#include "onnxgrad/model.h"
#include "train/quantization/float_weights.h"
#include "train/tools/engine.h"
#include "train/weights/tied_weights.h"

namespace onnxgrad {

/// The data of a Model: a file, new values for some of its weights, and its working copy.
struct Model::Impl {
  Impl(onnx_io::FileModel file_model, LoadOptions load_options);
  /// The file of `base` with new values for these weights of its working copy, dtypes and shapes
  /// unchanged.
  Impl(const Impl& base, const NamedTensors& new_weights);
  /// The file of `base`, in bytes, with new values for these states of its own training: initial
  /// values of `step`, each at its origin.
  Impl(const Impl& base, const NamedTensors& states, std::shared_ptr<const ir::Model> step);

  /// The working copy; made at the first call, by one thread while others wait.
  const std::shared_ptr<const ir::Model>& working() const;
  train::Source source() const {
    return {.file = file, .working = working(), .gradients = operators};
  }
  /// The working copy for training: opposite columns are one weight
  /// (train/heads/tie_columns.h), and so are tensors that the file stores twice (tied()); quantized
  /// weights are floating-point (float_form()).
  const std::shared_ptr<const ir::Model>& training_copy() const { return float_form().model; }
  /// The training copy and the weights that are integers in the file.
  const train::FloatForm& float_form() const;
  /// Tied weights of the working copy: see train/weights/tied_weights.h.
  const std::vector<train::TiedWeight>& tied() const;
  train::Source training_source() const {
    return {.file = file, .working = training_copy(), .gradients = operators};
  }
  /// The working copy with floating-point weights for quantized ones, and nothing tied.
  train::Source pass_source() const {
    return {.file = file,
            .working = train::with_float_weights(working(), float_weights).model,
            .gradients = operators};
  }
  /// The file with the weights separated that share a tensor in it by accident
  /// (train/weights/untie.h), and `separated` listing them; nullptr if there are none.
  const std::shared_ptr<const Impl>& untied() const;
  const std::vector<WeightInfo>& weight_list() const;
  std::string bytes() const;
  /// The graph of the file with the changed weights in it.
  std::shared_ptr<const ir::Model> file_graph() const;
  void save(const std::string& path) const;
  /// The file that changed weights are written into: that of a graph made here is written first.
  onnx_io::FileModel written_graph() const;
  /// The file with its changed weights, in bytes.
  onnx_io::FileModel current_file() const;
  /// The file with its changed weights; without bytes if the graph was made here.
  onnx_io::FileModel current_file_or_graph() const;
  /// A copy of that graph, which a change of the model edits.
  std::shared_ptr<ir::Model> copied_graph() const {
    return std::make_shared<ir::Model>(ir::clone(*current_file_or_graph().model));
  }
  /// The changed weights that `other` has too.
  NamedTensors changed_in(const Impl& other) const;

  onnx_io::FileModel file;
  LoadOptions options;
  /// Operators registered when the model was loaded.
  std::shared_ptr<const onnx_io::OperatorTable> operators;
  std::vector<ValueInfo> inputs;
  std::vector<ValueInfo> outputs;
  std::vector<SeparatedWeight> separated;  ///< weights that untied() separates
  std::shared_ptr<const Impl> plain;       ///< the model that adapters were added to; may be null
  NamedTensors float_weights;  ///< weights that were quantized here, as they were before

 private:
  // Whether the model is a graph that was made here, as it was made.
  bool is_graph_alone() const { return file.bytes == nullptr && changed_.empty(); }
  // The model whose values say where the file stores the changed weights.
  const ir::Model& places() const {
    if (changed_.empty()) return *file.model;
    return step_ == nullptr ? *working() : *step_;
  }
  std::string note() const;

  std::vector<std::pair<std::string, Tensor>> changed_;  // values that replace those of the file
  std::shared_ptr<const ir::Model> step_;  // model of the states in changed_; nullptr: working()
  mutable std::once_flag working_made_;
  mutable std::shared_ptr<const ir::Model> working_;
  mutable std::once_flag float_form_made_;
  mutable train::FloatForm float_form_;
  mutable std::once_flag tied_found_;
  mutable std::vector<train::TiedWeight> tied_;
  mutable std::once_flag untied_made_;
  mutable std::shared_ptr<const Impl> untied_;
  mutable std::vector<WeightInfo> weights_;
};

namespace api {

/// A public model of a graph created here. Its bytes are serialized on demand.
Model wrap(ir::Model model);

/// A model with this graph, a changed clone of that of `model`, whose tensors it shares.
std::shared_ptr<Model::Impl> edited(const Model& model, std::shared_ptr<const ir::Model> graph);

/// The file of `model` with new values for these weights, each in the shape that it has in the file
/// or in the training copy; with weights separated if the names are those of parts. Throws:
/// ModelError (unknown weight, different dtype or shape).
Model with_weights(const Model& model, const NamedTensors& weights);

/// The file of `model` with the weights of its training copy; integers follow their scales.
Model with_trained_weights(const Model& model, NamedTensors weights);

/// `model` in the form for training: with TrainingOptions::untie, Model::Impl::untied() if any.
Model untied(const Model& model, bool untie);

/// The weight of that name in the working copy. Throws: ModelError naming the nearest.
ir::Value* find_weight(const ir::Model& working, std::string_view name);

}  // namespace api
}  // namespace onnxgrad

#endif  // ONNXGRAD_API_MODEL_IMPL_H_
