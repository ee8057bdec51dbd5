#ifndef ONNXGRAD_TRAIN_DESCRIPTIONS_H_
#define ONNXGRAD_TRAIN_DESCRIPTIONS_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "base/check.h"
#include "onnxgrad/description.h"
#include "onnxgrad/option_error.h"

// Tables of option structs. A struct of a family (one alternative of a variant) is described once,
// by a `Described<Spec>` that binds its members; checks, strings, copies by name and the public
// `DescriptionInfo`, from which Python's classes and the documents are generated, read it.

namespace onnxgrad::train {

inline constexpr NumberRange kAnyNumber{};
inline constexpr NumberRange kAtLeastZero{.minimum = 0};
inline constexpr NumberRange kAboveZero{.minimum = 0, .is_open = true};
inline constexpr NumberRange kBelowOne{.minimum = 0, .below = 1};
inline constexpr NumberRange kAtLeastOne{.minimum = 1};

/// Throws: OptionError naming the nearest. subject: "optimizer".
[[noreturn]] void throw_unknown(std::string_view subject, std::string_view name,
                                std::span<const std::string> known);

/// A member of `Spec`, or of the variant that holds one.
template <class Spec>
struct Field {
  FieldInfo info = {};
  std::function<FieldValue(const Spec&)> get = {};
  std::function<void(Spec&, const FieldValue&)> set = {};
};

/// A member that is a number, several, a bool or texts; numbers in the given range.
template <class Spec, class T>
Field<Spec> field(std::string name, T Spec::* member, const NumberRange& range,
                  std::string meaning = "") {
  Field<Spec> result;
  result.info = {.name = name,
                 .option = name,
                 .default_value = Spec{}.*member,
                 .range = range,
                 .meaning = std::move(meaning)};
  result.get = [member](const Spec& spec) { return FieldValue(spec.*member); };
  result.set = [member](Spec& spec, const FieldValue& value) {
    if constexpr (std::is_same_v<T, double>) {
      if (const auto* whole = std::get_if<std::int64_t>(&value)) {
        spec.*member = static_cast<double>(*whole);
        return;
      }
    }
    if constexpr (std::is_same_v<T, std::vector<double>>) {
      if (const auto* whole = std::get_if<std::vector<std::int64_t>>(&value)) {
        (spec.*member).assign(whole->begin(), whole->end());
        return;
      }
    }
    if constexpr (std::is_same_v<T, std::vector<std::string>>) {
      const auto* none = std::get_if<std::vector<std::int64_t>>(&value);
      if (none != nullptr && none->empty()) {  // a list without entries has no type
        (spec.*member).clear();
        return;
      }
    }
    spec.*member = std::get<T>(value);
  };
  return result;
}
/// An optional int64.
template <class Spec>
Field<Spec> field(std::string name, std::optional<std::int64_t> Spec::* member,
                  std::string meaning = "") {
  Field<Spec> result;
  result.info = {.name = name,
                 .option = name,
                 .default_value = std::monostate{},
                 .meaning = std::move(meaning)};
  result.get = [member](const Spec& spec) -> FieldValue {
    return spec.*member ? FieldValue(*(spec.*member)) : FieldValue(std::monostate{});
  };
  result.set = [member](Spec& spec, const FieldValue& value) {
    const auto* whole = std::get_if<std::int64_t>(&value);
    spec.*member = whole == nullptr ? std::nullopt : std::optional(*whole);
  };
  return result;
}
template <class Spec, class T>
  requires(std::is_same_v<T, bool> || std::is_same_v<T, std::vector<std::string>>)
Field<Spec> field(std::string name, T Spec::* member, std::string meaning = "") {
  return field(std::move(name), member, kAnyNumber, std::move(meaning));
}

/// A member of enumeration type, with strings for the enumerators in their order.
template <class Spec, class Enum>
  requires(std::is_enum_v<Enum>)
Field<Spec> field(std::string name, Enum Spec::* member, std::vector<std::string> choices,
                  std::string meaning = "") {
  const auto text = [member, choices](const Spec& spec) -> FieldValue {
    return choices.at(static_cast<std::size_t>(spec.*member));
  };
  return {.info = {.name = name,
                   .option = name,
                   .default_value = text(Spec{}),
                   .choices = choices,
                   .meaning = std::move(meaning)},
          .get = text,
          .set = [member, choices](Spec& spec, const FieldValue& value) {
            const auto& wanted = std::get<std::string>(value);
            const auto found = std::ranges::find(choices, wanted);
            if (found == choices.end()) throw_unknown("choice", wanted, choices);
            spec.*member = static_cast<Enum>(found - choices.begin());
          }};
}

/// The same field with a different name in Python.
template <class Spec>
Field<Spec> called(std::string option, Field<Spec> field) {
  field.info.option = std::move(option);
  return field;
}
/// The same field, where 0 means something else: "no limit".
template <class Spec>
Field<Spec> zero_is(std::string meaning, Field<Spec> field) {
  field.info.none_is = std::move(meaning);
  return field;
}

/// A name by which users know a struct with certain values.
template <class Spec>
struct Named {
  std::string name = {};
  Spec spec = {};
  std::vector<std::string> aliases = {};
};

/// The description of an option struct.
template <class Spec>
struct Described {
  std::string type = {};
  std::string python_name = {};
  std::string summary = {};
  std::string source = {};
  std::string formula = {};
  std::vector<Field<Spec>> fields = {};
  std::vector<StateInfo> states = {};
  std::vector<Named<Spec>> names = {};
  /// Throws OptionError for incompatible values; those in `fields` are in their ranges.
  std::function<void(const Spec&)> check = [](const Spec&) {};
};

/// "a number of at least 0 and below 1".
std::string range_text(const FieldInfo& field);
/// "3", "[0.5, 1]", "true"; "none" for a 0 that stands for something else.
std::string field_text(const FieldInfo& field, const FieldValue& value);
/// The problem of a number out of its range. subject: "optimizer: ".
std::optional<Problem> field_problem(const FieldInfo& field, const FieldValue& value,
                                     std::string_view subject);
/// "learning_rate=0.01, momentum=0.9"; without defaults that are zero or false, unless
/// `is_whole`.
std::string fields_text(std::span<const FieldInfo> fields, std::span<const FieldValue> values,
                        bool is_whole);

/// The table of a family: a row for each alternative of the variant.
template <class Variant>
class DescriptionTable {
 public:
  /// subject: the name of a member of the family in messages, "optimizer".
  explicit DescriptionTable(std::string subject) : subject_(std::move(subject)) {}

  template <class Spec>
  void add(Described<Spec> described) {
    Row row{.info = {.type = std::move(described.type),
                     .python_name = std::move(described.python_name),
                     .summary = std::move(described.summary),
                     .source = std::move(described.source),
                     .formula = std::move(described.formula),
                     .states = std::move(described.states)},
            .initial = Spec{}};
    for (Field<Spec>& field : described.fields) {
      row.info.fields.push_back(field.info);
      row.fields.push_back(
          {.info = std::move(field.info),
           .get = [get = std::move(field.get)](
                      const Variant& value) { return get(std::get<Spec>(value)); },
           .set = [set = std::move(field.set)](
                      Variant& value, const FieldValue& to) { set(std::get<Spec>(value), to); }});
    }
    for (Named<Spec>& named : described.names) {
      row.info.names.push_back({.name = named.name,
                                .values = values_of(row, Variant(named.spec)),
                                .aliases = named.aliases});
      names_.push_back({std::move(named.name), std::move(named.spec), std::move(named.aliases)});
    }
    row.check = [check = std::move(described.check)](const Variant& value) {
      check(std::get<Spec>(value));
    };
    rows_.at(Variant(Spec{}).index()) = std::move(row);
  }

  /// After the last row: names are sorted, and each alternative must have a row.
  void finish() {
    for (const Row& row : rows_) ONNXGRAD_ASSERT(!row.info.type.empty());
    std::ranges::sort(names_, {}, &Named<Variant>::name);
  }

  /// In the order of the variant.
  std::vector<DescriptionInfo> infos() const {
    std::vector<DescriptionInfo> infos;
    for (const Row& row : rows_) infos.push_back(row.info);
    return infos;
  }
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const Named<Variant>& named : names_) names.push_back(named.name);
    return names;
  }
  /// Throws: OptionError naming the nearest.
  const Variant& from_name(std::string_view name) const {
    for (const Named<Variant>& known : names_) {
      if (known.name == name || std::ranges::find(known.aliases, name) != known.aliases.end()) {
        return known.spec;
      }
    }
    throw_unknown(subject_, name, names());
  }
  /// The struct of that type with these values; the others are defaults.
  /// Throws: OptionError (an unknown type or field, a value out of range).
  Variant make(std::string_view type, const FieldValues& values) const {
    for (const Row& row : rows_) {
      if (row.info.type != type) continue;
      Variant result = row.initial;
      for (const auto& [option, value] : values) field_of(row, option).set(result, value);
      check(result, "");
      return result;
    }
    std::vector<std::string> types;
    for (const Row& row : rows_) types.push_back(row.info.type);
    throw_unknown(subject_, type, types);
  }
  /// Throws: E (a value out of range), what Described::check throws.
  template <class E = OptionError>
  void check(const Variant& value, std::string_view place) const {
    const Row& row = row_of(value);
    for (const Field<Variant>& field : row.fields) {
      if (auto problem = field_problem(field.info, field.get(value), place)) {
        throw E(std::move(*problem));
      }
    }
    row.check(value);
  }
  /// The value of one field; `otherwise` if the struct does not have it.
  FieldValue get(const Variant& value, std::string_view name, FieldValue otherwise) const {
    for (const Field<Variant>& field : row_of(value).fields) {
      if (field.info.name == name) return field.get(value);
    }
    return otherwise;
  }
  const DescriptionInfo& info(const Variant& value) const { return row_of(value).info; }
  /// Options whose fields are FieldInfo::is_fixed, and their values as texts.
  std::vector<std::pair<std::string, std::string>> fixed(const Variant& value) const {
    std::vector<std::pair<std::string, std::string>> texts;
    for (const Field<Variant>& field : row_of(value).fields) {
      if (!field.info.is_fixed) continue;
      texts.emplace_back(field.info.option, field_text(field.info, field.get(value)));
    }
    return texts;
  }
  /// The name of the same struct with the same strings; "" if there is none.
  std::string name_of(const Variant& value) const {
    const auto texts = [this](const Variant& of) {
      std::vector<FieldValue> values = values_of(row_of(of), of);
      std::erase_if(
          values, [](const FieldValue& one) { return !std::holds_alternative<std::string>(one); });
      return values;
    };
    for (const Named<Variant>& known : names_) {
      if (known.spec.index() == value.index() && texts(known.spec) == texts(value)) {
        return known.name;
      }
    }
    return "";
  }
  /// "Sgd(learning_rate=0.01, momentum=0.9)"; see fields_text().
  std::string to_string(const Variant& value, bool is_whole = false) const {
    const Row& row = row_of(value);
    return row.info.type + "(" + fields_text(row.info.fields, values_of(row, value), is_whole) +
           ")";
  }

 private:
  struct Row {
    DescriptionInfo info = {};
    Variant initial = {};
    std::vector<Field<Variant>> fields = {};
    std::function<void(const Variant&)> check = {};
  };

  const Row& row_of(const Variant& value) const { return rows_.at(value.index()); }

  static std::vector<FieldValue> values_of(const Row& row, const Variant& value) {
    std::vector<FieldValue> values;
    for (const Field<Variant>& field : row.fields) values.push_back(field.get(value));
    return values;
  }
  const Field<Variant>& field_of(const Row& row, std::string_view option) const {
    std::vector<std::string> known;
    for (const Field<Variant>& field : row.fields) {
      if (field.info.option == option) return field;
      known.push_back(field.info.option);
    }
    throw_unknown("option of " + row.info.type, option, known);
  }

  std::string subject_;
  std::array<Row, std::variant_size_v<Variant>> rows_;
  std::vector<Named<Variant>> names_;
};

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_DESCRIPTIONS_H_
