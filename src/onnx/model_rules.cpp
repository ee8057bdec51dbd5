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
#include "ir/builder.h"
#include "onnx/functions.h"
#include "onnx/operator_table.h"
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

// Counts the nodes of functions with all calls expanded, without recursion: those of a model, which
// come first, and those of registered operators. A function is read when it is first counted.
class ExpansionCounter {
 public:
  ExpansionCounter(const ir::Model* model, const OperatorTable* table) : table_(table) {
    if (model == nullptr) return;
    for (const ir::Function& function : model->functions) {
      own_functions_.emplace(key_of(function), &function);
    }
  }

  void check(const ir::Function& function) {
    count(function);
    check_total(sizes_.at(&function));
  }

  void check(const ir::Graph& graph) {
    const Calls calls = collect(graph);
    for (const auto& [callee, times] : calls.callees) count(*callee);
    check_total(total(calls));
  }

  // Throws if a function calls itself. Those that nothing calls may be of any size.
  void count(const ir::Function& root) {
    std::vector<const ir::Function*> stack = {&root};
    while (!stack.empty()) {
      const ir::Function* function = stack.back();
      const auto [known, is_new] = sizes_.emplace(function, kOpen);
      if (known->second >= 0) {
        stack.pop_back();
        continue;
      }
      if (is_new) calls_.emplace(function, collect(*function->body));
      const Calls& calls = calls_.at(function);
      bool is_ready = true;
      for (const auto& [callee, times] : calls.callees) {
        const auto size = sizes_.find(callee);
        if (size != sizes_.end() && size->second == kOpen) {
          throw ModelError(
              {.what = "function '" + callee->name + "' calls itself, directly or through others",
               .where = {.graph = function->name},
               .hint = "Express the repetition with Loop or Scan."});
        }
        if (size != sizes_.end()) continue;
        stack.push_back(callee);
        is_ready = false;
      }
      if (!is_ready) continue;
      sizes_[function] = total(calls);
      calls_.erase(function);
      stack.pop_back();
    }
  }

 private:
  // The nodes that are no calls, and how often each function is called.
  struct Calls {
    std::int64_t own = 0;
    std::map<const ir::Function*, std::int64_t> callees;
  };

  static constexpr std::int64_t kOpen = -1;

  static void check_total(std::int64_t total) {
    if (total <= kMaxExpandedNodes) return;
    throw ModelError({.what = "its functions expand to more than " +
                              std::to_string(kMaxExpandedNodes) + " nodes",
                      .hint = "Export the model with fewer nested function calls."});
  }

  const ir::Function* callee(const ir::Node& node) const {
    const auto found = own_functions_.find(key_of(node));
    if (found != own_functions_.end()) return found->second;
    return table_ == nullptr || table_->is_empty() ? nullptr : table_->body_of(node);
  }

  Calls collect(const ir::Graph& graph) const {
    Calls calls;
    for_each_node(graph, [&](const ir::Node& node) {
      if (const ir::Function* function = callee(node)) {
        ++calls.callees[function];
      } else {
        ++calls.own;
      }
    });
    return calls;
  }

  std::int64_t total(const Calls& calls) const {
    constexpr std::int64_t kCap = kMaxExpandedNodes + 1;
    std::int64_t sum = calls.own;
    for (const auto& [callee, times] : calls.callees) {
      const std::int64_t size = std::max<std::int64_t>(sizes_.at(callee), 1);
      sum = times > kCap / size ? kCap : std::min(kCap, sum + times * size);
    }
    return std::min(sum, kCap);
  }

  const OperatorTable* table_;
  std::map<FunctionKey, const ir::Function*> own_functions_;
  // Calls of functions that are being counted.
  std::unordered_map<const ir::Function*, Calls> calls_;
  std::unordered_map<const ir::Function*, std::int64_t> sizes_;
};

}  // namespace

const ir::Function* called_function(const ir::Model& model, const ir::Node& node) {
  if (model.functions.empty()) return nullptr;
  const FunctionKey key = key_of(node);
  const auto found = std::ranges::find_if(
      model.functions, [&key](const ir::Function& function) { return key_of(function) == key; });
  return found == model.functions.end() ? nullptr : &*found;
}

void add_known_imports(ir::Model& model) {
  if (model.opset_imports.empty()) return;  // refused
  const std::pair<std::string, std::int64_t> known[] = {
      {"", ir::kInternalOpset}, {"ai.onnx.ml", newest_opset("ai.onnx.ml")}, {"com.microsoft", 1}};
  for (const auto& import : known) {
    if (imports_domain(model.opset_imports, import.first)) continue;
    bool is_used = false;
    for_each_node(*model.graph, [&](const ir::Node& node) {
      is_used = is_used || canonical(node.domain) == import.first;
    });
    if (is_used) model.opset_imports.push_back(import);
  }
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
  ExpansionCounter counter(&model, nullptr);
  for (const ir::Function& function : model.functions) counter.count(function);
  counter.check(*model.graph);
}

void check_expansion(const ir::Model& model, const OperatorTable& table) {
  if (!table.is_empty()) ExpansionCounter(&model, &table).check(*model.graph);
}

void check_expansion(const OperatorTable& table) {
  ExpansionCounter counter(nullptr, &table);
  for (const auto* functions : {&table.bodies(), &table.gradients()}) {
    for (const auto& [key, entries] : *functions) {
      if (!entries.empty()) counter.check(*entries.back().function);
    }
  }
}

}  // namespace onnxgrad::onnx_io
