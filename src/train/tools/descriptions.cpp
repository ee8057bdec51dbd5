#include "train/tools/descriptions.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/check.h"

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

FieldValue value_of(const Field& field, const void* spec) {
  return field.read(static_cast<const std::byte*>(spec) + field.offset, field.info);
}

std::vector<FieldValue> values_of(const std::vector<Field>& fields, const void* spec) {
  std::vector<FieldValue> values;
  for (const Field& field : fields) values.push_back(value_of(field, spec));
  return values;
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

template <class T>
FieldValue read_member(const void* member, const FieldInfo& info) {
  if constexpr (std::is_same_v<T, int>) {
    return info.choices.at(static_cast<std::size_t>(*static_cast<const int*>(member)));
  } else if constexpr (std::is_same_v<T, std::optional<std::int64_t>>) {
    const auto& number = *static_cast<const T*>(member);
    return number ? FieldValue(*number) : FieldValue(std::monostate{});
  } else {
    return *static_cast<const T*>(member);
  }
}

template <class T>
void write_member(void* member, const FieldValue& value, const FieldInfo& info) {
  T& to = *static_cast<T*>(member);
  const auto* whole = std::get_if<std::int64_t>(&value);
  const auto* wholes = std::get_if<std::vector<std::int64_t>>(&value);
  if constexpr (std::is_same_v<T, int>) {
    const auto& wanted = std::get<std::string>(value);
    const auto found = std::ranges::find(info.choices, wanted);
    if (found == info.choices.end()) throw_unknown("choice", wanted, info.choices);
    to = static_cast<int>(found - info.choices.begin());
  } else if constexpr (std::is_same_v<T, std::optional<std::int64_t>>) {
    to = whole == nullptr ? std::nullopt : std::optional(*whole);
  } else if constexpr (std::is_same_v<T, double>) {
    to = whole == nullptr ? std::get<T>(value) : static_cast<double>(*whole);
  } else if constexpr (std::is_same_v<T, std::vector<double>>) {
    to = wholes == nullptr ? std::get<T>(value) : T(wholes->begin(), wholes->end());
  } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
    // A list without entries has no type.
    to = wholes != nullptr && wholes->empty() ? T{} : std::get<T>(value);
  } else {
    to = std::get<T>(value);
  }
}

#define ONNXGRAD_MEMBER(T)                                           \
  template FieldValue read_member<T>(const void*, const FieldInfo&); \
  template void write_member<T>(void*, const FieldValue&, const FieldInfo&);
ONNXGRAD_MEMBER(int)
ONNXGRAD_MEMBER(bool)
ONNXGRAD_MEMBER(std::int64_t)
ONNXGRAD_MEMBER(double)
ONNXGRAD_MEMBER(std::string)
ONNXGRAD_MEMBER(std::vector<std::int64_t>)
ONNXGRAD_MEMBER(std::vector<double>)
ONNXGRAD_MEMBER(std::vector<std::string>)
ONNXGRAD_MEMBER(std::optional<std::int64_t>)
#undef ONNXGRAD_MEMBER

Field make_field(std::string name, FieldInfo info, Field field) {
  field.info = std::move(info);
  field.info.option = name;
  field.info.name = std::move(name);
  field.info.default_value = value_of(field, field.spec);
  return field;
}

Field called(std::string option, Field field) {
  field.info.option = std::move(option);
  return field;
}

Field zero_is(std::string meaning, Field field) {
  field.info.none_is = std::move(meaning);
  return field;
}

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

std::vector<DescriptionInfo> DescriptionRows::infos() const {
  std::vector<DescriptionInfo> infos;
  for (const Row& row : rows_) infos.push_back(row.info);
  return infos;
}

std::vector<std::string> DescriptionRows::names() const {
  std::vector<std::string> names;
  for (const Name& known : names_) names.push_back(known.name);
  return names;
}

// "CosineAnnealing_LR" -> "cosineannealinglr": names are known however other libraries spell them.
std::string plain_name(std::string_view name) {
  std::string plain;
  for (const char c : name) {
    if (c == '_' || c == '-' || c == ' ') continue;
    plain += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  }
  return plain;
}

void DescriptionRows::finish() {
  for (const Row& row : rows_) ONNXGRAD_ASSERT(!row.info.type.empty());
  std::ranges::sort(names_, {}, &Name::name);
}

void DescriptionRows::add_row(std::size_t index, Row row, const void* spec) {
  for (const Field& field : row.fields) {
    ONNXGRAD_ASSERT(field.spec == spec);  // a member of another struct
    row.info.fields.push_back(field.info);
  }
  rows_.at(index) = std::move(row);
}

void DescriptionRows::add_name(std::size_t index, const void* spec, std::string name,
                               std::vector<std::string> aliases) {
  Row& row = rows_.at(index);
  row.info.names.push_back(
      {.name = name, .values = values_of(row.fields, spec), .aliases = aliases});
  names_.push_back(
      {.name = std::move(name), .aliases = std::move(aliases), .place = names_.size()});
}

std::size_t DescriptionRows::place_of(std::string_view name) const {
  const std::string wanted = plain_name(name);
  for (const Name& known : names_) {
    const auto matches = [&](const std::string& one) { return plain_name(one) == wanted; };
    if (matches(known.name) || std::ranges::any_of(known.aliases, matches)) return known.place;
  }
  throw_unknown(subject_, name, names());
}

std::size_t DescriptionRows::row_of_type(std::string_view type) const {
  std::vector<std::string> types;
  for (const Row& row : rows_) {
    if (row.info.type == type) return types.size();
    types.push_back(row.info.type);
  }
  throw_unknown(subject_, type, types);
}

void DescriptionRows::assign(std::size_t index, void* spec, const FieldValues& values) const {
  const Row& row = rows_.at(index);
  for (const auto& [option, value] : values) {
    const auto found =
        std::ranges::find(row.fields, option, [](const Field& field) { return field.info.option; });
    if (found == row.fields.end()) {
      std::vector<std::string> known;
      for (const Field& field : row.fields) known.push_back(field.info.option);
      throw_unknown("option of " + row.info.type, option, known);
    }
    found->write(static_cast<std::byte*>(spec) + found->offset, value, found->info);
  }
}

std::optional<Problem> DescriptionRows::find_problem(std::size_t index, const void* spec,
                                                     std::string_view place) const {
  for (const Field& field : rows_.at(index).fields) {
    if (auto problem = field_problem(field.info, value_of(field, spec), place)) return problem;
  }
  return {};
}

FieldValue DescriptionRows::get(std::size_t index, const void* spec, std::string_view name,
                                FieldValue otherwise) const {
  for (const Field& field : rows_.at(index).fields) {
    if (field.info.name == name) return value_of(field, spec);
  }
  return otherwise;
}

std::vector<std::pair<std::string, std::string>> DescriptionRows::fixed(std::size_t index,
                                                                        const void* spec) const {
  std::vector<std::pair<std::string, std::string>> texts;
  for (const Field& field : rows_.at(index).fields) {
    if (!field.info.is_fixed) continue;
    texts.emplace_back(field.info.option, field_text(field.info, value_of(field, spec)));
  }
  return texts;
}

std::vector<FieldValue> DescriptionRows::strings(std::size_t index, const void* spec) const {
  std::vector<FieldValue> values = values_of(rows_.at(index).fields, spec);
  std::erase_if(
      values, [](const FieldValue& value) { return !std::holds_alternative<std::string>(value); });
  return values;
}

std::string DescriptionRows::to_string(std::size_t index, const void* spec, bool is_whole) const {
  const Row& row = rows_.at(index);
  return row.info.type + "(" + fields_text(row.info.fields, values_of(row.fields, spec), is_whole) +
         ")";
}

}  // namespace onnxgrad::train
