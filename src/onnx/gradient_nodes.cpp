#include "onnx/gradient_nodes.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"
#include "onnx/rewriting.h"
#include "onnxgrad/error.h"

namespace onnxgrad::onnx_io {
namespace {

using ir::Graph;
using ir::Node;
using ir::Value;

constexpr std::string_view kDomain = "ai.onnx.preview.training";

struct Names {
  std::vector<std::string> xs = {};
  std::vector<std::string> zs = {};
  std::string y = {};
};

[[noreturn]] void refuse(const Node& node, std::string what, std::string detail, Hint hint,
                         const std::string& value = {}) {
  throw ModelError({.what = std::move(what),
                    .where = {.graph = node.graph->name,
                              .node = node.name,
                              .op_type = node.op_type,
                              .value = value},
                    .detail = std::move(detail),
                    .hint = std::move(hint)});
}

std::vector<std::string> strings_of(const Node& node, std::string_view attribute) {
  const ir::AttributeValue* value = node.find_attribute(attribute);
  if (value == nullptr) return {};
  if (const auto* strings = std::get_if<std::vector<std::string>>(value)) return *strings;
  refuse(node, fmt::format("attribute '{}' is not a list of names", attribute), {},
         "Write the names of tensors into the node, not a reference to an attribute of a "
         "function.");
}

Names names_of(const Node& node) {
  Names names{.xs = strings_of(node, "xs"), .zs = strings_of(node, "zs")};
  if (const ir::AttributeValue* y = node.find_attribute("y")) {
    if (const auto* text = std::get_if<std::string>(y)) names.y = *text;
  }
  const char* missing = names.xs.empty() ? "xs" : names.y.empty() ? "y" : nullptr;
  if (missing != nullptr) {
    refuse(node, fmt::format("attribute '{}' is missing", missing),
           "xs names the tensors to differentiate by, y the one to differentiate.",
           "Give the names of tensors of the graph.");
  }
  return names;
}

Value* find_named(const Node& node, const char* attribute, const std::string& name) {
  if (Value* value = node.graph->find_visible(name)) return value;
  std::vector<std::string> known;
  for (const Graph* graph = node.graph; graph != nullptr; graph = graph->parent()) {
    for (const Value* value : graph->inputs) known.push_back(value->name);
    for (const Value* value : graph->initializers) known.push_back(value->name);
    for (const Node* other : graph->nodes) {
      for (const Value* output : other->outputs) {
        if (output != nullptr) known.push_back(output->name);
      }
    }
  }
  refuse(node, fmt::format("{} names '{}', which the graph does not have", attribute, name), {},
         base::nearest_or(name, known, "Name a tensor of the node's graph or of one around it."),
         name);
}

void add_named_inputs(Node& node) {
  const Names names = names_of(node);
  const std::size_t count = names.xs.size() + names.zs.size();
  if (node.inputs.size() != count || std::ranges::find(node.inputs, nullptr) != node.inputs.end()) {
    refuse(node,
           fmt::format("{} inputs for {} tensors named in xs and zs", node.inputs.size(), count),
           "The i-th input is what the i-th named tensor is taken to be.",
           "Give each of them an input; to differentiate at the tensors themselves, those.");
  }
  if (node.outputs.size() > names.xs.size()) {
    refuse(node,
           fmt::format("{} outputs for {} tensors in xs", node.outputs.size(), names.xs.size()), {},
           "Name a tensor in xs for each output.");
  }
  for (const std::string& name : names.xs) node.inputs.push_back(find_named(node, "xs", name));
  for (const std::string& name : names.zs) node.inputs.push_back(find_named(node, "zs", name));
  node.inputs.push_back(find_named(node, "y", names.y));
}

// True if there is one in the graph or in its subgraphs.
bool resolve_in(Graph& graph) {
  const Node* first = nullptr;
  for (Node* node : graph.nodes) {
    bool has_one = is_gradient_node(*node);
    if (has_one) add_named_inputs(*node);
    for (Graph* body : node->subgraphs()) has_one = resolve_in(*body) || has_one;
    if (has_one && first == nullptr) first = node;
  }
  if (first != nullptr && !ir::try_sort_topologically(graph)) {
    refuse(*first, "a tensor that Gradient names depends on that node itself", {},
           "Name tensors in xs, zs and y that are computed without it.");
  }
  return first != nullptr;
}

void expect_floating(const Node& node, const char* attribute, const Value& value) {
  if (value.type.kind == ir::Type::Kind::kUnknown) return;
  if (value.type.is_tensor() && is_floating(value.dtype())) return;
  refuse(node,
         fmt::format("{} names '{}', which is {}", attribute, value.name, value.type.to_string()),
         {}, "Differentiate floating-point tensors.", value.name);
}

}  // namespace

bool is_gradient_node(const Node& node) {
  return node.domain == kDomain && node.op_type == "Gradient";
}

bool has_gradient_nodes(const Graph& graph) {
  return std::ranges::any_of(graph.nodes, [](const Node* node) {
    const auto bodies = node->subgraphs();
    return is_gradient_node(*node) ||
           std::ranges::any_of(bodies, [](const Graph* body) { return has_gradient_nodes(*body); });
  });
}

void resolve_gradient_names(ir::Model& model) {
  resolve_in(*model.graph);
  for (ir::Function& function : model.functions) resolve_in(*function.body);
}

void expand_gradient_node(Node& node, ir::GraphBuilder& g, const opdef::GradientAtFn& gradient_at) {
  const std::size_t num_xs = names_of(node).xs.size();
  const std::size_t count = node.inputs.size() / 2;  // and y
  const std::span<Value* const> inputs(node.inputs);
  const opdef::GradientAt request{.y = inputs.back(),
                                  .named = inputs.subspan(count, count),
                                  .fed = inputs.first(count),
                                  .num_xs = num_xs};
  expect_floating(node, "y", *request.y);
  for (std::size_t i = 0; i < count; ++i) {
    const Value& named = *request.named[i];
    const Value& fed = *request.fed[i];
    if (i < num_xs) expect_floating(node, "xs", named);
    if (named.dtype() == fed.dtype() || named.dtype() == DataType::kUndefined) continue;
    refuse(node,
           fmt::format("input {} is {}, but it stands for '{}', which is {}", i,
                       fed.type.to_string(), named.name, named.type.to_string()),
           {}, "Feed a tensor of the same type.", named.name);
  }
  try {
    const std::size_t first_new = g.graph().nodes.size();
    adopt_results(node, gradient_at(g, request), first_new, g, g.inferer());
  } catch (const GradientError& error) {
    Problem problem = error.problem();
    problem.what = node.describe() + ": " + problem.what;
    problem.hint = "Name tensors in xs after these nodes, or replace the operators.";
    throw GradientError(std::move(problem));
  }
}

}  // namespace onnxgrad::onnx_io
