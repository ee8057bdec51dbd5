#include "onnxgrad/report.h"

#include <algorithm>
#include <map>
#include <utility>

#include "api/model_impl.h"
#include "autodiff/gradient.h"
#include "onnxgrad/losses.h"
#include "train/engine.h"
#include "train/training_graph.h"
#include "train/weights.h"

namespace onnxgrad {
namespace {

using ir::Node;

void count_operators(const ir::Graph& graph,
                     std::map<std::pair<std::string, std::string>, std::int64_t>& counts) {
  for (const Node* node : graph.nodes) {
    ++counts[{node->domain, node->op_type}];
    for (const ir::Graph* subgraph : node->subgraphs()) count_operators(*subgraph, counts);
  }
}

std::vector<OperatorUse> list_operators(const ir::Model& model) {
  std::map<std::pair<std::string, std::string>, std::int64_t> counts;
  count_operators(*model.graph, counts);
  const runtime::Engine& engine = train::builtin_engine();
  std::vector<OperatorUse> uses;
  for (const auto& [key, count] : counts) {
    const auto& [domain, op_type] = key;
    const opdef::OpDef* def = engine.ops.find(domain, op_type);
    const bool is_function = model.find_function(domain, op_type) != nullptr;
    const bool lowers = def != nullptr && def->lower != nullptr;
    uses.push_back(
        {.domain = domain,
         .op_type = op_type,
         .count = count,
         .runs = is_function || lowers || (def != nullptr && def->expression != nullptr) ||
                 (def != nullptr && def->is_view) ||
                 !engine.kernels.offers(domain, op_type).empty() ||
                 engine.kernels.dynamic(domain, op_type) != nullptr,
         .has_gradient = is_function || lowers || (def != nullptr && def->vjp != nullptr)});
  }
  return uses;
}

double num_elements(const ir::SymbolicShape& shape) {
  double count = 1;
  for (const ir::Dim& dim : shape) count *= dim.is_static() ? static_cast<double>(dim.value()) : 1;
  return count;
}

double dim_of(const ir::SymbolicShape& shape, std::size_t axis) {
  if (axis >= shape.size() || !shape[axis].is_static()) return 1;
  return std::max<double>(1, static_cast<double>(shape[axis].value()));
}

// The operations of the layer that a weight belongs to; see Report::weight_flops.
double count_flops(const train::Weight& weight) {
  const Node* node = weight.reader;
  if (node == nullptr || node->outputs.empty() || node->output(0) == nullptr) return 0;
  const ir::Type& result = node->output(0)->type;
  if (!result.has_rank() || !is_floating(result.dtype)) return 0;
  const Dims& dims = weight.value->initializer.dims();
  const auto numbers = static_cast<double>(dims.num_elements());
  const double elements = num_elements(*result.shape);
  if (!node->domain.empty() || dims.rank() < 2) return elements;
  if (node->op_type == "Gather") return 0;
  if (node->op_type == "Conv") return 2 * numbers * elements / dim_of(*result.shape, 1);
  if (node->op_type == "ConvTranspose" && node->input(0)->type.has_rank()) {
    const ir::SymbolicShape& input = *node->input(0)->type.shape;
    return 2 * numbers * num_elements(input) / dim_of(input, 1);
  }
  const bool is_product =
      node->op_type == "MatMul" || (node->op_type == "Gemm" && weight.input < 2);
  if (!is_product) return elements;
  // The sums go over K: [.., M, K] x [.., K, N].
  if (dims.rank() > 2) {
    return 2 * elements * static_cast<double>(dims[dims.rank() - (weight.input == 0 ? 1 : 2)]);
  }
  const std::size_t kept = result.rank() - (weight.input == 0 ? 2 : 1);
  return 2 * elements * numbers / (result.rank() < 2 ? 1 : dim_of(*result.shape, kept));
}

// The loss that would be chosen, and what stands between it and the weights.
void describe_training(const Model& model, Report& report) {
  const auto& ops = train::builtin_engine().ops;
  try {
    const train::LossGraph loss =
        train::build_loss(*model.impl().training_copy(), ops, Loss{}, "loss");
    report.loss_line = loss.info.line;
    std::vector<ir::Value*> weights;
    for (const train::Weight& weight : train::find_weights(*loss.model, ops)) {
      if (weight.trainable) weights.push_back(weight.value);
    }
    const auto missing =
        autodiff::find_missing_gradients(*loss.model, ops, std::span(&loss.loss, 1), weights);
    for (const autodiff::MissingGradient& m : missing) {
      report.missing_gradients.push_back(
          {.op_type = m.op_type, .node = m.node, .input = m.input, .reason = m.reason});
    }
  } catch (const Error& error) {
    report.loss_problem = error.what();
  }
}

}  // namespace

Report report(const Model& model) {
  const ir::Model& file = *model.impl().file.model;
  Report result;
  result.file = model.path();
  result.producer = file.producer_name;
  if (!file.producer_version.empty()) result.producer += " " + file.producer_version;
  result.opset = model.opset();
  result.ir_version = model.ir_version();
  result.inputs = model.inputs();
  result.outputs = model.outputs();
  result.operators = list_operators(file);
  result.weights = model.weights();
  for (const train::Weight& weight :
       train::find_weights(*model.impl().working(), train::builtin_engine().ops)) {
    result.weight_flops.push_back(count_flops(weight));
  }
  for (const WeightInfo& weight : result.weights) {
    if (!is_floating(weight.dtype)) continue;
    result.num_parameters += weight.dims.num_elements();
    if (weight.trainable) result.num_trainable += weight.dims.num_elements();
  }
  if (model.impl().untied() != nullptr) result.separated = model.impl().untied()->separated;
  describe_training(model, result);
  return result;
}

}  // namespace onnxgrad
