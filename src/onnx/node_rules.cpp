#include "onnx/node_rules.h"

#include <onnx/defs/schema.h>
#include <onnx/onnx_pb.h>

#include <cstdint>
#include <exception>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "ir/graph.h"
#include "onnx/exporter.h"
#include "onnx/functions.h"
#include "onnx/importer.h"
#include "onnx/protos.h"
#include "onnxgrad/dims.h"
#include "onnxgrad/error.h"
#include "opdef/attribute_bounds.h"

namespace onnxgrad::onnx_io {

namespace {

using opdef::AttributeSpec;
using opdef::AttributeType;

constexpr std::int64_t kMostHeads = 1 << 16;
constexpr std::int64_t kMostElements32 = std::numeric_limits<std::int32_t>::max();
constexpr auto kMostAxes64 = static_cast<std::int64_t>(Dims::kMaxRank);
constexpr std::int64_t kLastType = 16;  // bfloat16

AttributeSpec bounded_int(std::string_view name, std::int64_t min, std::int64_t max) {
  return {.name = name, .type = AttributeType::kInt, .min = min, .max = max};
}

AttributeSpec bounded_float(std::string_view name, double min) {
  return {.name = name,
          .type = AttributeType::kFloat,
          .min_float = min,
          .max_float = static_cast<double>(std::numeric_limits<float>::max())};
}

const std::map<std::string_view, std::vector<AttributeSpec>>& bound_rows() {
  constexpr auto kSmallest = static_cast<double>(std::numeric_limits<float>::denorm_min());
  static const std::map<std::string_view, std::vector<AttributeSpec>> rows = {
      {"Attention",
       {bounded_int("is_causal", 0, 1), bounded_int("kv_num_heads", 1, kMostHeads),
        bounded_int("q_num_heads", 1, kMostHeads), bounded_int("qk_matmul_output_mode", 0, 3),
        bounded_float("scale", kSmallest), bounded_float("softcap", 0),
        bounded_int("softmax_precision", 1, kLastType)}},
      {"GroupNormalization", {bounded_int("num_groups", 1, kMostElements32)}},
      {"LinearAttention",
       {bounded_int("chunk_size", 1, kMostElements32), bounded_int("kv_num_heads", 1, kMostHeads),
        bounded_int("q_num_heads", 1, kMostHeads)}},
      {"MeanVarianceNormalization",
       {{.name = "axes",
         .type = AttributeType::kInts,
         .min = -kMostAxes64,
         .max = kMostAxes64 - 1,
         .min_count = 1,
         .max_count = Dims::kMaxRank}}},
      {"RMSNormalization",
       {bounded_int("axis", -kMostAxes64, kMostAxes64 - 1),
        bounded_int("stash_type", 1, kLastType)}},
      {"RotaryEmbedding",
       {bounded_int("interleaved", 0, 1), bounded_int("num_heads", 0, kMostHeads),
        bounded_int("rotary_embedding_dim", 0, kMostElements32)}},
  };
  return rows;
}

// Checks the bounds of attributes of operators that have no record in the registry, because their
// ONNX function bodies are run. Throws: ModelError naming the node, the attribute, its value and
// its bounds.
void check_body_bounds(const ir::Node& node) {
  if (!is_standard_domain(node.domain)) return;
  const auto found = bound_rows().find(node.op_type);
  if (found == bound_rows().end()) return;
  for (const AttributeSpec& spec : found->second) opdef::check_attribute(node, spec);
}

// Advice about an input of a type that `parameter` does not accept.
std::string hint_type(const ir::Node& node, const Parameter& parameter) {
  if (node.op_type == "ZipMap") {  // exporters of float64 models write it nevertheless
    return "ONNX has no ZipMap of this type, and onnxruntime refuses it as well. Export the model "
           "with zipmap=False or zipmap='columns', or with float32 inputs.";
  }
  std::vector<std::string> types;
  for (int i = 1; i < 32; ++i) {
    const auto dtype = static_cast<DataType>(i);
    if (parameter.takes(dtype)) types.emplace_back(dtype_name(dtype));
  }
  if (types.empty()) return "Export the model again: the operator accepts no tensor there.";
  return "It accepts " + base::quote_list(types) + ": put a Cast before it.";
}

// Optional outputs and those of a list may be absent; the others need not be read.
void check_outputs_are_named(const ir::Node& node, const Schema& schema) {
  for (std::size_t i = 0; i < node.outputs.size(); ++i) {
    const Parameter& parameter = *schema.output(i);
    if (node.outputs[i] != nullptr || !parameter.is_required) continue;
    throw ModelError({.what = "output " + parameter.name + " has no name",
                      .hint = "Name it, even if it is unused, or export the model again."});
  }
}

}  // namespace

void check_call(const ir::Node& node, const Schema& schema) {
  const auto check_count = [](const char* what, std::size_t given, int min, int max) {
    if (given >= static_cast<std::size_t>(min) && given <= static_cast<std::size_t>(max)) return;
    const std::string expected = min == max ? std::to_string(min)
                                 : max == std::numeric_limits<int>::max()
                                     ? "at least " + std::to_string(min)
                                     : std::to_string(min) + " to " + std::to_string(max);
    throw ModelError({.what = std::to_string(given) + " " + what + ", expected " + expected,
                      .hint = "Export the model again, or fix the node."});
  };
  check_count("inputs", node.inputs.size(), schema.op().min_input(), schema.op().max_input());
  check_count("outputs", node.outputs.size(), schema.op().min_output(), schema.op().max_output());
  check_outputs_are_named(node, schema);
  std::vector<DataType> bound(schema.num_constraints(), DataType::kUndefined);
  for (std::size_t i = 0; i < node.inputs.size(); ++i) {
    const Parameter& parameter = *schema.input(i);
    const ir::Value* input = node.inputs[i];
    const auto fail = [&](const std::string& what, Hint hint) {
      throw ModelError({.what = "input " + parameter.name + what, .hint = std::move(hint)});
    };
    const auto given = [&] { return " '" + input->name + "' is " + input->type.to_string(); };
    if (input == nullptr) {
      if (parameter.is_required) fail(" is missing", "Give it a value, or export the model again.");
      // A list has no gaps: the meaning of an absent element is not specified.
      if (parameter.is_variadic) {
        fail(" has no value at position " + std::to_string(i),
             "Remove the empty name from the node's inputs, or name a value there.");
      }
      continue;
    }
    const ir::Type& type = input->type;
    if (type.kind == ir::Type::Kind::kUnknown) continue;
    if (!type.is_tensor()) {
      if (!parameter.takes_others) {
        fail(given() + ", expected a tensor", "Extract the tensor from the sequence or optional.");
      }
      continue;
    }
    if (type.dtype == DataType::kUndefined) continue;
    if (!parameter.takes(type.dtype)) {
      fail(given() + ", a type that the operator does not accept there",
           hint_type(node, parameter));
    }
    if (parameter.constraint < 0) continue;
    DataType& same = bound[static_cast<std::size_t>(parameter.constraint)];
    if (same == DataType::kUndefined) same = type.dtype;
    if (same != type.dtype) {
      fail(given() + ", expected " + std::string(dtype_name(same)) + " like the inputs before it",
           "Put a Cast before it, or export the model in one type.");
    }
  }
}

namespace {

[[noreturn]] void fail_attribute(const ir::Node& node, const std::string& name, std::string what,
                                 Hint hint) {
  throw ModelError({.what = "attribute '" + name + "' " + std::move(what),
                    .where = {.graph = node.graph == nullptr ? "" : node.graph->name,
                              .node = node.name,
                              .op_type = node.op_type},
                    .hint = std::move(hint)});
}

const char* attribute_type_name(int type) {
  using onnx::AttributeProto;
  switch (type) {
    case AttributeProto::FLOAT:
      return "float";
    case AttributeProto::INT:
      return "int";
    case AttributeProto::STRING:
      return "string";
    case AttributeProto::TENSOR:
      return "tensor";
    case AttributeProto::GRAPH:
      return "graph";
    case AttributeProto::FLOATS:
      return "floats";
    case AttributeProto::INTS:
      return "ints";
    case AttributeProto::STRINGS:
      return "strings";
    case AttributeProto::TENSORS:
      return "tensors";
    case AttributeProto::GRAPHS:
      return "graphs";
    default:
      return "another type";
  }
}

}  // namespace

void check_attribute_types(const ir::Node& node, const Schema& schema) {
  const auto& known = schema.op().attributes();
  for (const ir::Attribute& attribute : node.attributes) {
    const auto found = known.find(attribute.name);
    if (found == known.end()) {
      std::vector<std::string> names;
      for (const auto& [name, unused] : known) names.push_back(name);
      fail_attribute(node, attribute.name, "is unknown",
                     base::nearest_or(attribute.name, names,
                                      "Remove it, or export the model with another opset."));
    }
    const int given = attribute_type(attribute.value);
    if (given != found->second.type) {
      fail_attribute(node, attribute.name,
                     std::string("is of type ") + attribute_type_name(given) + ", expected " +
                         attribute_type_name(found->second.type),
                     "Give it in that type, or export the model again.");
    }
  }
  for (const auto& [name, expected] : known) {
    if (expected.required && node.find_attribute(name) == nullptr) {
      fail_attribute(node, name, "is missing", "Give it a value, or export the model again.");
    }
  }
}

namespace {

// A term of an equation: labels a-z and A-Z, and the ellipsis at most once. Returns its labels.
std::string labels_of_term(const ir::Node& node, std::string_view equation, std::string_view term) {
  constexpr std::string_view kEllipsis = "...";
  const auto fail = [&](const std::string& what) {
    fail_attribute(node, "equation", "is '" + std::string(equation.substr(0, 80)) + "': " + what,
                   "Write terms of letters like 'ij,jk->ik', with '...' at most once in each.");
  };
  std::string labels(term);
  const std::size_t ellipsis = labels.find(kEllipsis);
  if (ellipsis != std::string::npos) labels.erase(ellipsis, kEllipsis.size());
  for (const char c : labels) {
    const bool is_label = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (!is_label) fail("a term cannot contain '" + std::string(1, c) + "'");
  }
  return labels;
}

// inputs[,inputs...][->output]; ONNX's own parser does not terminate on other characters.
void check_equation(const ir::Node& node, std::string equation) {
  std::erase(equation, ' ');
  if (equation.empty()) return;
  const std::string_view whole = equation;
  const std::size_t arrow = whole.find("->");
  std::string_view left = whole.substr(0, arrow);
  std::string known;
  std::size_t num_terms = 1;
  for (; left.find(',') != std::string_view::npos; ++num_terms) {
    known += labels_of_term(node, whole, left.substr(0, left.find(',')));
    left.remove_prefix(left.find(',') + 1);
  }
  known += labels_of_term(node, whole, left);
  if (num_terms != node.inputs.size()) {
    fail_attribute(node, "equation",
                   "has " + std::to_string(num_terms) + " terms, but the node has " +
                       std::to_string(node.inputs.size()) + " inputs",
                   "Write one term for each input, separated by commas.");
  }
  if (arrow == std::string_view::npos) return;
  std::string seen;
  for (const char label : labels_of_term(node, whole, whole.substr(arrow + 2))) {
    if (known.find(label) != std::string::npos && seen.find(label) == std::string::npos) {
      seen += label;
      continue;
    }
    fail_attribute(node, "equation",
                   std::string("has the label '") + label + "' in its output " +
                       (seen.find(label) == std::string::npos ? "only" : "twice"),
                   "Name each label of the output once, and in one of the inputs' terms.");
  }
}

}  // namespace

void check_attribute_values(const ir::Node& node) {
  check_body_bounds(node);
  if (node.op_type != "Einsum" || !is_standard_domain(node.domain)) return;
  const ir::AttributeValue* equation = node.find_attribute("equation");
  const auto* text = equation == nullptr ? nullptr : std::get_if<std::string>(equation);
  if (text != nullptr) check_equation(node, *text);
}

std::optional<ir::Function> schema_function(const ir::Node& node, std::int64_t opset) {
  const Schema* schema = find_schema(node.domain, node.op_type, opset);
  if (schema == nullptr) return std::nullopt;
  check_attribute_values(node);
  const onnx::OpSchema& op = schema->op();
  const int version = static_cast<int>(opset);
  onnx::FunctionProto proto;
  try {
    if (op.HasFunction()) {
      const onnx::FunctionProto* fixed = op.GetFunction(version);
      if (fixed != nullptr) proto = *fixed;
    } else if (op.HasContextDependentFunction()) {
      onnx::NodeProto call;
      if (!call.ParseFromString(export_node(node))) return std::nullopt;
      std::vector<onnx::TypeProto> types(node.inputs.size());
      for (std::size_t i = 0; i < node.inputs.size(); ++i) {
        if (node.inputs[i] != nullptr) to_proto(node.inputs[i]->type, types[i]);
      }
      const onnx::FunctionBodyBuildContextImpl context(call, types);
      if (!op.BuildContextDependentFunction(context, proto, version)) return std::nullopt;
    }
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw ModelError(
        {.what = std::string("its function body cannot be built: ") + error.what(),
         .where = {.node = node.name, .op_type = node.op_type},
         .hint = "Declare the types of its inputs, or export it as simpler operators."});
  }
  if (proto.node_size() == 0) return std::nullopt;
  const auto bytes = std::make_shared<const std::string>(proto.SerializeAsString());
  ir::Function function = Importer(TensorDecoder(bytes, "")).import_function(*bytes, true);
  // The body may refer to attributes that have a default in the schema.
  for (const auto& [name, attribute] : op.attributes()) {
    if (attribute.default_value.type() == onnx::AttributeProto::UNDEFINED) continue;
    std::erase(function.attribute_names, name);
    const auto default_bytes =
        std::make_shared<const std::string>(attribute.default_value.SerializeAsString());
    ir::Attribute value =
        Importer(TensorDecoder(default_bytes, "")).import_attribute(*default_bytes);
    value.name = name;
    const auto is_same = [&name = name](const ir::Attribute& a) { return a.name == name; };
    if (std::ranges::none_of(function.attribute_defaults, is_same)) {
      function.attribute_defaults.push_back(std::move(value));
    }
  }
  return function;
}

}  // namespace onnxgrad::onnx_io
