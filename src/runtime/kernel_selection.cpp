#include "runtime/kernel_selection.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/memory_budget.h"
#include "ir/builder.h"
#include "ir/uses.h"
#include "runtime/packed_graph.h"

namespace onnxgrad::runtime {
namespace {

opdef::TensorDesc describe(const ir::Value* value) {
  if (value == nullptr) return {};
  const auto dims = value->type.static_dims();
  ONNXGRAD_ASSERT(dims.has_value());
  return {.dtype = value->dtype(), .dims = *dims};
}

// An offer throws if shapes do not match; the location is added here.
opdef::KernelOffer ask(const opdef::KernelRegistry::Entry& entry,
                       const opdef::KernelRequest& request) {
  try {
    return entry.offer(request);
  } catch (const ShapeError& error) {
    if (!error.place().node.empty()) throw;
    Problem problem = error.problem();
    problem.where.node = request.node.name;
    problem.where.op_type = request.node.op_type;
    throw ShapeError(std::move(problem));
  }
}

// Refuses outputs that can never be allocated, before a kernel makes tables of their size.
void check_memory(const opdef::KernelRequest& request) {
  const auto budget = base::current_budget();
  for (const opdef::TensorDesc& output : request.outputs) {
    if (!output.is_present() || output.dtype == DataType::kString) continue;
    const std::int64_t bytes = output.dims.size_bytes(output.dtype);
    if (bytes <= budget->limit_bytes()) continue;
    try {
      budget->reserve(bytes);
    } catch (const DeviceError& error) {
      Problem problem = error.problem();
      problem.where.node = request.node.name;
      problem.where.op_type = request.node.op_type;
      throw DeviceError(std::move(problem));
    }
  }
}

}  // namespace

opdef::KernelRequest make_request(const Engine& engine, const ir::Node& node, int threads,
                                  const opdef::BodyCompiler* bodies) {
  opdef::KernelRequest request{.node = node,
                               .inputs = {},
                               .outputs = {},
                               .constants = {},
                               .threads = threads,
                               .bodies = bodies,
                               .cpu = &engine.cpu,
                               .numerics = engine.numerics,
                               .device = &engine.device};
  for (const ir::Value* input : node.inputs) {
    request.inputs.push_back(describe(input));
    request.constants.push_back(input != nullptr && input->is_constant() ? &input->initializer
                                                                         : nullptr);
  }
  for (const ir::Value* output : node.outputs) request.outputs.push_back(describe(output));
  return request;
}

std::optional<opdef::PreparedKernel> select_kernel(const opdef::KernelRegistry& kernels,
                                                   const opdef::KernelRequest& request,
                                                   std::string* reasons) {
  const ir::Node& node = request.node;
  check_memory(request);
  for (const auto& entry : kernels.offers(node.domain, node.op_type)) {
    opdef::KernelOffer offer = ask(entry, request);
    if (offer.kernel.fn != nullptr) return std::move(offer.kernel);
    if (reasons != nullptr && !offer.declined.empty()) {
      *reasons += (reasons->empty() ? "" : "; ") + offer.declined;
    }
  }
  return std::nullopt;
}

bool has_texts(const ir::Node& node) {
  const auto is_text = [](const ir::Value* value) {
    return value != nullptr && value->dtype() == DataType::kString;
  };
  return std::ranges::any_of(node.inputs, is_text) || std::ranges::any_of(node.outputs, is_text);
}

std::optional<SelectedKernel> select_kernel(const Engine& engine,
                                            const opdef::KernelRequest& request,
                                            std::string* reasons) {
  const bool is_host = engine.device.is_host();
  if (!is_host && !request.node.subgraphs().empty()) {  // the host submits the bodies
    auto kernel = select_kernel(engine.on_host(), request, reasons);
    if (!kernel) return std::nullopt;
    return SelectedKernel{.kernel = *std::move(kernel)};
  }
  if (is_host || !has_texts(request.node)) {
    auto kernel = select_kernel(engine.kernels, request, reasons);
    if (kernel) return SelectedKernel{.kernel = *std::move(kernel)};
    if (is_host) return std::nullopt;
  }
  auto kernel = select_kernel(engine.on_host(), request, reasons);
  if (!kernel) return std::nullopt;
  return SelectedKernel{.kernel = *std::move(kernel), .is_on_host = true};
}

double estimate_ns(const opdef::KernelRequest& request, const opdef::PreparedKernel& kernel) {
  constexpr double kCallNs = 50;
  constexpr double kFlopsPerNs = 100;
  constexpr double kBytesPerNs = 50;        // operands of products
  constexpr double kUnknownBytesPerNs = 1;  // rather too much than too little
  double bytes = 0;
  const auto add = [&](const std::vector<opdef::TensorDesc>& descs) {
    for (const opdef::TensorDesc& desc : descs) {
      if (!desc.is_present() || desc.dtype == DataType::kString) continue;
      bytes += static_cast<double>(desc.dims.size_bytes(desc.dtype));
    }
  };
  add(request.inputs);
  add(request.outputs);
  if (kernel.flops == 0) return kCallNs + bytes / kUnknownBytesPerNs;
  return kCallNs + kernel.flops / kFlopsPerNs + bytes / kBytesPerNs;
}

void throw_no_kernel(const ir::Node& node, const std::string& reasons) {
  std::string types;
  for (const ir::Value* input : node.inputs) {
    types += (types.empty() ? "" : ", ") + (input == nullptr ? "_" : input->type.to_string());
  }
  throw UnsupportedOperatorError(
      {.what = fmt::format("no kernel runs this operator on ({})", types),
       .where = {.graph = node.graph == nullptr ? "" : node.graph->name,
                 .node = node.name,
                 .op_type = (node.domain.empty() ? "" : node.domain + ".") + node.op_type},
       .detail = reasons.empty() ? "" : "Declined: " + reasons + ".",
       .hint = "Replace the operator, or put a Cast to float32 before it."});
}

namespace {

bool has_kernel(const ir::Node& node, const Engine& engine) {
  return !engine.kernels.offers(node.domain, node.op_type).empty() ||
         !engine.on_host().offers(node.domain, node.op_type).empty() ||
         engine.on_host().dynamic(node.domain, node.op_type) != nullptr;
}

bool can_run(const ir::Node& node, const Engine& engine) {
  if (has_kernel(node, engine)) return true;
  const opdef::OpDef* def = engine.ops.find(node);
  return def != nullptr && (def->expression != nullptr || def->is_view() || def->lower != nullptr ||
                            def->fold_types != nullptr || def->is_identity != nullptr);
}

// The error of a lowering that has no form for a node without a kernel; nullopt: another reason.
std::optional<Problem> refused_lowering(const ir::Node& node, const Engine& engine) {
  const opdef::OpDef* def = engine.ops.find(node);
  if (def == nullptr || def->lower == nullptr || has_kernel(node, engine)) return std::nullopt;
  ir::Model scratch;
  const auto inferer = engine.make_inferer(scratch);
  ir::GraphBuilder g(scratch, *scratch.graph, *inferer, engine.ops);
  try {
    def->lower(engine.ops.complete(node), g);
  } catch (const UnsupportedOperatorError& error) {
    return error.problem();
  } catch (const Error&) {
    return std::nullopt;  // types are not known yet
  }
  return std::nullopt;
}

// Nodes of a graph, its subgraphs and the functions that they call, each of these once.
class UnsupportedSearch {
 public:
  UnsupportedSearch(const ir::Model& model, const Engine& engine)
      : model_(model), engine_(engine) {}

  void visit(const ir::Graph& graph) {
    for (const ir::Node* node : graph.nodes) visit(*node);
  }
  void visit(const ir::Node& node) {
    for (const ir::Graph* body : node.subgraphs()) visit(*body);
    const ir::Function* function = model_.find_function(node.domain, node.op_type);
    if (function == nullptr) {
      const bool is_moved = !is_in_function_ && runs_packed(node, engine_.on_host());
      if (!is_moved && !can_run(node, engine_)) found.push_back(&node);
    } else if (visited_.insert(function).second) {
      const bool was_in_function = std::exchange(is_in_function_, true);
      visit(*function->body);
      is_in_function_ = was_in_function;
    }
  }

  std::vector<const ir::Node*> found;

 private:
  const ir::Model& model_;
  const Engine& engine_;
  std::unordered_set<const ir::Function*> visited_;
  bool is_in_function_ = false;
};

std::string full_name(const ir::Node& node) {
  return (node.domain.empty() ? "" : node.domain + ".") + node.op_type;
}

// Advice about an operator that no kernel runs.
Hint hint_for(const ir::Node& node, const Engine& engine) {
  if (node.domain.empty() || node.domain == "ai.onnx.ml" || node.domain == "com.microsoft") {
    return base::nearest_or(node.op_type, engine.ops.names(node.domain),
                            "Replace these operators, or cut the model before them.");
  }
  return fmt::format(
      "ONNX does not say what operators of domain '{}' compute: define {} by standard operators "
      "with "
      "register_operator(), or as a model-local function of the model, or cut the model before.",
      node.domain, node.op_type);
}

}  // namespace

std::optional<Problem> find_unsupported(const ir::Model& model, const Engine& engine,
                                        std::span<const ir::Value* const> values) {
  const std::vector<const ir::Node*> nodes = ir::nodes_for(*model.graph, values);
  UnsupportedSearch search(model, engine);
  for (const ir::Node* node : nodes) search.visit(*node);
  const std::vector<const ir::Node*>& found = search.found;
  if (found.empty()) {
    for (const ir::Node* node : nodes) {
      if (auto problem = refused_lowering(*node, engine)) return problem;
    }
    return std::nullopt;
  }
  constexpr std::size_t kListed = 10;
  std::string list;
  for (std::size_t i = 0; i < std::min(found.size(), kListed); ++i) {
    const ir::Node& node = *found[i];
    const bool has_output = !node.outputs.empty() && node.outputs[0] != nullptr;
    const std::string name = !node.name.empty() || !has_output
                                 ? "'" + node.name + "'"
                                 : "of '" + node.outputs[0]->name + "'";
    list += fmt::format("{}{} {}", i > 0 ? ", " : "", full_name(node), name);
  }
  if (found.size() > kListed) list += fmt::format(", ... {} in total", found.size());
  return Problem{.what = fmt::format("no kernel runs {} node{}: {}", found.size(),
                                     found.size() == 1 ? "" : "s", list),
                 .where = {.graph = model.graph->name, .op_type = full_name(*found.front())},
                 .hint = hint_for(*found.front(), engine)};
}

}  // namespace onnxgrad::runtime
