#include "onnxgrad/report.h"

#include <algorithm>
#include <map>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "api/model_impl.h"
#include "autodiff/gradient.h"
#include "ir/uses.h"
#include "onnxgrad/losses.h"
#include "onnxgrad/optimizers.h"
#include "ops/builtin.h"
#include "train/data/targets.h"
#include "train/graphs/outputs.h"
#include "train/graphs/training_graph.h"
#include "train/graphs/weights_line.h"
#include "train/tools/engine.h"
#include "train/tools/text_codes.h"
#include "train/weights/weights.h"

namespace onnxgrad {
namespace {

using ir::Node;

using OperatorName = std::pair<std::string, std::string>;  // domain and type
using OperatorCounts = std::map<OperatorName, std::int64_t>;

void count_operators(const ir::Graph& graph, OperatorCounts& counts) {
  for (const Node* node : graph.nodes) {
    ++counts[{node->domain, node->op_type}];
    for (const ir::Graph* subgraph : node->subgraphs()) count_operators(*subgraph, counts);
  }
}

bool has_kernel(const OperatorName& name) {
  const runtime::Engine& engine = train::cpu_engine();
  const auto& [domain, op_type] = name;
  const opdef::OpDef* def = engine.ops.find(domain, op_type);
  return (def != nullptr && (def->expression != nullptr || def->is_view())) ||
         !engine.kernels.offers(domain, op_type).empty() ||
         engine.kernels.dynamic(domain, op_type) != nullptr ||
         engine.kernels.dynamic(ir::kFusedDomain, op_type) != nullptr;
}

bool is_on_cards(const OperatorName& name) {
  static const auto kernels = [] {
    auto made = std::make_unique<opdef::KernelRegistry>();
    ops::register_builtin_cuda_kernels(*made);
    return made;
  }();
  const auto& [domain, op_type] = name;
  const opdef::OpDef* def = train::builtin_ops().find(domain, op_type);
  return (def != nullptr && (def->expression != nullptr || def->is_view())) ||
         !kernels->offers(domain, op_type).empty();
}

bool can_run(const OperatorName& name, const ir::Model& working) {
  if (working.find_function(name.first, name.second) != nullptr) return true;
  const opdef::OpDef* def = train::builtin_ops().find(name.first, name.second);
  // A Constant with an attribute of the function that it was in has no kernel: it is folded.
  return (def != nullptr &&
          (def->lower != nullptr || def->function_body != nullptr || def->fold_types != nullptr)) ||
         has_kernel(name);
}

bool can_differentiate(const OperatorName& name, const onnx_io::OperatorTable& custom) {
  if (custom.gradients().contains(name)) return true;
  const opdef::OpDef* def = train::builtin_ops().find(name.first, name.second);
  return def != nullptr && (def->lower != nullptr || def->vjp != nullptr);
}

// The operators that are computed when all outputs of the working copy are: postprocessing of
// outputs (the maps of a ZipMap, labels that are strings) is not included.
OperatorCounts computed_operators(const ir::Model& working, bool& all_outputs) {
  std::vector<const ir::Value*> computed;
  all_outputs = true;
  for (const train::RunnableOutput& output : train::runnable_outputs(*working.graph)) {
    all_outputs = all_outputs && output.value != nullptr;
    if (output.value != nullptr) computed.push_back(output.value);
  }
  OperatorCounts counts;
  for (const Node* node : ir::nodes_for(*working.graph, computed)) {
    ++counts[{node->domain, node->op_type}];
    for (const ir::Graph* subgraph : node->subgraphs()) count_operators(*subgraph, counts);
  }
  return counts;
}

// Types of the nodes that no gradient of the outputs passes, on the path to weights and inputs.
std::unordered_set<std::string> operators_without_gradient(const ir::Model& working,
                                                           const onnx_io::OperatorTable& custom) {
  const auto is_floating_tensor = [](const ir::Value* value) {
    return value != nullptr && value->type.is_tensor() && is_floating(value->type.dtype);
  };
  std::vector<ir::Value*> outputs;
  for (const train::RunnableOutput& output : train::runnable_outputs(*working.graph)) {
    if (is_floating_tensor(output.value)) outputs.push_back(output.value);
  }
  std::vector<ir::Value*> wrt = working.graph->inputs;
  wrt.insert(wrt.end(), working.graph->initializers.begin(), working.graph->initializers.end());
  std::erase_if(wrt, [&](const ir::Value* value) { return !is_floating_tensor(value); });
  std::unordered_set<std::string> types;
  for (const autodiff::MissingGradient& gap :
       autodiff::find_missing_gradients(working, train::builtin_ops(), outputs, wrt, &custom)) {
    types.insert(gap.op_type);
  }
  return types;
}

// An operator of the file that is left in the working copy counts itself. For others, which
// became constants or were replaced by operators that the engine supports, those count.
std::vector<OperatorUse> list_operators(const ir::Model& file, const ir::Model& working,
                                        const onnx_io::OperatorTable& custom) {
  OperatorCounts counts;
  count_operators(*file.graph, counts);
  bool all_outputs = true;
  const OperatorCounts computed = computed_operators(working, all_outputs);
  bool all_new_run = all_outputs;
  const auto without = operators_without_gradient(working, custom);
  bool all_new_differentiate = all_outputs;
  for (const auto& [name, count] : computed) {
    if (counts.contains(name)) continue;
    all_new_run = all_new_run && can_run(name, working);
    all_new_differentiate = all_new_differentiate && !without.contains(name.second);
  }
  std::vector<OperatorUse> uses;
  for (const auto& [name, count] : counts) {
    const bool is_left = computed.contains(name);
    uses.push_back({.domain = name.first,
                    .op_type = name.second,
                    .count = count,
                    .runs = can_run(name, working) || (!is_left && all_new_run),
                    .has_gradient = (can_differentiate(name, custom) &&
                                     !(is_left && without.contains(name.second))) ||
                                    (!is_left && all_new_differentiate)});
  }
  return uses;
}

// Nodes that read each value, including those in subgraphs; a node counts once.
void count_readers(const ir::Graph& graph,
                   std::unordered_map<const ir::Value*, std::int64_t>& readers) {
  for (const Node* node : graph.nodes) {
    const std::unordered_set<const ir::Value*> read(node->inputs.begin(), node->inputs.end());
    // NOLINTNEXTLINE(bugprone-nondeterministic-pointer-iteration-order): counts have no order
    for (const ir::Value* value : read) ++readers[value];
    for (const ir::Graph* subgraph : node->subgraphs()) count_readers(*subgraph, readers);
  }
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
  const bool is_matmul = node->op_type == "MatMul" || (node->op_type == "Gemm" && weight.input < 2);
  if (!is_matmul) return elements;
  // The sums go over K: [.., M, K] x [.., K, N].
  if (dims.rank() > 2) {
    return 2 * elements * static_cast<double>(dims[dims.rank() - (weight.input == 0 ? 1 : 2)]);
  }
  const std::size_t kept = result.rank() - (weight.input == 0 ? 2 : 1);
  return 2 * elements * numbers / (result.rank() < 2 ? 1 : dim_of(*result.shape, kept));
}

// The loss that would be chosen, and what is between it and the weights.
void describe_training(const Model& model, Report& report) {
  const auto& ops = train::builtin_ops();
  try {
    const train::LossGraph loss =
        train::build_loss(*model.impl().training_copy(), ops, Loss{}, "loss");
    report.loss_line = loss.info.line;
    if (train::has_plain_columns(loss.info)) {
      report.loss_line += ", or softmax cross-entropy for class labels";
    }
    std::vector<ir::Value*> weights;
    for (const train::Weight& weight : train::find_weights(*loss.model, ops)) {
      if (weight.trainable) weights.push_back(weight.value);
    }
    const auto missing = autodiff::find_missing_gradients(
        *loss.model, ops, std::span(&loss.loss, 1), weights, model.impl().operators.get());
    for (const autodiff::MissingGradient& m : missing) {
      report.missing_gradients.push_back(
          {.op_type = m.op_type, .node = m.node, .input = m.input, .reason = m.reason});
    }
  } catch (const Error& error) {
    report.loss_problem = error.what();
  }
}

// Reports what training would do. `model` has its weights separated.
void judge(const Model& model, Report& report) {
  try {
    const train::NumberedModel numbered = train::number_texts(model.impl().training_copy());
    const ir::Model& working = *numbered.model;
    const train::StepGraph step =
        train::build_step(working, train::builtin_ops(), Loss{}, Sgd{},
                          {.custom_gradients = model.impl().operators.get()});
    report.is_trainable = true;
    const std::string line = train::weights_line(working, step, {});
    report.verdict = "trainable: " + line.substr(0, line.find(';'));
    std::unordered_set<std::string> trained;
    for (const WeightInfo& weight : step.weights) trained.insert(weight.name);
    for (const train::TiedWeight& tied : model.impl().tied()) {
      if (trained.contains(tied.main->name)) trained.insert(tied.copy->name);
    }
    for (WeightInfo& weight : report.weights) {
      if (train::is_quantized(weight) && trained.contains(weight.name)) {
        train::mark_as_rounded(weight);
      }
      if (!weight.trainable || trained.contains(weight.name)) continue;
      weight.trainable = false;
      weight.reason = "without influence on the loss";
    }
  } catch (const Error& error) {
    const Problem& problem = error.problem();
    report.verdict = "not trainable: " + problem.what;
    if (!problem.detail.empty()) report.verdict += ". " + problem.detail;
    if (!problem.hint.text().empty()) {
      report.verdict += (report.verdict.ends_with('.') ? " " : ". ") + problem.hint.text();
    }
  }
}

}  // namespace

std::vector<OperatorInfo> operator_table() {
  std::vector<OperatorInfo> table;
  for (const opdef::OpDef* def : train::builtin_ops().all()) {
    if (def->domain == ir::kFusedDomain || def->domain == ir::kFunctionDomain) continue;
    const OperatorName name{def->domain, def->op_type};
    table.push_back({.domain = name.first,
                     .op_type = name.second,
                     .has_rule = def->vjp != nullptr,
                     .is_lowered = def->lower != nullptr,
                     .has_zero_grad = def->zero_gradient,
                     .has_kernel = has_kernel(name),
                     .is_on_cards = is_on_cards(name)});
  }
  return table;
}

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
  const ir::Model& working = *model.impl().working();
  result.operators = list_operators(file, working, *model.impl().operators);
  result.weights = model.weights();
  std::unordered_map<const ir::Value*, std::int64_t> readers;
  count_readers(*working.graph, readers);
  const std::vector<train::Weight> weights = train::find_weights(working, train::builtin_ops());
  for (const train::Weight& weight : weights) {
    result.weight_flops.push_back(count_flops(weight));
    result.weight_readers.push_back(readers[weight.value]);
  }
  for (const auto& [bytes, integers] : train::find_packed_integers(weights)) {
    std::swap(result.weight_flops[bytes], result.weight_flops[integers]);
    std::swap(result.weight_readers[bytes], result.weight_readers[integers]);
  }
  const Model apart = api::untied(model, /*untie=*/true);
  judge(apart, result);
  for (const WeightInfo& weight : result.weights) {
    if (!is_floating(weight.dtype)) continue;
    result.num_parameters += weight.dims.num_elements();
    if (weight.trainable) result.num_trainable += weight.dims.num_elements();
  }
  if (model.impl().untied() != nullptr) result.separated = model.impl().untied()->separated;
  for (const train::TiedWeight& one : apart.impl().tied()) {
    result.tied.push_back(train::tied_text(std::span(&one, 1)));
  }
  describe_training(apart, result);
  return result;
}

}  // namespace onnxgrad
