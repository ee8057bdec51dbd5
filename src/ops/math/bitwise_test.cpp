#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {

std::vector<OpCase> bitwise_cases() {
  std::vector<OpCase> cases;
  const auto add = [&](std::string name, std::string model, std::vector<CaseInput> inputs) {
    cases.push_back({.name = std::move(name),
                     .model = std::move(model),
                     .inputs = std::move(inputs),
                     .no_gradient = "integers"});
  };
  for (const std::string op : {"BitwiseAnd", "BitwiseOr", "BitwiseXor"}) {
    for (const DataType dtype :
         {DataType::kInt8, DataType::kInt16, DataType::kInt32, DataType::kInt64, DataType::kUint8,
          DataType::kUint16, DataType::kUint32, DataType::kUint64}) {
      add(op + "_" + std::string(dtype_name(dtype)), "y = " + op + " (a, b)",
          {integers({3, 4}, 0, 99, dtype), integers({3, 4}, 0, 99, dtype)});
    }
    add(op + "_broadcast", "y = " + op + " (a, b)",
        {integers({3, 1, 2}, -9, 9), integers({4, 1}, -9, 9)});
    add(op + "_scalar", "y = " + op + " (a, b)", {integers({}, -9, 9), integers({5}, -9, 9)});
    add(op + "_empty", "y = " + op + " (a, b)", {integers({0, 3}, 0, 9), integers({1}, 0, 9)});
  }
  add("not_int32", "y = BitwiseNot (a)", {integers({3, 4}, -9, 9, DataType::kInt32)});
  add("not_uint8", "y = BitwiseNot (a)", {integers({5}, 0, 255, DataType::kUint8)});
  add("not_one", "y = BitwiseNot (a)", {integers({1}, -9, 9)});
  add("not_empty", "y = BitwiseNot (a)", {integers({0, 2}, -9, 9)});
  add("not_scalar", "y = BitwiseNot (a)", {integers({}, 0, 9)});
  for (const std::string direction : {"LEFT", "RIGHT"}) {
    const std::string model = "y = BitShift <direction = \"" + direction + "\"> (a, b)";
    for (const DataType dtype :
         {DataType::kUint8, DataType::kUint16, DataType::kUint32, DataType::kUint64}) {
      add("shift_" + direction + "_" + std::string(dtype_name(dtype)), model,
          {integers({3, 4}, 0, 200, dtype), integers({4}, 0, 7, dtype)});
    }
    const auto small = [](Dims dims, std::int64_t high) {
      return integers(std::move(dims), 0, high, DataType::kUint8);
    };
    add("shift_" + direction + "_one", model, {small({1}, 200), small({2, 3}, 7)});
    add("shift_" + direction + "_empty", model, {small({0, 2}, 200), small({1}, 7)});
  }
  return cases;
}

std::vector<ErrorCase> bitwise_error_cases() {
  return {{.name = "direction",
           .model = "[shifted] y = BitShift <direction = \"UP\"> (a, b)",
           .inputs = {integers({2}, 0, 9, DataType::kUint8), integers({2}, 0, 3, DataType::kUint8)},
           .error = "ModelError",
           .fragments = {"shifted", "direction"}},
          {.name = "shapes",
           .model = "[both] y = BitwiseAnd (a, b)",
           .inputs = {integers({2}, 0, 9), integers({3}, 0, 9)},
           .error = "ShapeError",
           .fragments = {"both"}}};
}

}  // namespace onnxgrad::ops_test
