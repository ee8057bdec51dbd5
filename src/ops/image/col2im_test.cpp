#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {

std::vector<OpCase> col2im_cases() {
  std::vector<OpCase> cases;
  const auto add = [&](std::string name, const std::string& attributes, CaseInput x,
                       const std::vector<std::int64_t>& image,
                       const std::vector<std::int64_t>& block) {
    const bool is_integer = x.dtype != DataType::kUndefined;
    cases.push_back({.name = std::move(name),
                     .model = "y = Col2Im " + attributes + " (x, image, block)",
                     .inputs = {std::move(x), ints(image), ints(block)},
                     .no_gradient = is_integer ? "integers" : ""});
  };
  add("plain", "", uniform({2, 8, 6}, -1, 1), {3, 4}, {2, 2});
  add("strides", "<strides = [2, 3]>", uniform({1, 6, 4}, -1, 1), {5, 6}, {3, 2});
  add("pads", "<pads = [1, 0, 1, 2]>", uniform({1, 4, 30}, -1, 1), {4, 5}, {2, 2});
  add("dilations", "<dilations = [2, 3]>", uniform({1, 4, 6}, -1, 1), {5, 5}, {2, 2});
  add("row", "", uniform({2, 3, 4}, -1, 1), {6}, {3});
  add("row_pads", "<pads = [3, 3], strides = [2]>", uniform({1, 2, 5}, -1, 1), {4}, {2});
  add("volume", "", uniform({1, 16, 4}, -1, 1), {2, 3, 3}, {2, 2, 2});
  add("one", "", uniform({1, 1, 6}, -1, 1), {2, 3}, {1, 1});
  add("no_images", "", uniform({0, 4, 2}, -1, 1), {2, 3}, {2, 2});
  add("integers", "", integers({1, 4, 2}, -9, 9), {2, 3}, {2, 2});
  add("bytes", "", integers({1, 4, 2}, 0, 9, DataType::kUint8), {2, 3}, {2, 2});
  add("signed_words", "<strides = [1, 2]>", integers({1, 4, 4}, -9, 9, DataType::kInt16), {3, 4},
      {2, 2});
  return cases;
}

std::vector<ErrorCase> col2im_error_cases() {
  return {{.name = "blocks",
           .model = "[image] y = Col2Im (x, size, block)",
           .inputs = {uniform({1, 4, 3}, -1, 1), ints({2, 3}), ints({2, 2})},
           .error = "ShapeError",
           .fragments = {"image"}},
          {.name = "strides",
           .model = "[image] y = Col2Im <strides = [0, 1]> (x, size, block)",
           .inputs = {uniform({1, 4, 2}, -1, 1), ints({2, 3}), ints({2, 2})},
           .error = "ModelError",
           .fragments = {"image", "strides"}}};
}

}  // namespace onnxgrad::ops_test
