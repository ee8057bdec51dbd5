#include "ops/testing/absent_cases.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "ir/builder.h"
#include "onnx/testing/schema_info.h"

namespace onnxgrad::ops_test {
namespace {

using onnx_io::SchemaInfo;
using onnx_io::SchemaParameter;

constexpr std::size_t kMaxListPosition = 2;  // index in the lists of variadic operators

// Optional inputs that the operator's other inputs or attributes require in every case that has
// them. The errors of such nodes are tested by their own error cases.
const std::set<std::pair<std::string_view, std::string_view>> kNeeded = {
    {"Loop", "M"},                              // else it is endless; its own cases omit it
    {"Optional", "input"}, {"Pad", "axes"},     // pads of some axes only
    {"Resize", "roi"},                          // a crop reads it
    {"Resize", "scales"},                       // one of scales and sizes
    {"Resize", "sizes"},   {"Split", "split"},  // else num_outputs is wanted
};

// Operators with an attribute that counts their outputs, absent ones included.
const std::set<std::string_view> kCountedOutputs = {"BatchNormalization"};

// Statement of a case's body, `outputs = op_type <...> (inputs)`, as positions in the text.
struct Call {
  std::string domain;
  std::string op_type;
  std::string label;  // the node's name, if it has one
  std::size_t begin = 0;
  std::size_t equals = 0;
  std::size_t open = 0;
  std::size_t close = 0;
  std::vector<std::string> inputs;
  std::vector<std::string> outputs;
};

std::string trimmed(std::string_view text) {
  const auto is_space = [](char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; };
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return std::string(text);
}

// Returns the names between commas; "" for absent ones.
std::vector<std::string> names_in(std::string_view text) {
  std::vector<std::string> names;
  if (trimmed(text).empty()) return names;
  for (std::size_t from = 0; from <= text.size();) {
    const std::size_t to = std::min(text.find(',', from), text.size());
    names.push_back(trimmed(text.substr(from, to - from)));
    from = to + 1;
  }
  return names;
}

std::vector<Call> calls_of(const OpCase& op_case) {
  const std::string plain = mask_attributes(op_case.model);
  std::vector<Call> calls;
  for (std::size_t position = 0;;) {
    Call call;
    call.open = plain.find('(', position);
    call.close = plain.find(')', position);
    call.equals = plain.find('=', position);
    if (call.open == std::string::npos || call.close == std::string::npos) return calls;
    const std::string head = plain.substr(position, call.equals - position);
    call.begin = position + std::min(head.find_first_not_of(" \n\t"), head.size());
    const std::size_t label = op_case.model.find('[', position);
    if (label < call.begin) {
      const std::size_t end = op_case.model.find(']', label);
      call.label = op_case.model.substr(label + 1, end - label - 1);
    }
    call.outputs = names_in(std::string_view(plain).substr(position, call.equals - position));
    call.inputs =
        names_in(std::string_view(plain).substr(call.open + 1, call.close - call.open - 1));
    const std::string name = trimmed(plain.substr(call.equals + 1, call.open - call.equals - 1));
    const std::size_t dot = name.rfind('.');
    call.domain = dot == std::string::npos ? "" : name.substr(0, dot);
    call.op_type = dot == std::string::npos ? name : name.substr(dot + 1);
    position = call.close + 1;
    calls.push_back(std::move(call));
  }
}

std::optional<SchemaInfo> schema_of(const Call& call) {
  return onnx_io::schema_info(call.domain, call.op_type,
                              call.domain.empty() ? ir::kInternalOpset : 0);
}

// Returns the parameter at position `i`; nullptr if there are fewer.
const SchemaParameter* parameter_at(const std::vector<SchemaParameter>& parameters, std::size_t i) {
  if (i < parameters.size()) return &parameters[i];
  const bool is_list =
      !parameters.empty() && parameters.back().kind == SchemaParameter::Kind::kVariadic;
  return is_list ? &parameters.back() : nullptr;
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) {
    text += (text.empty() ? "" : ", ") + (name.empty() ? "\"\"" : name);
  }
  return text;
}

// Returns the body with other names of inputs and outputs in one call.
std::string with_names(const OpCase& op_case, const Call& call,
                       const std::vector<std::string>& inputs,
                       const std::vector<std::string>& outputs, std::string_view label = "") {
  const std::string& body = op_case.model;
  return fmt::format("{}{}{} {}{}{}", body.substr(0, call.begin), label, joined(outputs),
                     body.substr(call.equals, call.open + 1 - call.equals), joined(inputs),
                     body.substr(call.close));
}

bool reads(const std::string& body, const std::string& name) {
  const auto is_part = [&](std::size_t at) {
    return at < body.size() &&
           (std::isalnum(static_cast<unsigned char>(body[at])) != 0 || body[at] == '_');
  };
  for (std::size_t at = body.find(name); at != std::string::npos; at = body.find(name, at + 1)) {
    if (!(at > 0 && is_part(at - 1)) && !is_part(at + name.size())) return true;
  }
  return false;
}

// Returns the case with another body, without inputs that are no longer read. nullopt if no input
// is left to differentiate by.
std::optional<OpCase> with_body(const OpCase& op_case, std::string name, std::string body) {
  const std::vector<std::string> names = input_names(op_case);
  const std::vector<std::string> outputs = output_names(op_case);
  OpCase changed = op_case;
  changed.name = "absent." + std::move(name);
  changed.model = std::move(body);
  changed.inputs.clear();
  changed.expected.clear();
  changed.outputs.clear();
  bool has_wrt = false;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (!reads(changed.model, names[i])) {
      std::erase(changed.wrt, names[i]);
      continue;
    }
    changed.inputs.push_back(op_case.inputs[i].named(names[i]));
    has_wrt = has_wrt ||
              (!op_case.inputs[i].is_constant && op_case.inputs[i].dtype == DataType::kUndefined);
  }
  for (const std::string& output : outputs) {
    if (reads(changed.model, output)) changed.outputs.push_back(output);
  }
  if (changed.outputs.empty() || (changed.no_gradient.empty() && !has_wrt)) return std::nullopt;
  return changed;
}

// Collects one case per key.
class Collection {
 public:
  bool has(const std::string& key) const { return seen_.contains(key); }
  void add(const std::string& key, std::optional<OpCase> made) {
    if (made && seen_.insert(key).second) cases.push_back(std::move(*made));
  }
  std::vector<OpCase> cases;

 private:
  std::set<std::string> seen_;
};

// Adds cases with "" in place of input `i`, and of output `i`.
void drop_each(const OpCase& op_case, const Call& call, const SchemaInfo& schema,
               Collection& made) {
  using Kind = SchemaParameter::Kind;
  for (std::size_t i = 0; i < call.inputs.size(); ++i) {
    const SchemaParameter* parameter = parameter_at(schema.inputs, i);
    const std::string key = fmt::format("{}_input_{}", call.op_type, i);
    if (parameter == nullptr || parameter->kind != Kind::kOptional || call.inputs[i].empty() ||
        made.has(key) || kNeeded.contains({call.op_type, parameter->name})) {
      continue;
    }
    std::vector<std::string> inputs = call.inputs;
    inputs[i].clear();
    made.add(key, with_body(op_case, key, with_names(op_case, call, inputs, call.outputs)));
  }
  for (std::size_t i = 0; i < call.outputs.size() && call.outputs.size() > 1; ++i) {
    const SchemaParameter* parameter = parameter_at(schema.outputs, i);
    const std::string key = fmt::format("{}_output_{}", call.op_type, i);
    if (parameter == nullptr || parameter->kind == Kind::kRequired || call.outputs[i].empty() ||
        made.has(key) || i > kMaxListPosition) {
      continue;
    }
    std::vector<std::string> outputs = call.outputs;
    outputs[i].clear();
    std::string body = with_names(op_case, call, call.inputs, outputs);
    if (reads(body, call.outputs[i])) continue;
    made.add(key, with_body(op_case, key, std::move(body)));
  }
}

// Adds cases with "" for all optional inputs and outputs after the listed ones.
void name_the_rest(const OpCase& op_case, const Call& call, const SchemaInfo& schema,
                   Collection& made) {
  const auto extended = [](std::vector<std::string> names,
                           const std::vector<SchemaParameter>& parameters) {
    for (std::size_t i = names.size(); i < parameters.size(); ++i) {
      if (parameters[i].kind == SchemaParameter::Kind::kOptional) names.emplace_back();
    }
    return names;
  };
  const std::vector<std::string> inputs = extended(call.inputs, schema.inputs);
  const std::vector<std::string> outputs = kCountedOutputs.contains(call.op_type)
                                               ? call.outputs
                                               : extended(call.outputs, schema.outputs);
  if (inputs == call.inputs && outputs == call.outputs) return;
  const std::string key = call.op_type + "_rest";
  if (made.has(key)) return;
  made.add(key, with_body(op_case, key, with_names(op_case, call, inputs, outputs)));
}

}  // namespace

std::vector<OpCase> absent_cases(const std::vector<OpCase>& cases) {
  Collection made;
  for (const OpCase& op_case : cases) {
    if (!op_case.no_oracle.empty()) continue;
    for (const Call& call : calls_of(op_case)) {
      const auto schema = schema_of(call);
      if (!schema) continue;
      drop_each(op_case, call, *schema, made);
      name_the_rest(op_case, call, *schema, made);
    }
  }
  return std::move(made.cases);
}

std::vector<ErrorCase> absent_error_cases(const std::vector<OpCase>& cases) {
  using Kind = SchemaParameter::Kind;
  std::vector<ErrorCase> made;
  std::set<std::string> seen;
  const auto add = [&](const OpCase& op_case, const Call& call, const std::string& key,
                       std::string body, const std::string& parameter) {
    if (!seen.insert(key).second) return;
    ErrorCase error{.name = "absent." + key,
                    .model = std::move(body),
                    .inputs = {},
                    .error = "ModelError",
                    .fragments = {call.label.empty() ? "absent_node" : call.label, parameter},
                    .domains = op_case.domains};
    const std::vector<std::string> names = input_names(op_case);
    for (std::size_t i = 0; i < names.size(); ++i) {
      if (reads(error.model, names[i])) error.inputs.push_back(op_case.inputs[i].named(names[i]));
    }
    made.push_back(std::move(error));
  };
  for (const OpCase& op_case : cases) {
    if (!op_case.functions.empty()) continue;
    for (const Call& call : calls_of(op_case)) {
      const auto schema = schema_of(call);
      if (!schema) continue;
      const std::string label = call.label.empty() ? "[absent_node] " : "";
      for (std::size_t i = 0; i < call.inputs.size() && i <= kMaxListPosition + 2; ++i) {
        const SchemaParameter* parameter = parameter_at(schema->inputs, i);
        if (parameter == nullptr || parameter->kind == Kind::kOptional) continue;
        std::vector<std::string> inputs = call.inputs;
        inputs[i].clear();
        add(op_case, call, fmt::format("{}_input_{}", call.op_type, i),
            with_names(op_case, call, inputs, call.outputs, label), parameter->name);
      }
      for (std::size_t i = 0; i < call.outputs.size(); ++i) {
        const SchemaParameter* parameter = parameter_at(schema->outputs, i);
        if (parameter == nullptr || parameter->kind != Kind::kRequired) continue;
        std::vector<std::string> outputs = call.outputs;
        outputs[i].clear();
        std::string body = with_names(op_case, call, call.inputs, outputs, label);
        // The graph needs an output that exists.
        body += "\nother_output = Constant <value_float = 1.0> ()";
        if (reads(body, call.outputs[i])) continue;
        add(op_case, call, fmt::format("{}_output_{}", call.op_type, i), std::move(body),
            parameter->name);
      }
    }
  }
  return made;
}

}  // namespace onnxgrad::ops_test
