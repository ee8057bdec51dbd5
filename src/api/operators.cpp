#include "onnxgrad/operators.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <string_view>
#include <utility>

#include "api/model_impl.h"
#include "base/check.h"
#include "onnx/model_rules.h"
#include "onnx/operator_table.h"
#include "onnxgrad/option_error.h"
#include "train/tools/engine.h"

namespace onnxgrad {
namespace {

using onnx_io::OperatorFunction;
using Key = onnx_io::OperatorTable::Key;
using Functions = onnx_io::OperatorTable::Functions;

constexpr std::string_view kSeparator = "::";
constexpr std::string_view kGradientSuffix = "_grad";

std::string name_of(const Key& key) {
  return key.first.empty() ? key.second : key.first + std::string(kSeparator) + key.second;
}

Key key_of(const std::string& name) {
  const std::size_t place = name.rfind(kSeparator);
  if (place == std::string::npos) return {"", name};
  std::string domain = name.substr(0, place);
  if (domain == "ai.onnx") domain.clear();
  return {std::move(domain), name.substr(place + kSeparator.size())};
}

[[noreturn]] void refuse(const Key& key, const std::string& what, std::string hint) {
  throw OptionError({.what = fmt::format("operator '{}' {}", name_of(key), what),
                     .where = {.op_type = key.second},
                     .hint = std::move(hint)});
}

// The functions of a library, each a copy that later changes of the model cannot reach.
class Library {
 public:
  explicit Library(const Model& model) {
    auto copy = std::make_shared<ir::Model>(ir::clone(*model.impl().file.model));
    for (const ir::Function& function : copy->functions) {
      functions_.emplace(Key{function.domain, function.name},
                         std::shared_ptr<const ir::Function>(copy, &function));
    }
  }

  const auto& functions() const { return functions_; }

  std::shared_ptr<const ir::Function> get(const std::string& name) const {
    const auto found = functions_.find(key_of(name));
    if (found != functions_.end()) return found->second;
    std::vector<std::string> known;
    for (const auto& [key, function] : functions_) known.push_back(name_of(key));
    throw OptionError({.what = "the library has no function '" + name + "'",
                       .detail = "Functions: " + base::quote_list(known) + ".",
                       .hint = base::nearest_or(name, known)});
  }

 private:
  std::map<Key, std::shared_ptr<const ir::Function>> functions_;
};

// All functions: "<Name>_grad" as gradients where there is <Name>, the others as operators.
std::vector<OperatorSpec> all_of(const Library& library) {
  std::vector<OperatorSpec> specs;
  for (const auto& [key, function] : library.functions()) {
    const auto& [domain, name] = key;
    if (name.ends_with(kGradientSuffix)) {
      const Key owner{domain, name.substr(0, name.size() - kGradientSuffix.size())};
      if (library.functions().contains(owner)) continue;
    }
    const Key gradient{domain, name + std::string(kGradientSuffix)};
    specs.push_back({.name = name_of(key),
                     .body = name_of(key),
                     .gradient = library.functions().contains(gradient) ? name_of(gradient) : ""});
  }
  if (specs.empty()) {
    throw OptionError({.what = "the library has no functions",
                       .hint = "Give a model with local functions (FunctionProto)."});
  }
  return specs;
}

// Functions that no spec names are operators under their own names.
void add_helpers(const Library& library, std::vector<OperatorSpec>& specs) {
  std::set<Key> named;
  for (const OperatorSpec& spec : specs) {
    named.insert(key_of(spec.body));
    named.insert(key_of(spec.gradient));
  }
  for (const auto& [key, function] : library.functions()) {
    if (!named.contains(key)) specs.push_back({.name = name_of(key), .body = name_of(key)});
  }
}

bool is_built_in(const Key& key) {
  return train::builtin_ops().find(key.first, key.second) != nullptr ||
         onnx_io::arity_of(key).has_value();
}

void check_body(const Key& key) {
  if (is_built_in(key)) {
    refuse(key, "is one of ONNX",
           "Choose a domain of your own; register_gradient() gives an operator of ONNX another "
           "gradient.");
  }
  if (key.first.empty() || key.first == ir::kFunctionDomain || key.first == ir::kFusedDomain ||
      key.first == onnx_io::kReplacedDomain) {
    refuse(key, fmt::format("is in domain '{}', which is not yours", key.first),
           "Choose a domain of your own.");
  }
}

// A gradient is a function of a node's inputs, outputs and cotangents. What a subgraph reads of the
// graph around it is none of these: its gradient would silently be zero.
void check_no_subgraphs(const Key& key) {
  const opdef::OpDef* def = train::builtin_ops().find(key.first, key.second);
  const bool has_graphs =
      def != nullptr && std::ranges::any_of(def->attributes, [](const opdef::AttributeSpec& spec) {
        return spec.type == opdef::AttributeType::kGraph ||
               spec.type == opdef::AttributeType::kGraphs;
      });
  if (!has_graphs) return;
  refuse(key,
         "has subgraphs: what they read of the graph around them is no input of a gradient, and "
         "ONNX has no operator that is the derivative of a subgraph",
         "Register an operator with a gradient, and call that in the subgraph.");
}

// The number of inputs tells whether a gradient reads the outputs.
void check_arity(const Key& key, const ir::Function& gradient, const std::vector<int>& inputs,
                 const Functions& bodies) {
  check_no_subgraphs(key);
  std::optional<std::pair<std::size_t, std::size_t>> arity;
  if (const auto body = bodies.find(key); body != bodies.end()) {
    const ir::Graph& graph = *body->second.back().function->body;
    arity = std::pair(graph.inputs.size(), graph.outputs.size());
  } else {
    arity = onnx_io::arity_of(key);
  }
  if (inputs.size() != gradient.body->outputs.size()) {
    refuse(key,
           fmt::format("has a gradient with {} outputs, for {} inputs",
                       gradient.body->outputs.size(), inputs.size()),
           "Name an input for each output of the gradient.");
  }
  if (!arity) return;  // a model's function or variadic: checked when it is used
  const auto& [num_inputs, num_outputs] = *arity;
  const std::size_t given = gradient.body->inputs.size();
  if (given != num_inputs + num_outputs && given != num_inputs + 2 * num_outputs) {
    refuse(key,
           fmt::format("has a gradient with {} inputs, expected {}, or {} if it reads the outputs",
                       given, num_inputs + num_outputs, num_inputs + 2 * num_outputs),
           "Its inputs are those of the operator, its outputs if it reads them, then a cotangent "
           "for each output.");
  }
  for (const int input : inputs) {
    if (input >= 0 && static_cast<std::size_t>(input) < num_inputs) continue;
    refuse(key, fmt::format("has {} inputs, and a gradient for input {}", num_inputs, input),
           "Return gradients of inputs that there are, in their order.");
  }
}

void add(Functions& functions, const Key& key, OperatorFunction function, bool overwrite,
         std::string_view what) {
  std::vector<OperatorFunction>& entries = functions[key];
  if (!entries.empty() && !overwrite) {
    refuse(key, fmt::format("has a registered {} already", what),
           "Unregister it first, or pass overwrite=True.");
  }
  entries.push_back(std::move(function));
}

std::vector<int> inputs_of(const OperatorSpec& spec, const ir::Function& gradient) {
  if (!spec.gradient_inputs.empty()) return spec.gradient_inputs;
  std::vector<int> first(gradient.body->outputs.size());
  std::iota(first.begin(), first.end(), 0);
  return first;
}

}  // namespace

std::int64_t register_operators(const Model& library, const std::vector<OperatorSpec>& specs,
                                bool overwrite) {
  static std::int64_t last_id = 0;  // guarded by the lock of change_operators
  const Library functions(library);
  std::vector<OperatorSpec> wanted = specs.empty() ? all_of(functions) : specs;
  add_helpers(functions, wanted);
  std::int64_t id = 0;
  onnx_io::change_operators([&](Functions& bodies, Functions& gradients) {
    id = ++last_id;
    for (const OperatorSpec& spec : wanted) {
      if (spec.body.empty()) continue;
      const Key key = key_of(spec.name);
      check_body(key);
      add(bodies, key, {.id = id, .function = functions.get(spec.body)}, overwrite, "body");
    }
    for (const OperatorSpec& spec : wanted) {
      if (spec.gradient.empty()) continue;
      const Key key = key_of(spec.name);
      auto gradient = functions.get(spec.gradient);
      std::vector<int> inputs = inputs_of(spec, *gradient);
      check_arity(key, *gradient, inputs, bodies);
      add(gradients, key, {.id = id, .function = std::move(gradient), .inputs = std::move(inputs)},
          overwrite, "gradient");
    }
    onnx_io::check_expansion(onnx_io::OperatorTable(bodies, gradients));
  });
  return id;
}

void unregister_operators(std::int64_t registration) {
  onnx_io::change_operators([&](Functions& bodies, Functions& gradients) {
    for (Functions* functions : {&bodies, &gradients}) {
      for (auto& [key, entries] : *functions) {
        std::erase_if(entries, [&](const OperatorFunction& f) { return f.id == registration; });
      }
      std::erase_if(*functions, [](const auto& entry) { return entry.second.empty(); });
    }
  });
}

std::vector<RegisteredOperator> registered_operators() {
  const auto table = onnx_io::current_operators();
  std::map<Key, RegisteredOperator> found;
  for (const auto& [key, entries] : table->bodies()) found[key].has_body = true;
  for (const auto& [key, entries] : table->gradients()) found[key].has_gradient = true;
  std::vector<RegisteredOperator> result;
  for (auto& [key, info] : found) {
    info.name = name_of(key);
    result.push_back(std::move(info));
  }
  return result;
}

}  // namespace onnxgrad
