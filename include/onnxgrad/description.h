#ifndef ONNXGRAD_DESCRIPTION_H_
#define ONNXGRAD_DESCRIPTION_H_

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <variant>
#include <vector>

// Option structs as data, from which bindings, the command line and documents are generated. A
// family (optimizers, schedules, ...) has a table with a description of each of its structs.

namespace [[gnu::visibility("default")]] onnxgrad {

/// The value of a field; its type is that of the field. Enumerators are strings; monostate is an
/// optional int64 without a value.
using FieldValue = std::variant<bool, std::int64_t, double, std::string, std::vector<std::int64_t>,
                                std::vector<double>, std::vector<std::string>, std::monostate>;

/// Numbers >= `minimum` (> `minimum` if `is_open`), <= `maximum` and < `below`.
struct NumberRange {
  double minimum = -std::numeric_limits<double>::infinity();
  bool is_open = false;
  double maximum = std::numeric_limits<double>::infinity();
  double below = std::numeric_limits<double>::infinity();
};

/// A member of an option struct.
struct FieldInfo {
  std::string name = {};                  ///< name of the member
  std::string option = {};                ///< name in Python and on the command line
  FieldValue default_value = {};          ///< value in the default struct
  NumberRange range = {};                 ///< bounds of a number
  std::string none_is = {};               ///< meaning of 0 (None in Python); empty: a number
  std::vector<std::string> choices = {};  ///< accepted strings
  bool is_duration = false;               ///< seconds; Python takes strings such as "1.5h" as well
  bool is_fixed = false;                  ///< must not change when a fit is resumed
  std::vector<std::string> aliases = {};  ///< other names of the option
  std::string meaning = {};               ///< sentences, the first one for lists; may be empty
  std::string topic = {};                 ///< heading that lists an option of the command line
};

/// A name by which users know a struct with certain values.
struct NamedValues {
  std::string name = {};
  std::vector<FieldValue> values = {};  ///< one for each field, in order
  std::vector<std::string> aliases = {};
};

/// A value kept in the state of a training.
struct StateInfo {
  std::string name = {};     ///< name, without that of its weight
  std::string meaning = {};  ///< symbol in the formula, or when it exists
};

/// An option struct. Strings are plain ASCII; formulas refer to fields by option name.
struct DescriptionInfo {
  std::string type = {};         ///< name of the struct
  std::string python_name = {};  ///< class in Python; empty: there is none made of the fields
  std::string summary = {};      ///< one line, without a full stop
  std::string source = {};       ///< publication, or library with the same definition; may be empty
  std::string formula = {};
  std::vector<FieldInfo> fields = {};
  std::vector<StateInfo> states = {};
  std::vector<NamedValues> names = {};
};

/// Fields by option name.
using FieldValues = std::map<std::string, FieldValue, std::less<>>;

}  // namespace onnxgrad

#endif  // ONNXGRAD_DESCRIPTION_H_
