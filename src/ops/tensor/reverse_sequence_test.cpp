#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {

std::vector<OpCase> reverse_sequence_cases() {
  std::vector<OpCase> cases;
  const auto add = [&](std::string name, const std::string& attributes, CaseInput x,
                       CaseInput lengths) -> OpCase& {
    cases.push_back({.name = std::move(name),
                     .model = "y = ReverseSequence " + attributes + " (x, lengths)",
                     .inputs = {std::move(x), std::move(lengths)}});
    return cases.back();
  };
  const auto lengths = [](std::vector<double> numbers) {
    const auto size = static_cast<std::int64_t>(numbers.size());
    return values(std::move(numbers), {size}, DataType::kInt64);
  };
  add("time_first", "<time_axis = 0, batch_axis = 1>", uniform({4, 3, 2}, -1, 1),
      lengths({4, 1, 3}));
  add("batch_first", "<time_axis = 1, batch_axis = 0>", uniform({3, 4, 2}, -1, 1),
      lengths({2, 4, 3}));
  add("defaults", "", uniform({3, 2}, -1, 1), lengths({2, 3}));
  add("empty_batch", "", uniform({3, 0, 2}, -1, 1), lengths({}));
  add("empty_blocks", "", uniform({3, 2, 0}, -1, 1), lengths({2, 3}));
  add("one", "", uniform({1, 1}, -1, 1), lengths({1}));
  for (const DataType dtype : {DataType::kInt8, DataType::kInt32, DataType::kBool}) {
    add(std::string(dtype_name(dtype)), "", integers({3, 2}, 0, 1, dtype), lengths({2, 3}))
        .no_gradient = "integers";
  }
  return cases;
}

std::vector<ErrorCase> reverse_sequence_error_cases() {
  return {{.name = "too_long",
           .model = "[turned] y = ReverseSequence (x, lengths)",
           .inputs = {uniform({2, 2}, -1, 1), values({1, 3}, {2}, DataType::kInt64)},
           .error = "DataError",
           .fragments = {"turned", "3"}},
          {.name = "count",
           .model = "[turned] y = ReverseSequence (x, lengths)",
           .inputs = {uniform({2, 2}, -1, 1), values({1, 1, 1}, {3}, DataType::kInt64)},
           .error = "ShapeError",
           .fragments = {"turned"}},
          {.name = "same_axis",
           .model = "[turned] y = ReverseSequence <time_axis = 1> (x, lengths)",
           .inputs = {uniform({2, 2}, -1, 1), values({1, 1}, {2}, DataType::kInt64)},
           .error = "ShapeError",
           .fragments = {"turned"}},
          {.name = "axis",
           .model = "[turned] y = ReverseSequence <time_axis = 2> (x, lengths)",
           .inputs = {uniform({2, 2, 2}, -1, 1), values({1, 1}, {2}, DataType::kInt64)},
           .error = "ModelError",
           .fragments = {"turned", "time_axis"}}};
}

}  // namespace onnxgrad::ops_test
