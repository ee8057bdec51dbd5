#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "onnxgrad/error.h"
#include "ops/ml/post_transform.h"

// LabelEncoder (ai.onnx.ml 4), CategoryMapper and OneHotEncoder (1): lookups of strings and numbers
// in constant tables. No gradient flows through a lookup.

namespace onnxgrad::ops::encoder_op {
namespace {

// Maps a string to the integer at the same position, an integer to the string.
std::optional<std::vector<Value*>> lower_category_mapper(const Node& node, GraphBuilder& g) {
  using Strings = std::vector<std::string>;
  const std::vector<std::int64_t> numbers = node.ints_attribute("cats_int64s");
  const ir::AttributeValue* given = node.find_attribute("cats_strings");
  const auto* texts = given == nullptr ? nullptr : std::get_if<Strings>(given);
  if (texts == nullptr || texts->size() != numbers.size()) {
    throw ModelError({.what = fmt::format("{} strings for {} integers",
                                          texts == nullptr ? 0 : texts->size(), numbers.size()),
                      .where = {.node = node.name, .op_type = node.op_type},
                      .hint = "Give cats_strings and cats_int64s one element per category."});
  }
  const DataType from = node.input(0)->dtype();
  if (from == DataType::kUndefined) return std::nullopt;
  const bool to_number = from == DataType::kString;
  std::vector<ir::Attribute> attributes = {{to_number ? "keys_strings" : "values_strings", *texts},
                                           {to_number ? "values_int64s" : "keys_int64s", numbers}};
  if (to_number) {
    attributes.push_back({"default_int64", node.int_attribute("default_int64")});
  } else {
    attributes.push_back({"default_string", node.string_attribute("default_string")});
  }
  return {{g.op("LabelEncoder", {node.input(0)}, std::move(attributes), kMl)}};
}

}  // namespace

void register_encoder(opdef::OpRegistry& registry) {
  using Type = opdef::AttributeType;
  registry.add({.domain = kMl,
                .op_type = "LabelEncoder",
                .since_version = 4,
                .attributes = {list_attribute("keys_floats", Type::kFloats),
                               list_attribute("keys_int64s", Type::kInts),
                               list_attribute("keys_strings", Type::kStrings),
                               {.name = "keys_tensor", .type = Type::kTensor},
                               list_attribute("values_floats", Type::kFloats),
                               list_attribute("values_int64s", Type::kInts),
                               list_attribute("values_strings", Type::kStrings),
                               {.name = "values_tensor", .type = Type::kTensor},
                               float_attribute("default_float", -0.0F),
                               {.name = "default_int64",
                                .type = Type::kInt,
                                .default_value = std::int64_t{-1}},
                               {.name = "default_string",
                                .type = Type::kString,
                                .default_value = std::string("_Unused")},
                               {.name = "default_tensor", .type = Type::kTensor}},
                .zero_gradient = true});
  registry.add({.domain = kMl,
                .op_type = "CategoryMapper",
                .since_version = 1,
                .attributes = {list_attribute("cats_int64s", Type::kInts),
                               list_attribute("cats_strings", Type::kStrings),
                               {.name = "default_int64",
                                .type = Type::kInt,
                                .default_value = std::int64_t{-1}},
                               {.name = "default_string",
                                .type = Type::kString,
                                .default_value = std::string("_Unused")}},
                .lower = lower_category_mapper});
  registry.add({.domain = kMl,
                .op_type = "OneHotEncoder",
                .since_version = 1,
                .attributes = {list_attribute("cats_int64s", Type::kInts),
                               list_attribute("cats_strings", Type::kStrings),
                               flag_attribute("zeros", true)},
                .zero_gradient = true});
}

}  // namespace onnxgrad::ops::encoder_op
