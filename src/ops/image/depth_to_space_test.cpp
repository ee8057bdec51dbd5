#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {

std::vector<OpCase> depth_to_space_cases() {
  std::vector<OpCase> cases;
  const auto add = [&](std::string name, const std::string& op, const std::string& attributes,
                       CaseInput x) {
    const bool is_integer = x.dtype != DataType::kUndefined;
    cases.push_back({.name = std::move(name),
                     .model = "y = " + op + " <" + attributes + "> (x)",
                     .inputs = {std::move(x)},
                     .no_gradient = is_integer ? "integers" : ""});
  };
  for (const std::string mode : {"DCR", "CRD"}) {
    const std::string with_mode = ", mode = \"" + mode + "\"";
    add(mode, "DepthToSpace", "blocksize = 2" + with_mode, uniform({2, 8, 2, 3}, -1, 1));
    add(mode + "_three", "DepthToSpace", "blocksize = 3" + with_mode, uniform({1, 9, 1, 2}, -1, 1));
    add(mode + "_no_images", "DepthToSpace", "blocksize = 2" + with_mode,
        uniform({0, 4, 1, 1}, -1, 1));
    add(mode + "_bytes", "DepthToSpace", "blocksize = 2" + with_mode,
        integers({1, 8, 2, 2}, 0, 100, DataType::kUint8));
  }
  add("default", "DepthToSpace", "blocksize = 2", uniform({1, 4, 2, 2}, -1, 1));
  add("depth", "SpaceToDepth", "blocksize = 2", uniform({2, 3, 4, 6}, -1, 1));
  add("depth_three", "SpaceToDepth", "blocksize = 3", uniform({1, 1, 3, 6}, -1, 1));
  add("depth_no_images", "SpaceToDepth", "blocksize = 2", uniform({0, 1, 2, 2}, -1, 1));
  add("depth_int16", "SpaceToDepth", "blocksize = 2",
      integers({1, 2, 2, 4}, -9, 9, DataType::kInt16));
  return cases;
}

std::vector<ErrorCase> depth_to_space_error_cases() {
  return {
      {.name = "channels",
       .model = "[blocks] y = DepthToSpace <blocksize = 2> (x)",
       .inputs = {uniform({1, 6, 2, 2}, -1, 1)},
       .error = "ShapeError",
       .fragments = {"blocks"}},
      {.name = "height",
       .model = "[blocks] y = SpaceToDepth <blocksize = 2> (x)",
       .inputs = {uniform({1, 1, 3, 2}, -1, 1)},
       .error = "ShapeError",
       .fragments = {"blocks"}},
      {.name = "blocksize",
       .model = "[blocks] y = SpaceToDepth <blocksize = 0> (x)",
       .inputs = {uniform({1, 1, 2, 2}, -1, 1)},
       .error = "ModelError",
       .fragments = {"blocks", "blocksize"}},
  };
}

}  // namespace onnxgrad::ops_test
