#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {

std::vector<OpCase> bitcast_cases() {
  std::vector<OpCase> cases;
  const auto add = [&](std::string name, DataType to, CaseInput x) {
    const auto number = std::to_string(static_cast<int>(to));
    cases.push_back({.name = std::move(name),
                     .model = "y = BitCast <to = " + number + "> (x)",
                     .inputs = {std::move(x)},
                     .no_gradient = "bits have none"});
  };
  add("int32_to_float", DataType::kFloat32, integers({2, 3}, 0, 99, DataType::kInt32));
  add("int64_to_double", DataType::kFloat64, integers({2, 3}, 0, 99));
  add("uint8_to_int8", DataType::kInt8, integers({7}, 0, 255, DataType::kUint8));
  add("float_to_int32", DataType::kInt32, uniform({1, 3}, -1, 1).as(DataType::kFloat32));
  add("scalar", DataType::kUint64, integers({}, -9, 9));
  add("empty", DataType::kUint64, integers({0, 2}, -9, 9));
  return cases;
}

std::vector<ErrorCase> bitcast_error_cases() {
  return {{.name = "width",
           .model = "[bits] y = BitCast <to = 7> (x)",
           .inputs = {integers({2}, 0, 9, DataType::kInt32)},
           .error = "ShapeError",
           .fragments = {"bits"}}};
}

}  // namespace onnxgrad::ops_test
