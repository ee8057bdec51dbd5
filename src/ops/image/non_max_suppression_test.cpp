#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {

std::vector<OpCase> non_max_suppression_cases() {
  std::vector<OpCase> cases;
  const CaseInput boxes = values(
      {0, 0, 1, 1, 0, 0.1, 1, 1.1, 0, -0.1, 1, 0.9, 0, 10, 1, 11, 0, 10.1, 1, 11.1, 0, 100, 1, 101},
      {1, 6, 4}, DataType::kFloat32);
  const CaseInput scores = values({0.9, 0.75, 0.6, 0.95, 0.5, 0.3}, {1, 1, 6}, DataType::kFloat32);
  const auto add = [&](std::string name, const std::string& attributes, CaseInput box,
                       CaseInput score, std::int64_t most, double overlap, double least) {
    cases.push_back(
        {.name = std::move(name),
         .model = "y = NonMaxSuppression " + attributes + " (boxes, scores, most, overlap, least)",
         .inputs = {std::move(box), std::move(score), ints({most}),
                    values({overlap}, {1}, DataType::kFloat32).constant(),
                    values({least}, {1}, DataType::kFloat32).constant()},
         .no_gradient = "numbers of boxes"});
  };
  add("corners", "<center_point_box = 0>", boxes, scores, 3, 0.5, 0);
  add("scores", "", boxes, scores, 3, 0.5, 0.4);
  add("two", "", boxes, scores, 2, 0.5, 0);
  add("none", "", boxes, scores, 0, 0.5, 0);
  add("flipped", "",
      values({1, 1, 0, 0, 0, 0.1, 1, 1.1, 1, 0.9, 0, -0.1}, {1, 3, 4}, DataType::kFloat32),
      values({0.9, 0.75, 0.6}, {1, 1, 3}, DataType::kFloat32), 3, 0.5, 0);
  add("centres", "<center_point_box = 1>",
      values({0.5, 0.5, 1, 1, 0.5, 0.6, 1, 1, 0.5, 10.5, 1, 1}, {1, 3, 4}, DataType::kFloat32),
      values({0.9, 0.75, 0.6}, {1, 1, 3}, DataType::kFloat32), 3, 0.5, 0);
  add("classes", "", uniform({2, 5, 4}, 0, 1).as(DataType::kFloat32),
      uniform({2, 3, 5}, 0, 1).as(DataType::kFloat32), 4, 0.2, 0.3);
  add("equal_scores", "", boxes,
      values({0.5, 0.5, 0.5, 0.5, 0.5, 0.5}, {1, 1, 6}, DataType::kFloat32), 6, 0.5, 0);
  add("no_boxes", "", values({}, {1, 0, 4}, DataType::kFloat32),
      values({}, {1, 2, 0}, DataType::kFloat32), 3, 0.5, 0);
  cases.push_back({.name = "default",
                   .model = "y = NonMaxSuppression (boxes, scores, most)",
                   .inputs = {boxes, scores, ints({3})},
                   .no_gradient = "numbers of boxes"});
  return cases;
}

std::vector<ErrorCase> non_max_suppression_error_cases() {
  return {{.name = "flag",
           .model = "[boxes] y = NonMaxSuppression <center_point_box = 2> (b, s)",
           .inputs = {uniform({1, 2, 4}, 0, 1).as(DataType::kFloat32),
                      uniform({1, 1, 2}, 0, 1).as(DataType::kFloat32)},
           .error = "ModelError",
           .fragments = {"boxes", "center_point_box"}}};
}

}  // namespace onnxgrad::ops_test
