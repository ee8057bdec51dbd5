#include "onnx/model_rules.h"

#include <fmt/format.h>
#include <onnx/onnx_pb.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/check.h"
#include "onnx/functions.h"
#include "onnx/schemas.h"
#include "onnxgrad/error.h"

namespace onnxgrad::onnx_io {
namespace {

constexpr std::int64_t kOldestIrVersion = 3;
constexpr std::int64_t kMaxExpandedNodes = 2'000'000;

using FunctionKey = std::tuple<std::string_view, std::string_view, std::string_view>;
using Imports = std::vector<std::pair<std::string, std::int64_t>>;

std::string_view canonical(std::string_view domain) {
  return is_standard_domain(domain) ? std::string_view() : domain;
}

FunctionKey key_of(const ir::Function& function) {
  return {canonical(function.domain), function.name, function.overload};
}
FunctionKey key_of(const ir::Node& node) {
  return {canonical(node.domain), node.op_type, node.overload};
}

void check_imports(const Imports& imports, const std::string& owner) {
  std::map<std::string_view, std::int64_t> seen;
  for (const auto& [domain, version] : imports) {
    const std::string shown = domain.empty() ? "ai.onnx" : domain;
    const auto [known, is_new] = seen.emplace(canonical(domain), version);
    if (!is_new && known->second != version) {  // skl2onnx writes the same line twice
      throw ModelError({.what = fmt::format("{} imports domain '{}' twice, in versions {} and {}",
                                            owner, shown, known->second, version),
                        .hint = "Keep the import that its nodes were written for."});
    }
    const int newest = newest_opset(domain);
    if (version < 1 || (newest > 0 && version > newest)) {
      throw ModelError(
          {.what = fmt::format("{} imports opset {} of '{}', expected 1 to {}", owner, version,
                               shown, newest > 0 ? std::to_string(newest) : "2^63 - 1"),
           .hint = "Export it with an older opset, or use a newer onnxgrad."});
    }
  }
}

bool imports_domain(const Imports& imports, std::string_view domain) {
  return std::ranges::any_of(imports, [domain](const auto& import) {
    return canonical(import.first) == canonical(domain);
  });
}

template <class Visit>
void for_each_node(const ir::Graph& graph, const Visit& visit) {
  for (const ir::Node* node : graph.nodes) {
    visit(*node);
    for (const ir::Graph* subgraph : node->subgraphs()) for_each_node(*subgraph, visit);
  }
}

void check_domains(const ir::Graph& graph, const Imports& imports, const std::string& owner) {
  for_each_node(graph, [&](const ir::Node& node) {
    if (imports_domain(imports, node.domain)) return;
    const std::string shown = node.domain.empty() ? "ai.onnx" : node.domain;
    throw ModelError({.what = "domain '" + shown + "' is not among the opset imports of " + owner,
                      .where = {.graph = graph.name, .node = node.name, .op_type = node.op_type},
                      .hint = "Add the domain with its version to the opset imports."});
  });
}

// Counts the nodes of each function with all calls expanded, without recursion.
class ExpansionCounter {
 public:
  explicit ExpansionCounter(const ir::Model& model) : model_(model) {
    for (std::size_t i = 0; i < model.functions.size(); ++i) {
      index_.emplace(key_of(model.functions[i]), i);
    }
    calls_.resize(model.functions.size());
    own_.resize(model.functions.size());
    for (std::size_t i = 0; i < model.functions.size(); ++i) {
      own_[i] = collect(*model.functions[i].body, calls_[i]);
    }
  }

  void check() {
    sizes_.assign(calls_.size(), kUnknown);
    for (std::size_t i = 0; i < calls_.size(); ++i) visit(i);
    std::map<std::size_t, std::int64_t> calls;
    const std::int64_t own = collect(*model_.graph, calls);
    if (total(own, calls) > kMaxExpandedNodes) {
      throw ModelError({.what = "its functions expand to more than " +
                                std::to_string(kMaxExpandedNodes) + " nodes",
                        .hint = "Export the model with fewer nested function calls."});
    }
  }

 private:
  static constexpr std::int64_t kUnknown = -1;
  static constexpr std::int64_t kOpen = -2;

  // Number of nodes that are not calls; `calls` receives how often each function is called.
  std::int64_t collect(const ir::Graph& graph, std::map<std::size_t, std::int64_t>& calls) const {
    std::int64_t own = 0;
    for_each_node(graph, [&](const ir::Node& node) {
      const auto found = index_.find(key_of(node));
      if (found == index_.end()) {
        ++own;
      } else {
        ++calls[found->second];
      }
    });
    return own;
  }

  std::int64_t total(std::int64_t own, const std::map<std::size_t, std::int64_t>& calls) const {
    constexpr std::int64_t kCap = kMaxExpandedNodes + 1;
    std::int64_t sum = own;
    for (const auto& [callee, count] : calls) {
      const std::int64_t size = std::max<std::int64_t>(sizes_[callee], 1);
      sum = count > kCap / size ? kCap : std::min(kCap, sum + count * size);
    }
    return std::min(sum, kCap);
  }

  void visit(std::size_t root) {
    std::vector<std::size_t> stack = {root};
    while (!stack.empty()) {
      const std::size_t i = stack.back();
      if (sizes_[i] >= 0) {
        stack.pop_back();
        continue;
      }
      sizes_[i] = kOpen;
      bool is_ready = true;
      for (const auto& [callee, count] : calls_[i]) {
        if (sizes_[callee] == kOpen) {
          throw ModelError({.what = "function '" + model_.functions[callee].name +
                                    "' calls itself, directly or through others",
                            .where = {.graph = model_.functions[i].name},
                            .hint = "Express the repetition with Loop or Scan."});
        }
        if (sizes_[callee] == kUnknown) {
          stack.push_back(callee);
          is_ready = false;
        }
      }
      if (!is_ready) continue;
      sizes_[i] = total(own_[i], calls_[i]);
      stack.pop_back();
    }
  }

  const ir::Model& model_;
  std::map<FunctionKey, std::size_t> index_;
  std::vector<std::map<std::size_t, std::int64_t>> calls_;
  std::vector<std::int64_t> own_;
  std::vector<std::int64_t> sizes_;
};

}  // namespace

const ir::Function* called_function(const ir::Model& model, const ir::Node& node) {
  if (model.functions.empty()) return nullptr;
  const FunctionKey key = key_of(node);
  const auto found = std::ranges::find_if(
      model.functions, [&key](const ir::Function& function) { return key_of(function) == key; });
  return found == model.functions.end() ? nullptr : &*found;
}

void check_model(const ir::Model& model) {
  if (model.ir_version < kOldestIrVersion || model.ir_version > onnx::IR_VERSION) {
    throw ModelError({.what = "IR version " + std::to_string(model.ir_version) + ", expected " +
                              std::to_string(kOldestIrVersion) + " to " +
                              std::to_string(int{onnx::IR_VERSION}),
                      .hint = "Export the model again, or use a newer onnxgrad."});
  }
  if (model.opset_imports.empty())
    throw ModelError({.what = "the model imports no opset",
                      .hint = "Import ai.onnx in the version that it was written for."});
  check_imports(model.opset_imports, "the model");
  check_domains(*model.graph, model.opset_imports, "the model");
  std::set<FunctionKey> seen;
  for (const ir::Function& function : model.functions) {
    const std::string owner = "function '" + function.name + "'";
    if (!seen.insert(key_of(function)).second) {
      throw ModelError({.what = owner + " is defined twice",
                        .hint = "Remove one of the two, or give it another name."});
    }
    const Imports& imports =
        function.opset_imports.empty() ? model.opset_imports : function.opset_imports;
    check_imports(imports, owner);
    check_domains(*function.body, imports, owner);
  }
  ExpansionCounter(model).check();
}

}  // namespace onnxgrad::onnx_io
