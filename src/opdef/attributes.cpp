#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "base/check.h"
#include "opdef/attribute_bounds.h"
#include "opdef/registry.h"

namespace onnxgrad::opdef {
namespace {

constexpr const char* kTypeNames[] = {"int",    "float",   "string",  "tensor", "graph", "ints",
                                      "floats", "strings", "tensors", "graphs", "other"};

AttributeType type_of(const ir::AttributeValue& value) {
  // In the order of ir::AttributeValue's alternatives; references are resolved before this check.
  constexpr AttributeType kTypes[] = {
      AttributeType::kInt,    AttributeType::kFloat,   AttributeType::kString,
      AttributeType::kTensor, AttributeType::kGraph,   AttributeType::kInts,
      AttributeType::kFloats, AttributeType::kStrings, AttributeType::kTensors,
      AttributeType::kGraphs, AttributeType::kOther,   AttributeType::kOther};
  static_assert(std::size(kTypes) == std::variant_size_v<ir::AttributeVariant>);
  return kTypes[value.index()];
}

class Checker {
 public:
  Checker(const ir::Node& node, const AttributeSpec& spec) : node_(node), spec_(spec) {}

  void check(const ir::AttributeValue& value) const {
    if (std::holds_alternative<ir::AttributeRef>(value)) return;  // checked at the call
    const AttributeType given = type_of(value);
    if (given != spec_.type && spec_.type != AttributeType::kOther) {
      fail(fmt::format("is of type {}, expected {}", kTypeNames[static_cast<int>(given)],
                       kTypeNames[static_cast<int>(spec_.type)]),
           "Give it in that type, or export the model again.");
    }
    if (const auto* i = std::get_if<std::int64_t>(&value)) check_int(*i);
    if (const auto* f = std::get_if<float>(&value)) check_float(*f);
    if (const auto* s = std::get_if<std::string>(&value)) check_string(*s);
    if (const auto* v = std::get_if<std::vector<std::int64_t>>(&value)) {
      check_count(v->size());
      for (const std::int64_t i : *v) check_int(i);
    }
    if (const auto* v = std::get_if<std::vector<float>>(&value)) {
      check_count(v->size());
      for (const float f : *v) check_float(f);
    }
    if (const auto* v = std::get_if<std::vector<std::string>>(&value)) {
      check_count(v->size());
      for (const std::string& s : *v) check_string(s);
    }
  }

 private:
  void check_int(std::int64_t value) const {
    if (value >= spec_.min && value <= spec_.max) return;
    fail(fmt::format("is {}, expected {} to {}", value, spec_.min, spec_.max), kInRange);
  }
  void check_float(float value) const {
    const double wide = value;
    if (wide >= spec_.min_float && wide <= spec_.max_float) return;
    if (std::isnan(wide) && std::isinf(spec_.min_float) && std::isinf(spec_.max_float)) return;
    fail(fmt::format("is {}, expected {} to {}", wide, spec_.min_float, spec_.max_float), kInRange);
  }
  void check_string(const std::string& value) const {
    if (spec_.choices.empty() || std::ranges::find(spec_.choices, value) != spec_.choices.end()) {
      return;
    }
    fail(fmt::format("is '{}', expected one of {}", value.substr(0, 80),
                     fmt::join(spec_.choices, ", ")),
         "Use one of them, or export the model again.");
  }
  void check_count(std::size_t count) const {
    if (count >= spec_.min_count && count <= spec_.max_count) return;
    fail(fmt::format("has {} elements, expected {} to {}", count, spec_.min_count, spec_.max_count),
         "Give it this many, or export the model again.");
  }
  [[noreturn]] void fail(const std::string& what, Hint hint) const {
    throw ModelError({.what = fmt::format("attribute '{}' {}", spec_.name, what),
                      .where = {.node = node_.name, .op_type = node_.op_type},
                      .hint = std::move(hint)});
  }

  static constexpr const char* kInRange = "Give a value in this range, or export the model again.";

  const ir::Node& node_;
  const AttributeSpec& spec_;
};

}  // namespace

void check_attribute(const ir::Node& node, const AttributeSpec& spec) {
  if (const ir::AttributeValue* value = node.find_attribute(spec.name)) {
    Checker(node, spec).check(*value);
  }
}

void check_attributes(const ir::Node& node, const OpDef& def) {
  for (const ir::Attribute& attribute : node.attributes) {
    const auto spec = std::ranges::find(def.attributes, attribute.name, &AttributeSpec::name);
    if (spec == def.attributes.end()) {
      std::vector<std::string> names;
      for (const AttributeSpec& known : def.attributes) names.emplace_back(known.name);
      throw ModelError(
          {.what = fmt::format("unknown attribute '{}'", attribute.name),
           .where = {.node = node.name, .op_type = node.op_type},
           .detail = fmt::format("{} has {}.", node.op_type,
                                 names.empty() ? "none" : base::quote_list(names)),
           .hint = base::nearest_or(attribute.name, names,
                                    "Remove it, or export the model with another opset.")});
    }
    Checker(node, *spec).check(attribute.value);
  }
  for (const AttributeSpec& spec : def.attributes) {
    if (spec.required && node.find_attribute(spec.name) == nullptr) {
      throw ModelError({.what = fmt::format("attribute '{}' is missing", spec.name),
                        .where = {.node = node.name, .op_type = node.op_type},
                        .hint = "Give it a value, or export the model again."});
    }
  }
}

void complete_attributes(ir::Node& node, const OpDef& def) {
  for (const AttributeSpec& spec : def.attributes) {
    if (!spec.default_value || node.find_attribute(spec.name) != nullptr) continue;
    node.set_attribute(std::string(spec.name), *spec.default_value);
  }
}

}  // namespace onnxgrad::opdef
