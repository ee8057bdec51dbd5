#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {

std::vector<OpCase> max_unpool_cases() {
  return {
      {.name = "plane",
       .model = "y = MaxUnpool <kernel_shape = [2, 2], strides = [2, 2]> (x, i)",
       .inputs = {uniform({1, 1, 2, 2}, -1, 1),
                  values({1, 7, 8, 14}, {1, 1, 2, 2}, DataType::kInt64)}},
      {.name = "pads",
       .model = "y = MaxUnpool <kernel_shape = [3], strides = [2], pads = [1, 0]> (x, i)",
       .inputs = {uniform({1, 2, 3}, -1, 1),
                  values({0, 3, 5, 7, 8, 10}, {1, 2, 3}, DataType::kInt64)}},
      {.name = "output_shape",
       .model = "y = MaxUnpool <kernel_shape = [2, 2], strides = [2, 2]> (x, i, shape)",
       .inputs = {uniform({1, 1, 2, 2}, -1, 1),
                  values({5, 7, 13, 15}, {1, 1, 2, 2}, DataType::kInt64), ints({1, 1, 5, 6})}},
      {.name = "of_pool",
       .model = "p, i = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x)\n"
                "q = Mul (p, p)\n"
                "y = MaxUnpool <kernel_shape = [2, 2], strides = [2, 2]> (q, i)",
       .inputs = {uniform({2, 2, 4, 6}, -1, 1)}},
      {.name = "unit_strides",
       .model = "y = MaxUnpool <kernel_shape = [2]> (x, i)",
       .inputs = {uniform({1, 1, 3}, -1, 1), values({3, 1, 0}, {1, 1, 3}, DataType::kInt64)}},
      {.name = "no_images",
       .model = "y = MaxUnpool <kernel_shape = [2], strides = [2]> (x, i)",
       .inputs = {uniform({0, 1, 3}, -1, 1), values({}, {0, 1, 3}, DataType::kInt64)}},
  };
}

std::vector<ErrorCase> max_unpool_error_cases() {
  return {{.name = "strides",
           .model = "[spread] y = MaxUnpool <kernel_shape = [2], strides = [2, 2]> (x, i)",
           .inputs = {uniform({1, 1, 3}, -1, 1), values({0, 1, 2}, {1, 1, 3}, DataType::kInt64)},
           .error = "ModelError",
           .fragments = {"spread", "strides"}}};
}

}  // namespace onnxgrad::ops_test
