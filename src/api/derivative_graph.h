#ifndef ONNXGRAD_API_DERIVATIVE_GRAPH_H_
#define ONNXGRAD_API_DERIVATIVE_GRAPH_H_

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "autodiff/gradient.h"
#include "ir/builder.h"
#include "onnxgrad/gradient.h"
#include "train/graphs/training_graph.h"

namespace onnxgrad::api {

/// Writes a model for other runtimes, with our name as producer.
Model write_graph(ir::Model model, const WriteOptions& options);

/// Names of the outputs to differentiate and of the values to differentiate by; see
/// GradientOptions.
struct DerivativeNames {
  const std::vector<std::string>& wrt;
  const std::vector<std::string>& outputs;
  const std::vector<std::string>& stop_gradient;
  bool keep_outputs = false;
};

/// A copy of a model that derivatives are added to.
class DerivativeGraph {
 public:
  /// The weights of `wrt` become inputs. Throws: ModelError (unknown name, no floating output).
  DerivativeGraph(const Model& model, const DerivativeNames& names);

  ir::Graph& graph() { return *model_.graph; }
  ir::GraphBuilder& g() { return g_; }
  const std::vector<ir::Value*>& wrt() const { return wrt_; }
  const std::vector<ir::Value*>& outputs() const { return outputs_; }

  /// See autodiff::add_vjp.
  std::vector<ir::Value*> vjp(std::span<ir::Value* const> outputs,
                              std::span<ir::Value* const> seeds, std::span<ir::Value* const> wrt,
                              autodiff::ZeroGradients* zeros = nullptr);
  /// Appends a VJP inside a subgraph of a future node; see autodiff::add_vjp_inside.
  std::vector<ir::Value*> vjp_inside(ir::GraphBuilder& body, std::span<ir::Value* const> outputs,
                                     std::span<ir::Value* const> seeds,
                                     std::span<ir::Value* const> wrt,
                                     autodiff::ZeroGradients* zeros = nullptr);
  /// The gradient of the sum of the outputs, by each of wrt().
  std::vector<ir::Value*> gradient_of_sum(autodiff::ZeroGradients* zeros = nullptr);
  /// An input for each value, "<value><suffix>", of its type.
  std::vector<ir::Value*> add_inputs_like(std::span<ir::Value* const> values,
                                          std::string_view suffix);
  /// Adds the next output, before those that are kept.
  void add_output(ir::Value* value, const std::string& name);
  /// Removes an input. Nodes that read it for its shape read `like`, of the same shape; all others,
  /// linear functions of it that nothing needs, read zeros.
  void close_input(ir::Value* input, ir::Value* like);
  Model finish(const WriteOptions& options) &&;

 private:
  const opdef::OpRegistry& registry_;
  std::shared_ptr<const opdef::CustomGradients> custom_;
  ir::Model model_;
  std::unique_ptr<ir::TypeInferer> inferer_;
  ir::GraphBuilder g_;
  std::vector<ir::Value*> wrt_;
  std::vector<ir::Value*> outputs_;
  std::unordered_set<const ir::Value*> given_;  // values computed by nodes of the model
  std::ptrdiff_t num_added_ = 0;                // outputs
};

/// Builds the step with these options for a training copy.
train::StepGraph build_step_graph(const ir::Model& working, const Loss& loss,
                                  const Optimizer& optimizer, const TrainingStepOptions& options,
                                  const opdef::CustomGradients* custom);

}  // namespace onnxgrad::api

#endif  // ONNXGRAD_API_DERIVATIVE_GRAPH_H_
