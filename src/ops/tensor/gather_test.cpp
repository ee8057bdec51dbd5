#include <limits>

#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {
namespace gather {

CaseInput x(Dims dims) { return uniform(std::move(dims), -1, 1); }
CaseInput at(std::vector<double> numbers, Dims dims, DataType dtype = DataType::kInt64) {
  return values(std::move(numbers), std::move(dims), dtype);
}

void add_gather(std::vector<OpCase>& cases) {
  const auto add = [&cases](std::string name, const std::string& axis, CaseInput data,
                            CaseInput indices) {
    cases.push_back({.name = std::move(name),
                     .model = "y = Gather " + axis + " (x, indices)",
                     .inputs = {std::move(data), std::move(indices)}});
  };
  add("rows", "", x({4, 3}), at({2, 0, 2}, {3}));
  add("table", "<axis = 0>", x({4, 3}), at({2, 0, -1, 1, 2, 3}, {2, 3}));
  add("columns", "<axis = 1>", x({2, 4}), at({3, 3, 0}, {3}));
  add("last", "<axis = -1>", x({2, 3, 4}), at({1, -4}, {2}));
  add("middle_table", "<axis = 1>", x({2, 3, 4}), at({1, 2, 0, 1}, {2, 2}));
  add("scalar_index", "<axis = 0>", x({4, 3}), at({2}, {}));
  add("scalar_index_last", "<axis = -1>", x({4, 3}), at({-1}, {}));
  add("int32", "<axis = 1>", x({2, 4}), at({3, 1}, {2}, DataType::kInt32));
  add("constant_indices", "", x({4, 3}), ints({1, 1}));
  add("no_indices", "", x({4, 3}), at({}, {0}));
  add("empty_rows", "<axis = 1>", x({0, 3}), at({2, 0}, {2}));
  add("one", "", x({1}), at({0}, {1}));
  cases.push_back({.name = "gather_bool",
                   .model = "y = Gather (x, indices)",
                   .inputs = {integers({4, 3}, 0, 1, DataType::kBool), at({2, 0}, {2})},
                   .no_gradient = "integers"});
}

void add_elements(std::vector<OpCase>& cases) {
  const auto add = [&cases](std::string name, const std::string& axis, CaseInput data,
                            CaseInput indices) {
    cases.push_back({.name = "elements_" + std::move(name),
                     .model = "y = GatherElements " + axis + " (x, indices)",
                     .inputs = {std::move(data), std::move(indices)}});
  };
  add("rows", "<axis = 0>", x({3, 2}), at({0, 2, 1, 1, -1, 0, 0, 0}, {4, 2}));
  add("columns", "<axis = 1>", x({2, 3}), at({0, 2, 1, 1}, {2, 2}));
  add("last", "<axis = -1>", x({2, 2, 3}), at({0, 2, 1, 1}, {2, 2, 1}));
  add("fewer_rows", "<axis = 1>", x({3, 3}), at({0, 2}, {1, 2}));
  add("vector", "", x({5}), at({4, 4, 0}, {3}));
  add("int32", "", x({5}), at({4, 4, 0}, {3}, DataType::kInt32));
  add("no_indices", "", x({5}), at({}, {0}));
  add("one", "", x({1}), at({0}, {1}));
}

void add_nd(std::vector<OpCase>& cases) {
  const auto add = [&cases](std::string name, const std::string& batch, CaseInput data,
                            CaseInput indices) {
    cases.push_back({.name = "nd_" + std::move(name),
                     .model = "y = GatherND " + batch + " (x, indices)",
                     .inputs = {std::move(data), std::move(indices)}});
  };
  add("elements", "", x({2, 3}), at({0, 1, 1, 2, 0, 1}, {3, 2}));
  add("rows", "<batch_dims = 0>", x({3, 2}), at({2, 0, -1}, {3, 1}));
  add("table_of_rows", "", x({3, 2, 2}), at({2, 0, 1, 1}, {2, 1, 2}));
  add("batch", "<batch_dims = 1>", x({2, 3, 2}), at({2, 0}, {2, 1}));
  add("batch_table", "<batch_dims = 1>", x({2, 3, 2}), at({2, 0, 1, 1, 0, 0}, {2, 3, 1}));
  add("two_batch_axes", "<batch_dims = 2>", x({2, 2, 3}), at({2, 0, 1, 1}, {2, 2, 1}));
  add("no_indices", "", x({2, 3}), at({}, {0, 2}));
  add("one", "", x({1}), at({0}, {1, 1}));
}

}  // namespace gather

std::vector<OpCase> gather_cases() {
  std::vector<OpCase> cases;
  gather::add_gather(cases);
  gather::add_elements(cases);
  gather::add_nd(cases);
  return cases;
}

std::vector<ErrorCase> gather_error_cases() {
  using gather::at;
  using gather::x;
  constexpr auto kMin = static_cast<double>(std::numeric_limits<std::int64_t>::min());
  std::vector<ErrorCase> cases;
  // Indices just out of range and far out of range, fed and constant.
  for (const double index : {4.0, -5.0, 0x1p40, kMin}) {
    for (const bool is_constant : {false, true}) {
      const auto add = [&](const std::string& op, CaseInput data, CaseInput indices) {
        cases.push_back({.name = op + std::to_string(cases.size()),
                         .model = "[picked] y = " + op + " (x, indices)",
                         .inputs = {std::move(data), is_constant ? indices.constant() : indices},
                         .error = "DataError",
                         .fragments = {"picked", "out of range"}});
      };
      if (!is_constant) {
        const std::string number = std::to_string(static_cast<std::int64_t>(index));
        cases.push_back({.name = "place" + std::to_string(cases.size()),
                         .model = "[picked] y = Gather (x, indices)",
                         .inputs = {x({4, 3}), at({0, 1, 2, index}, {2, 2})},
                         .error = "DataError",
                         .fragments = {"index " + number + " of 'indices' at [1, 1]", "[-4, 4)"}});
      }
      add("Gather", x({4, 3}), at({0, index}, {2}));
      add("GatherElements", x({4}), at({0, index}, {2}));
      add("GatherND", x({4, 3}), at({0, index}, {2, 1}));
    }
  }
  cases.push_back({.name = "axis",
                   .model = "[picked] y = Gather <axis = 2> (x, indices)",
                   .inputs = {x({4, 3}), at({0}, {1})},
                   .error = "ShapeError",
                   .fragments = {"picked"}});
  cases.push_back({.name = "elements_rank",
                   .model = "[picked] y = GatherElements (x, indices)",
                   .inputs = {x({4, 3}), at({0}, {1})},
                   .error = "ShapeError",
                   .fragments = {"picked"}});
  cases.push_back({.name = "elements_more_columns",
                   .model = "[picked] y = GatherElements (x, indices)",
                   .inputs = {x({4, 1}), at({0, 0}, {1, 2})},
                   .error = "ShapeError",
                   .fragments = {"picked"}});
  cases.push_back({.name = "nd_depth",
                   .model = "[picked] y = GatherND (x, indices)",
                   .inputs = {x({4, 3}), at({0, 0, 0}, {1, 3})},
                   .error = "ShapeError",
                   .fragments = {"picked"}});
  cases.push_back({.name = "nd_batch",
                   .model = "[picked] y = GatherND <batch_dims = -1> (x, indices)",
                   .inputs = {x({4, 3}), at({0}, {1, 1})},
                   .error = "ModelError",
                   .fragments = {"picked", "batch_dims"}});
  return cases;
}

}  // namespace onnxgrad::ops_test
