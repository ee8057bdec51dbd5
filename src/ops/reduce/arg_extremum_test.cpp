#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {

std::vector<OpCase> arg_extremum_cases() {
  std::vector<OpCase> cases;
  const CaseInput tied = values({1, 3, 3, 2, 2, 0, 0, 4}, {2, 4});
  for (const std::string op : {"ArgMax", "ArgMin"}) {
    const auto add = [&](std::string name, const std::string& attributes, CaseInput x) {
      cases.push_back({.name = op + "_" + std::move(name),
                       .model = "y = " + op + " " + attributes + " (x)",
                       .inputs = {std::move(x)},
                       .no_gradient = "integer output"});
    };
    add("default", "", uniform({3, 4}, -1, 1));
    add("first", "<axis = 0, keepdims = 1, select_last_index = 0>", tied);
    add("last", "<axis = 1, keepdims = 0, select_last_index = 1>", tied);
    add("negative", "<axis = -1>", tied);
    add("inner", "<axis = -2, keepdims = 0>", uniform({2, 3, 4}, -1, 1));
    add("vector", "<keepdims = 0>", uniform({5}, -1, 1));
    add("one", "<axis = 0>", uniform({1}, -1, 1));
    add("no_rows", "<axis = 1>", uniform({0, 3}, -1, 1));
    add("int64", "<axis = 1>", integers({3, 4}, -3, 3));
    add("int32", "<axis = 1>", integers({3, 4}, -3, 3, DataType::kInt32));
    for (const DataType dtype : {DataType::kInt16, DataType::kInt8, DataType::kUint64,
                                 DataType::kUint32, DataType::kUint16, DataType::kUint8}) {
      add(std::string(dtype_name(dtype)), "<axis = 1>", integers({3, 4}, 0, 5, dtype));
    }
  }
  return cases;
}

std::vector<ErrorCase> arg_extremum_error_cases() {
  std::vector<ErrorCase> cases;
  for (const std::string op : {"ArgMax", "ArgMin"}) {
    cases.push_back({.name = op + "_axis",
                     .model = "[best] y = " + op + " <axis = 2> (x)",
                     .inputs = {uniform({2, 3}, -1, 1)},
                     .error = "ShapeError",
                     .fragments = {"best", "2"}});
    cases.push_back({.name = op + "_nothing",
                     .model = "[best] y = " + op + " <axis = 1> (x)",
                     .inputs = {uniform({2, 0}, -1, 1)},
                     .error = "ShapeError",
                     .fragments = {"best", "[2, 0]"}});
    cases.push_back({.name = op + "_flag",
                     .model = "[best] y = " + op + " <select_last_index = 2> (x)",
                     .inputs = {uniform({2, 3}, -1, 1)},
                     .error = "ModelError",
                     .fragments = {"best", "select_last_index"}});
  }
  return cases;
}

}  // namespace onnxgrad::ops_test
