#include <limits>

#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {
namespace scatter {

CaseInput x(Dims dims) { return uniform(std::move(dims), 0.5, 2); }
CaseInput at(std::vector<double> numbers, Dims dims, DataType dtype = DataType::kInt64) {
  return values(std::move(numbers), std::move(dims), dtype);
}

const std::vector<std::string> kReductions = {"none", "add", "mul", "max", "min"};

void add_elements(std::vector<OpCase>& cases) {
  const auto add = [&cases](std::string name, const std::string& attributes, CaseInput data,
                            CaseInput indices) {
    const CaseInput updates = x(indices.dims);
    cases.push_back({.name = "elements_" + std::move(name),
                     .model = "y = ScatterElements " + attributes + " (x, indices, updates)",
                     .inputs = {std::move(data), std::move(indices), updates}});
  };
  for (const std::string& reduction : kReductions) {
    const std::string attribute = "reduction = \"" + reduction + "\"";
    add(reduction + "_rows", "<axis = 0, " + attribute + ">", x({4, 2}), at({0, 2, 1, -1}, {2, 2}));
    add(reduction + "_last", "<axis = -1, " + attribute + ">", x({2, 3}), at({0, 2, 1, 0}, {2, 2}));
    if (reduction == "none") continue;
    add(reduction + "_repeated", "<axis = 1, " + attribute + ">", x({2, 3}),
        at({0, 0, 0, 2, 2, 1}, {2, 3}));
  }
  add("default", "", x({5}), at({4, 0}, {2}));
  add("int32", "", x({5}), at({4, 0}, {2}, DataType::kInt32));
  add("no_indices", "", x({5}), at({}, {0}));
  add("one", "", x({1}), at({0}, {1}));
  add("fewer_columns", "<axis = 0>", x({3, 4}), at({2, 0}, {1, 2}));
}

void add_nd(std::vector<OpCase>& cases) {
  const auto add = [&cases](std::string name, const std::string& attributes, CaseInput data,
                            CaseInput indices, Dims updates) {
    cases.push_back({.name = "nd_" + std::move(name),
                     .model = "y = ScatterND " + attributes + " (x, indices, updates)",
                     .inputs = {std::move(data), std::move(indices), x(std::move(updates))}});
  };
  for (const std::string& reduction : kReductions) {
    const std::string attribute = "<reduction = \"" + reduction + "\">";
    add(reduction + "_rows", attribute, x({4, 2}), at({2, -4}, {2, 1}), {2, 2});
    add(reduction + "_elements", attribute, x({2, 3}), at({0, 1, 1, 2}, {2, 2}), {2});
    if (reduction == "none") continue;
    add(reduction + "_repeated", attribute, x({4, 2}), at({2, 2, 0}, {3, 1}), {3, 2});
  }
  add("default", "", x({3, 2, 2}), at({2, 0, 1, 1}, {2, 2}), {2, 2});
  add("table", "", x({4, 2}), at({2, 0}, {2, 1, 1}), {2, 1, 2});
  add("no_indices", "", x({4, 2}), at({}, {0, 1}), {0, 2});
  add("one", "", x({1}), at({0}, {1, 1}), {1});
}

// Zero factors: one in the data, one in the updates, two at one position.
void add_zeros(std::vector<OpCase>& cases) {
  cases.push_back({.name = "elements_mul_zeros",
                   .model = "y = ScatterElements <axis = 0, reduction = \"mul\"> "
                            "(x, indices, updates)",
                   .inputs = {values({0, 2, 0, 3}, {4}), at({0, 1, 1, 2, 3}, {5}),
                              values({2, 0, 3, 0, 4}, {5})}});
}

void add_integers(std::vector<OpCase>& cases) {
  for (const std::string& reduction : kReductions) {
    for (const DataType dtype : {DataType::kInt64, DataType::kInt32}) {
      cases.push_back(
          {.name = "nd_" + reduction + "_" + std::string(dtype_name(dtype)),
           .model = "y = ScatterND <reduction = \"" + reduction + "\"> (x, indices, updates)",
           .inputs = {integers({4, 2}, -5, 5, dtype), at({2, 0}, {2, 1}),
                      integers({2, 2}, -5, 5, dtype)},
           .no_gradient = "integers"});
    }
  }
  cases.push_back({.name = "elements_bool",
                   .model = "y = ScatterElements (x, indices, updates)",
                   .inputs = {integers({4}, 0, 1, DataType::kBool), at({2, 0}, {2}),
                              integers({2}, 0, 1, DataType::kBool)},
                   .no_gradient = "integers"});
}

}  // namespace scatter

std::vector<OpCase> scatter_cases() {
  std::vector<OpCase> cases;
  scatter::add_elements(cases);
  scatter::add_nd(cases);
  scatter::add_zeros(cases);
  scatter::add_integers(cases);
  return cases;
}

std::vector<ErrorCase> scatter_error_cases() {
  using scatter::at;
  using scatter::x;
  constexpr auto kMin = static_cast<double>(std::numeric_limits<std::int64_t>::min());
  std::vector<ErrorCase> cases;
  for (const double index : {4.0, -5.0, 0x1p40, kMin}) {
    for (const std::string reduction : {"none", "add"}) {
      const std::string attribute = " <reduction = \"" + reduction + "\"> ";
      cases.push_back({.name = "elements_index_" + std::to_string(cases.size()),
                       .model = "[put] y = ScatterElements" + attribute + "(x, indices, updates)",
                       .inputs = {x({4}), at({0, index}, {2}), x({2})},
                       .error = "DataError",
                       .fragments = {"put", "out of range"}});
      cases.push_back({.name = "nd_index_" + std::to_string(cases.size()),
                       .model = "[put] y = ScatterND" + attribute + "(x, indices, updates)",
                       .inputs = {x({4, 3}), at({0, index}, {2, 1}), x({2, 3})},
                       .error = "DataError",
                       .fragments = {"put", "out of range"}});
    }
  }
  cases.push_back({.name = "reduction",
                   .model = "[put] y = ScatterElements <reduction = \"avg\"> (x, indices, updates)",
                   .inputs = {x({4}), at({0, 1}, {2}), x({2})},
                   .error = "ModelError",
                   .fragments = {"put", "reduction", "add"}});
  cases.push_back({.name = "elements_shapes",
                   .model = "[put] y = ScatterElements (x, indices, updates)",
                   .inputs = {x({4}), at({0, 1}, {2}), x({3})},
                   .error = "ShapeError",
                   .fragments = {"put", "[2]", "[3]"}});
  cases.push_back({.name = "nd_shapes",
                   .model = "[put] y = ScatterND (x, indices, updates)",
                   .inputs = {x({4, 3}), at({0, 1}, {2, 1}), x({2, 2})},
                   .error = "ShapeError",
                   .fragments = {"put", "[2, 2]"}});
  return cases;
}

}  // namespace onnxgrad::ops_test
