#ifndef ONNXGRAD_TRAIN_DESCRIPTIONS_H_
#define ONNXGRAD_TRAIN_DESCRIPTIONS_H_

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

#include "onnxgrad/description.h"
#include "onnxgrad/option_error.h"

// Tables of option structs. A struct of a family (one alternative of a variant) is described once,
// by a `Described<Spec>` that binds its members; checks, strings, copies by name and the public
// `DescriptionInfo`, from which Python's classes and the documents are generated, read it.

namespace onnxgrad::train {

inline constexpr NumberRange kAnyNumber{};
inline constexpr NumberRange kAtLeastZero{.minimum = 0};
inline constexpr NumberRange kAboveZero{.minimum = 0, .is_open = true};
/// Divisors of scores: their reciprocals, and the squares of these, are far from overflow.
inline constexpr NumberRange kTemperature{.minimum = 1e-3, .below = 1e4};
inline constexpr NumberRange kBelowOne{.minimum = 0, .below = 1};
inline constexpr NumberRange kAtLeastOne{.minimum = 1};

/// Throws OptionError naming the nearest. subject: "optimizer".
[[noreturn]] void throw_unknown(std::string_view subject, std::string_view name,
                                std::span<const std::string> known);

/// A member of an option struct. The code that reads and writes it is that of the member's type;
/// the struct's type is forgotten, so that a struct costs the compiler little.
struct Field {
  FieldInfo info = {};
  const void* spec = nullptr;  ///< default_of() the struct that it is a member of
  std::size_t offset = 0;      ///< bytes, within the struct
  FieldValue (*read)(const void* member, const FieldInfo& info) = nullptr;
  /// Writes a value to the member. Throws: OptionError (an unknown choice).
  void (*write)(void* member, const FieldValue& value, const FieldInfo& info) = nullptr;
};

/// Field::read and Field::write of a T: bool, int64, double, string, a vector of one of the last
/// three, or optional<int64>; int is an enumeration, whose strings are the choices.
template <class T>
FieldValue read_member(const void* member, const FieldInfo& info);
template <class T>
void write_member(void* member, const FieldValue& value, const FieldInfo& info);

/// The struct with its default options; its address identifies the type.
template <class Spec>
const Spec& default_of() {
  static const Spec spec{};
  return spec;
}

/// `info` has everything but name, option and default value.
Field make_field(std::string name, FieldInfo info, Field field);

template <class T, class Spec, class Member>
Field member_field(std::string name, Member Spec::* member, FieldInfo info) {
  const Spec& spec = default_of<Spec>();
  const auto* start = reinterpret_cast<const std::byte*>(&spec);
  const auto* place = reinterpret_cast<const std::byte*>(&(spec.*member));
  return make_field(std::move(name), std::move(info),
                    {.spec = &spec,
                     .offset = static_cast<std::size_t>(place - start),
                     .read = &read_member<T>,
                     .write = &write_member<T>});
}

/// A member that is a number or string, several of them, or a bool; numbers in the given range.
template <class Spec, class T>
Field field(std::string name, T Spec::* member, const NumberRange& range,
            std::string meaning = "") {
  return member_field<T>(std::move(name), member, {.range = range, .meaning = std::move(meaning)});
}
template <class Spec, class T>
  requires(std::is_same_v<T, bool> || std::is_same_v<T, std::vector<std::string>> ||
           std::is_same_v<T, std::optional<std::int64_t>>)
Field field(std::string name, T Spec::* member, std::string meaning = "") {
  return member_field<T>(std::move(name), member, {.meaning = std::move(meaning)});
}

/// A member of enumeration type, with strings for the enumerators in their order.
template <class Spec, class Enum>
  requires(std::is_enum_v<Enum>)
Field field(std::string name, Enum Spec::* member, std::vector<std::string> choices,
            std::string meaning = "") {
  static_assert(std::is_same_v<std::underlying_type_t<Enum>, int>);
  return member_field<int>(std::move(name), member,
                           {.choices = std::move(choices), .meaning = std::move(meaning)});
}

/// `field` with a different name in Python.
Field called(std::string option, Field field);
/// `field` where 0 has a meaning of its own: "no limit".
Field zero_is(std::string meaning, Field field);

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
  std::optional<std::string> python_name = {};  ///< nullopt: `type`; empty: no class in Python
  std::string summary = {};
  std::string source = {};
  std::string formula = {};
  std::vector<Field> fields = {};
  std::vector<StateInfo> states = {};
  std::vector<Named<Spec>> names = {};
  /// Throws OptionError for incompatible values; those in `fields` are in their ranges.
  std::function<void(const Spec&)> check = nullptr;
};

/// A name as tables compare it: lower case, without underscores, hyphens and spaces.
std::string plain_name(std::string_view name);
/// Description of a range: "a number of at least 0 and below 1".
std::string range_text(const FieldInfo& field);
/// Text of a value: "3", "[0.5, 1]", "true"; "none" for a 0 with a meaning of its own.
std::string field_text(const FieldInfo& field, const FieldValue& value);
/// The problem of a number out of its range. subject: "optimizer: ".
std::optional<Problem> field_problem(const FieldInfo& field, const FieldValue& value,
                                     std::string_view subject);
/// Text of fields: "learning_rate=0.01, momentum=0.9"; without defaults that are zero or false,
/// unless `is_whole`.
std::string fields_text(std::span<const FieldInfo> fields, std::span<const FieldValue> values,
                        bool is_whole);

/// The part of a table that does not depend on the variant: rows by the index of the alternative,
/// structs by their address.
class DescriptionRows {
 public:
  /// Descriptions in the order of the variant.
  std::vector<DescriptionInfo> infos() const;
  std::vector<std::string> names() const;
  /// Ends the table: sorts the names and checks that each alternative has a row.
  void finish();

 protected:
  struct Name {
    std::string name = {};
    std::vector<std::string> aliases = {};
    std::size_t place = 0;  ///< in the order in which names were added
  };
  struct Row {
    DescriptionInfo info = {};
    std::vector<Field> fields = {};
  };

  DescriptionRows(std::string subject, std::size_t size)
      : subject_(std::move(subject)), rows_(size) {}

  void add_row(std::size_t index, Row row, const void* spec);
  void add_name(std::size_t index, const void* spec, std::string name,
                std::vector<std::string> aliases);

  /// Finds a name. Throws: OptionError naming the nearest.
  std::size_t place_of(std::string_view name) const;
  std::size_t row_of_type(std::string_view type) const;
  void assign(std::size_t index, void* spec, const FieldValues& values) const;

  const Row& row(std::size_t index) const { return rows_.at(index); }
  const std::vector<Name>& known_names() const { return names_; }
  std::optional<Problem> find_problem(std::size_t index, const void* spec,
                                      std::string_view place) const;
  FieldValue get(std::size_t index, const void* spec, std::string_view name,
                 FieldValue otherwise) const;
  std::vector<std::pair<std::string, std::string>> fixed(std::size_t index, const void* spec) const;
  /// The values that are strings.
  std::vector<FieldValue> strings(std::size_t index, const void* spec) const;
  std::string to_string(std::size_t index, const void* spec, bool is_whole) const;

 private:
  std::string subject_;
  std::vector<Row> rows_;
  std::vector<Name> names_;
};

/// The table of a family: a row for each alternative of the variant.
template <class Variant>
class DescriptionTable : public DescriptionRows {
 public:
  /// subject: the name of a member of the family in messages, "optimizer".
  explicit DescriptionTable(std::string subject)
      : DescriptionRows(std::move(subject), std::variant_size_v<Variant>) {}

  template <class Spec>
  void add(Described<Spec> described) {
    const Variant initial = Spec{};
    const std::size_t index = initial.index();
    add_row(index,
            {.info = {.type = described.type,
                      .python_name = described.python_name.value_or(described.type),
                      .summary = std::move(described.summary),
                      .source = std::move(described.source),
                      .formula = std::move(described.formula),
                      .states = std::move(described.states)},
             .fields = std::move(described.fields)},
            &default_of<Spec>());
    for (Named<Spec>& named : described.names) {
      add_name(index, &named.spec, std::move(named.name), std::move(named.aliases));
      specs_.emplace_back(std::move(named.spec));
    }
    initial_.at(index) = initial;
    if (described.check != nullptr) {
      checks_.at(index) = [check = std::move(described.check)](const Variant& value) {
        check(std::get<Spec>(value));
      };
    }
  }

  /// The struct of a name. Throws: OptionError naming the nearest.
  const Variant& from_name(std::string_view name) const { return specs_.at(place_of(name)); }
  /// Makes the struct of that type with these values and defaults for the others.
  /// Throws: OptionError (an unknown type or field, a value out of range).
  Variant make(std::string_view type, const FieldValues& values) const {
    const std::size_t index = row_of_type(type);
    Variant result = initial_.at(index);
    assign(index, const_cast<void*>(address(result)), values);  // `result` is not const
    check(result, "");
    return result;
  }
  /// Checks a struct. Throws: E (a value out of range), and as Described::check does.
  template <class E = OptionError>
  void check(const Variant& value, std::string_view place) const {
    if (auto problem = find_problem(value.index(), address(value), place)) {
      throw E(std::move(*problem));
    }
    if (const auto& check = checks_.at(value.index())) check(value);
  }
  /// The value of one field; `otherwise` if the struct does not have it.
  FieldValue get(const Variant& value, std::string_view name, FieldValue otherwise) const {
    return DescriptionRows::get(value.index(), address(value), name, std::move(otherwise));
  }
  const DescriptionInfo& info(const Variant& value) const { return row(value.index()).info; }
  /// Names and texts of the fields that are FieldInfo::is_fixed.
  std::vector<std::pair<std::string, std::string>> fixed(const Variant& value) const {
    return DescriptionRows::fixed(value.index(), address(value));
  }
  /// The name in the table of a struct of this type with these strings; "" if there is none.
  std::string name_of(const Variant& value) const {
    const std::vector<FieldValue> wanted = strings(value.index(), address(value));
    for (const Name& known : known_names()) {
      const Variant& spec = specs_.at(known.place);
      if (spec.index() != value.index()) continue;
      if (strings(spec.index(), address(spec)) == wanted) return known.name;
    }
    return "";
  }
  /// Text such as "Sgd(learning_rate=0.01, momentum=0.9)"; see fields_text().
  std::string to_string(const Variant& value, bool is_whole = false) const {
    return DescriptionRows::to_string(value.index(), address(value), is_whole);
  }

 private:
  static const void* address(const Variant& value) {
    return std::visit([](const auto& spec) -> const void* { return &spec; }, value);
  }

  std::array<Variant, std::variant_size_v<Variant>> initial_;
  std::array<std::function<void(const Variant&)>, std::variant_size_v<Variant>> checks_;
  std::vector<Variant> specs_;  // structs of the names
};

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_DESCRIPTIONS_H_
