#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {

std::vector<OpCase> affine_grid_cases() {
  std::vector<OpCase> cases;
  const auto grid = [&](std::string name, std::int64_t align, Dims theta, CaseInput size) {
    cases.push_back(
        {.name = std::move(name),
         .model = "y = AffineGrid <align_corners = " + std::to_string(align) + "> (theta, size)",
         .inputs = {uniform(std::move(theta), -1, 1), std::move(size)}});
  };
  for (const std::int64_t align : {0, 1}) {
    const std::string corners = align == 0 ? "_cells" : "_corners";
    grid("picture" + corners, align, {2, 2, 3}, ints({2, 5, 3, 4}));
    grid("volume" + corners, align, {2, 3, 4}, ints({2, 1, 2, 3, 4}));
    grid("one_picture" + corners, align, {1, 2, 3}, ints({1, 1, 2, 3}));
  }
  grid("one_point", 0, {1, 2, 3}, ints({1, 1, 1, 1}));
  grid("size_fed", 0, {2, 2, 3}, ints({2, 1, 3, 2}).fed());
  cases.back().static_only = "that it is of pictures follows from a size of theta or of size";
  grid("no_pictures", 0, {0, 2, 3}, ints({0, 1, 3, 2}));
  cases.push_back({.name = "default",
                   .model = "y = AffineGrid (theta, size)",
                   .inputs = {uniform({2, 2, 3}, -1, 1), ints({2, 1, 3, 2})}});
  cases.push_back({.name = "size_of_picture",
                   .model = "size = Shape (x)\ny = AffineGrid (theta, size)",
                   .inputs = {uniform({2, 1, 3, 2}, -1, 1), uniform({2, 2, 3}, -1, 1)},
                   .wrt = {"theta"}});
  return cases;
}

std::vector<ErrorCase> affine_grid_error_cases() {
  return {
      {.name = "theta_of_volume",
       .model = "[warp] y = AffineGrid (theta, size)",
       .inputs = {uniform({2, 3, 4}, -1, 1), ints({2, 1, 3, 2})},
       .error = "ShapeError",
       .fragments = {"warp", "theta"}},
      {.name = "no_size",
       .model = "[warp] y = AffineGrid (theta)",
       .inputs = {uniform({2, 2, 3}, -1, 1)},
       .error = "ModelError",
       .fragments = {"warp", "1 inputs, expected 2"}},
      {.name = "flag",
       .model = "[warp] y = AffineGrid <align_corners = 2> (theta, size)",
       .inputs = {uniform({2, 2, 3}, -1, 1), ints({2, 1, 3, 2})},
       .error = "ModelError",
       .fragments = {"warp", "align_corners"}},
  };
}

}  // namespace onnxgrad::ops_test
