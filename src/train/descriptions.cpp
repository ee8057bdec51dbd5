#include "train/descriptions.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <optional>

namespace onnxgrad::train {
namespace {

// The numbers in a field, if any.
std::vector<double> numbers_of(const FieldValue& value) {
  if (const auto* real = std::get_if<double>(&value)) return {*real};
  if (const auto* whole = std::get_if<std::int64_t>(&value)) return {static_cast<double>(*whole)};
  if (const auto* list = std::get_if<std::vector<std::int64_t>>(&value)) {
    return {list->begin(), list->end()};
  }
  if (const auto* list = std::get_if<std::vector<double>>(&value)) return *list;
  return {};
}

bool is_zero(const FieldValue& value) {
  return value == FieldValue(0.0) || value == FieldValue(std::int64_t{0}) ||
         value == FieldValue(false);
}

std::string value_text(const FieldValue& value) {
  if (const auto* list = std::get_if<std::vector<std::int64_t>>(&value)) {
    return fmt::format("[{}]", fmt::join(*list, ", "));
  }
  if (const auto* list = std::get_if<std::vector<double>>(&value)) {
    return fmt::format("[{}]", fmt::join(*list, ", "));
  }
  if (const auto* list = std::get_if<std::vector<std::string>>(&value)) {
    return fmt::format("[{}]", fmt::join(*list, ", "));
  }
  if (std::holds_alternative<std::monostate>(value)) return "none";
  if (const auto* whole = std::get_if<std::int64_t>(&value)) return std::to_string(*whole);
  if (const auto* real = std::get_if<double>(&value)) return fmt::format("{}", *real);
  if (const auto* flag = std::get_if<bool>(&value)) return *flag ? "true" : "false";
  return std::get<std::string>(value);
}

// "beta1"; for one of several, "a class weight" for class_weights.
std::string name_of_number(const FieldInfo& field) {
  const bool is_list = std::holds_alternative<std::vector<double>>(field.default_value) ||
                       std::holds_alternative<std::vector<std::int64_t>>(field.default_value);
  if (!is_list) return field.name;
  std::string name = "a " + field.name.substr(0, field.name.size() - 1);
  std::ranges::replace(name, '_', ' ');
  return name;
}

}  // namespace

std::string range_text(const FieldInfo& field) {
  const NumberRange& range = field.range;
  std::string text =
      std::holds_alternative<std::int64_t>(field.default_value) ? "an integer" : "a number";
  if (std::isfinite(range.minimum)) {
    text += fmt::format(" {} {:g}", range.is_open ? "above" : "of at least", range.minimum);
  }
  if (std::isfinite(range.maximum)) text += fmt::format(" and at most {:g}", range.maximum);
  if (std::isfinite(range.below)) text += fmt::format(" and below {:g}", range.below);
  return text;
}

std::string field_text(const FieldInfo& field, const FieldValue& value) {
  return !field.none_is.empty() && is_zero(value) ? "none" : value_text(value);
}

std::optional<Problem> field_problem(const FieldInfo& field, const FieldValue& value,
                                     std::string_view subject) {
  const NumberRange& range = field.range;
  for (const double number : numbers_of(value)) {
    if (!field.none_is.empty() && number == 0) continue;
    const bool fits = std::isfinite(number) && number >= range.minimum && number <= range.maximum &&
                      number < range.below && !(range.is_open && number == range.minimum);
    if (fits) continue;
    const std::string expected = range_text(field);
    return Problem{.what = fmt::format("{}{} is {:g}, expected {}", subject, name_of_number(field),
                                       number, expected),
                   .hint = fmt::format("Give {}, or omit it.", expected)};
  }
  return {};
}

std::string fields_text(std::span<const FieldInfo> fields, std::span<const FieldValue> values,
                        bool is_whole) {
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < fields.size(); ++i) {
    if (!is_whole && is_zero(values[i]) && is_zero(fields[i].default_value)) continue;
    texts.push_back(fields[i].name + "=" + value_text(values[i]));
  }
  return fmt::format("{}", fmt::join(texts, ", "));
}

void throw_unknown(std::string_view subject, std::string_view name,
                   std::span<const std::string> known) {
  throw OptionError({.what = fmt::format("there is no {} '{}'", subject, name),
                     .detail = "Known: " + base::quote_list(known, known.size()) + ".",
                     .hint = base::nearest_or(name, known)});
}

}  // namespace onnxgrad::train
