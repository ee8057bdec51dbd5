#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {
namespace conv_transpose {

OpCase transposed(std::string name, std::string attributes, Dims x, Dims w) {
  return {.name = std::move(name),
          .model =
              "y = ConvTranspose " + (attributes.empty() ? "" : "<" + attributes + "> ") + "(x, w)",
          .inputs = {uniform(std::move(x), -1, 1), uniform(std::move(w), -1, 1)}};
}

OpCase fixed_sizes(OpCase one, std::string why) {
  one.static_only = std::move(why);
  return one;
}

OpCase beyond_others(OpCase one) {
  one.no_oracle = "onnxruntime wants the padding below the stride, ONNX's evaluator is wrong on it";
  return one;
}

}  // namespace conv_transpose

std::vector<OpCase> conv_transpose_cases() {
  using conv_transpose::beyond_others;
  using conv_transpose::fixed_sizes;
  using conv_transpose::transposed;
  const std::string by_size = "the pads depend on the kernel's or the input's size";
  return {
      transposed("plain", "", {2, 3, 3, 4}, {3, 2, 3, 2}),
      {.name = "bias",
       .model = "y = ConvTranspose <strides = [2, 2]> (x, w, b)",
       .inputs = {uniform({2, 3, 3, 2}, -1, 1), uniform({3, 2, 3, 3}, -1, 1), uniform({2}, -1, 1)}},
      transposed("kernel_shape", "kernel_shape = [3, 2]", {1, 2, 2, 2}, {2, 1, 3, 2}),
      transposed("one_axis", "strides = [3], pads = [1, 0]", {2, 2, 4}, {2, 3, 4}),
      transposed("three_axes", "strides = [1, 2, 1]", {1, 2, 2, 3, 2}, {2, 2, 2, 2, 2}),
      transposed("pads", "pads = [1, 0, 0, 2]", {1, 2, 4, 4}, {2, 2, 3, 3}),
      transposed("strides_and_pads", "strides = [2, 3], pads = [1, 1, 1, 1]", {1, 2, 3, 3},
                 {2, 2, 3, 4}),
      transposed("dilations", "dilations = [2, 3]", {1, 2, 3, 3}, {2, 2, 2, 2}),
      transposed("output_padding", "strides = [3, 2], output_padding = [2, 1]", {1, 2, 3, 3},
                 {2, 2, 3, 3}),
      beyond_others(transposed("output_padding_of_a_stride",
                               "dilations = [3, 3], output_padding = [2, 1]", {1, 1, 3, 3},
                               {1, 2, 2, 2})),
      transposed("no_images", "strides = [2, 2]", {0, 2, 3, 3}, {2, 2, 2, 2}),
      transposed("groups", "group = 2, strides = [2, 2]", {2, 4, 2, 3}, {4, 3, 2, 2}),
      transposed("depthwise", "group = 3", {1, 3, 3, 3}, {3, 1, 2, 2}),
      fixed_sizes(transposed("same_upper", "auto_pad = \"SAME_UPPER\", strides = [2, 2]",
                             {1, 2, 3, 3}, {2, 1, 3, 4}),
                  by_size),
      fixed_sizes(transposed("same_lower", "auto_pad = \"SAME_LOWER\", strides = [2, 2]",
                             {1, 2, 3, 3}, {2, 1, 3, 4}),
                  by_size),
      transposed("valid", "auto_pad = \"VALID\", strides = [2, 1]", {1, 2, 3, 3}, {2, 1, 3, 3}),
      transposed("notset", "auto_pad = \"NOTSET\", pads = [1, 1, 1, 1]", {1, 2, 3, 3},
                 {2, 1, 3, 3}),
      fixed_sizes(transposed("output_shape", "output_shape = [8, 7], strides = [3, 2]",
                             {1, 2, 3, 3}, {2, 2, 3, 3}),
                  by_size),
      fixed_sizes(transposed("output_shape_same_upper",
                             "output_shape = [6, 6], strides = [2, 2], auto_pad = \"SAME_UPPER\"",
                             {1, 2, 3, 3}, {2, 2, 3, 3}),
                  by_size),
      transposed("one_of_everything", "", {1, 1, 1, 1}, {1, 1, 1, 1}),
      transposed("many_channels", "strides = [2, 2], pads = [1, 1, 1, 1]", {2, 17, 4, 3},
                 {17, 18, 4, 4}),
  };
}

std::vector<ErrorCase> conv_transpose_error_cases() {
  const auto refused = [](std::string name, std::string attributes, Dims x, Dims w,
                          std::string error, std::vector<std::string> fragments) {
    OpCase one = conv_transpose::transposed(std::move(name), std::move(attributes), std::move(x),
                                            std::move(w));
    return as_error_case(std::move(one), std::move(error), std::move(fragments));
  };
  return {
      refused("channels", "", {1, 3, 4, 4}, {2, 2, 3, 3}, "ShapeError", {}),
      refused("groups", "group = 2", {1, 3, 4, 4}, {3, 2, 3, 3}, "ShapeError", {}),
      refused("all_cut_off", "pads = [3, 3, 3, 3]", {1, 1, 2, 2}, {1, 1, 2, 2}, "ShapeError", {}),
      refused("zero_stride", "strides = [0, 1]", {1, 1, 4, 4}, {1, 1, 3, 3}, "ModelError",
              {"strides"}),
      refused("negative_output_padding", "output_padding = [-1, 0]", {1, 1, 4, 4}, {1, 1, 3, 3},
              "ModelError", {"output_padding"}),
      refused("zero_output_shape", "output_shape = [0, 4]", {1, 1, 4, 4}, {1, 1, 3, 3},
              "ModelError", {"output_shape"}),
      refused("zero_group", "group = 0", {1, 1, 4, 4}, {1, 1, 3, 3}, "ModelError", {"group"}),
  };
}

}  // namespace onnxgrad::ops_test
