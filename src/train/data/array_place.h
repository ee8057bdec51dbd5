#ifndef ONNXGRAD_TRAIN_DATA_ARRAY_PLACE_H_
#define ONNXGRAD_TRAIN_DATA_ARRAY_PLACE_H_

#include <cstdint>
#include <string>

#include "onnxgrad/data.h"
#include "onnxgrad/error.h"

namespace onnxgrad::train {

/// An array of a data set, and the names of its rows and columns in messages.
struct ArrayPlace {
  /// A single array, whose rows are counted from 0.
  ArrayPlace(const std::string& name)  // NOLINT: from names as if it were one
      : value(name), subject("'" + name + "'") {}
  ArrayPlace(const char* name) : ArrayPlace(std::string(name)) {}  // NOLINT: the same

  std::string value;           ///< Place::value, if no column has a name
  std::string subject;         ///< "'x'", "the target"
  std::int64_t first_row = 0;  ///< Dataset::first_row
  std::string part = {};       ///< use of its rows: "validation"
  const DataOrigin* origin = nullptr;
  const DataOrigin::Columns* columns = nullptr;

  /// Name of a row: "row 17", "row 17 of the validation rows", "line 19".
  std::string row(std::int64_t place) const;
  /// Name of an element: "row 17, column 3", "line 19, column 'age'"; indices start from 0, as in
  /// NumPy.
  std::string element(const Dims& dims, std::int64_t place) const;
  Place where() const;
};

/// Make the place of an input, of the target on `output` ("" for the only one), and in the sample
/// weights.
ArrayPlace input_place(const Dataset& data, const std::string& name, const std::string& part);
ArrayPlace target_place(const Dataset& data, const std::string& output, const std::string& part);
ArrayPlace weight_place(const Dataset& data, const std::string& part);
/// A place in a target that is given alone.
ArrayPlace target_place();

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_DATA_ARRAY_PLACE_H_
