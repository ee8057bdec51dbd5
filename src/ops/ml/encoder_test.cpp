#include <cmath>

#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {
namespace encoder {

OpCase ml(std::string name, const std::string& call, std::vector<CaseInput> inputs,
          std::string no_gradient = "a lookup is constant almost everywhere") {
  return ml_call(std::move(name), call, std::move(inputs), std::move(no_gradient));
}

}  // namespace encoder

std::vector<OpCase> encoder_cases() {
  using encoder::ml;
  // String cases are in tests/python/test_ml_operators.py.
  const std::string ints = "keys_int64s = [0, 3, 1000000], values_int64s = [5, 6, 7]";
  const std::string floats = "keys_floats = [0.5, 2.0], values_floats = [1.5, 2.5]";
  const CaseInput halves = values({0.5, 2, 1}, {3}, DataType::kFloat32);
  return {
      ml("ints", "LabelEncoder <" + ints + ", default_int64 = -7> (x)", {integers({2, 4}, 0, 4)}),
      ml("ints_nothing", "LabelEncoder <" + ints + "> (x)", {integers({0, 4}, 0, 4)}),
      ml("ints_one", "LabelEncoder <" + ints + "> (x)", {integers({1}, 3, 3)}),
      ml("floats", "LabelEncoder <" + floats + ", default_float = 9.0> (x)", {halves}),
      ml("tensors",
         "LabelEncoder <keys_tensor = int64[2] {1, 2}, values_tensor = float[2] {0.5, 1.5}, "
         "default_tensor = float[1] {-1}> (x)",
         {integers({5}, 0, 4)}),
      ml("floats_nan",
         "LabelEncoder <keys_floats = [2.0, 0.5, 2.0], values_int64s = [4, 5, 6]> (x)",
         {values({2, std::nan(""), 0.5, 3}, {4}, DataType::kFloat32)}),
      ml("int32_to_double",
         "LabelEncoder <keys_tensor = int32[3] {7, -7, 0}, values_tensor = double[3] {0.5, 1.5, "
         "2.5}, default_tensor = double[1] {-1}> (x)",
         {values({0, 7, -7, 8}, {4}, DataType::kInt32)}),
      ml("int64_to_int16",
         "LabelEncoder <keys_int64s = [4, 2, 5], values_tensor = int16[3] {1, 2, 3}, "
         "default_tensor = int16[1] {9}> (x)",
         {integers({6}, 2, 5)}),
      ml("one_hot", "OneHotEncoder <cats_int64s = [2, 0]> (x)", {integers({3, 1}, 0, 3)}),
      ml("one_hot_strict", "OneHotEncoder <cats_int64s = [2, 0, 1], zeros = 0> (x)",
         {integers({3, 1}, 0, 2)}),
      ml("one_hot_lenient", "OneHotEncoder <cats_int64s = [2, 0, 1], zeros = 1> (x)",
         {values({2, 0.5, -9}, {3}, DataType::kFloat32)}),
      ml("one_hot_nothing", "OneHotEncoder <cats_int64s = [2, 0, 1]> (x)",
         {integers({0, 1}, 0, 2)}),
  };
}

std::vector<ErrorCase> encoder_error_cases() {
  const CaseInput x = integers({3}, 5, 5);
  return {
      ml_refused("lengths", "LabelEncoder <keys_int64s = [1], values_int64s = [1, 2]> (x)", {x},
                 "ShapeError", "keys 1"),
      ml_refused("mapper", "CategoryMapper <cats_int64s = [1]> (x)", {x}, "ModelError",
                 "0 strings"),
      ml_refused("unknown", "OneHotEncoder <cats_int64s = [1, 2], zeros = 0> (x)", {x}, "DataError",
                 "not one of its 2 categories"),
  };
}

}  // namespace onnxgrad::ops_test
