#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {
namespace select {

CaseInput mask(Dims dims) { return integers(std::move(dims), 0, 1, DataType::kBool); }

void add_where(std::vector<OpCase>& cases) {
  const auto add = [&cases](std::string name, Dims condition, Dims a, Dims b) {
    cases.push_back({.name = "where_" + std::move(name),
                     .model = "y = Where (condition, a, b)",
                     .inputs = {mask(std::move(condition)), uniform(std::move(a), -1, 1),
                                uniform(std::move(b), -1, 1)}});
  };
  add("equal", {2, 3}, {2, 3}, {2, 3});
  add("row_condition", {3}, {2, 3}, {2, 1});
  add("row_operand", {2, 3}, {3}, {2, 3});
  add("wide_condition", {4, 1, 3}, {}, {2, 1});
  add("scalars", {}, {}, {});
  add("scalar_condition", {}, {3}, {3});
  add("empty", {0, 3}, {3}, {1});
  add("one", {1}, {1}, {1, 1});
  cases.push_back({.name = "where_int64",
                   .model = "y = Where (condition, a, b)",
                   .inputs = {mask({2, 3}), integers({2, 3}, -9, 9), integers({3}, -9, 9)},
                   .no_gradient = "integers"});
  cases.push_back({.name = "where_bool",
                   .model = "y = Where (condition, a, b)",
                   .inputs = {mask({2, 3}), mask({2, 3}), mask({3})},
                   .no_gradient = "bool"});
}

void add_clip(std::vector<OpCase>& cases) {
  const CaseInput x = values({-2, -0.6, -0.2, 0.3, 0.4, 1.7}, {2, 3});
  const CaseInput low = values({-0.5}, {});
  const CaseInput high = values({0.35}, {});
  cases.push_back(
      {.name = "clip_both", .model = "y = Clip (x, low, high)", .inputs = {x, low, high}});
  cases.push_back({.name = "clip_low", .model = "y = Clip (x, low)", .inputs = {x, low}});
  cases.push_back({.name = "clip_high", .model = "y = Clip (x, , high)", .inputs = {x, high}});
  cases.push_back({.name = "clip_none", .model = "y = Clip (x)", .inputs = {x}});
  cases.push_back({.name = "clip_constants",
                   .model = "y = Clip (x, low, high)",
                   .inputs = {x, low.constant(), high.constant()}});
  cases.push_back({.name = "clip_crossed",
                   .model = "y = Clip (x, low, high)",
                   .inputs = {x, values({0.9}, {}), values({-0.1}, {})}});
  for (const Dims& dims : {Dims{}, Dims{0, 2}, Dims{1}}) {
    cases.push_back({.name = "clip_rank_" + std::to_string(dims.rank()),
                     .model = "y = Clip (x, low, high)",
                     .inputs = {uniform(dims, -0.3, 0.3), low, high}});
  }
  cases.push_back({.name = "clip_int64",
                   .model = "y = Clip (x, low, high)",
                   .inputs = {integers({7}, -9, 9), int_scalar(-3), int_scalar(4)},
                   .no_gradient = "integers"});
}

void add_prelu(std::vector<OpCase>& cases) {
  const auto add = [&cases](std::string name, Dims x, Dims slope) {
    cases.push_back({.name = "prelu_" + std::move(name),
                     .model = "y = PRelu (x, slope)",
                     .inputs = {normal(std::move(x)), uniform(std::move(slope), 0.1, 0.9)}});
  };
  add("equal", {2, 3}, {2, 3});
  add("channel", {2, 3, 4}, {3, 1});
  add("scalar_slope", {2, 3}, {});
  add("scalars", {}, {});
  add("one", {1}, {1});
  add("empty", {2, 0}, {1});
}

}  // namespace select

std::vector<OpCase> select_cases() {
  std::vector<OpCase> cases;
  select::add_where(cases);
  select::add_clip(cases);
  select::add_prelu(cases);
  return cases;
}

std::vector<ErrorCase> select_error_cases() {
  return {
      {.name = "where_shapes",
       .model = "[choice] y = Where (condition, a, b)",
       .inputs = {select::mask({3}), uniform({3}, 0, 1), uniform({2}, 0, 1)},
       .error = "ShapeError",
       .fragments = {"choice", "[3]", "[2]"}},
      {.name = "where_condition",
       .model = "[choice] y = Where (condition, a, b)",
       .inputs = {integers({3}, 0, 1), uniform({3}, 0, 1), uniform({3}, 0, 1)},
       .error = "ModelError",
       .fragments = {"choice"}},
      {.name = "clip_type",
       .model = "[bounded] y = Clip (x, low)",
       .inputs = {uniform({3}, 0, 1), int_scalar(0)},
       .error = "ModelError",
       .fragments = {"bounded"}},
      {.name = "clip_bound_of_more_axes",
       .model = "[bounded] y = Clip (x, low)",
       .inputs = {uniform({}, 0, 1), uniform({1}, 0, 1)},
       .error = "ShapeError",
       .fragments = {"bounded", "rank 0"}},
      {.name = "prelu_shapes",
       .model = "[slopes] y = PRelu (x, slope)",
       .inputs = {uniform({3}, 0, 1), uniform({2}, 0, 1)},
       .error = "ShapeError",
       .fragments = {"slopes", "[3]", "[2]"}},
  };
}

}  // namespace onnxgrad::ops_test
