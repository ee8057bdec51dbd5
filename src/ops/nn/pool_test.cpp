#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "device/testing/instruction_sets.h"
#include "ops/testing/kernel_run.h"
#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {
namespace pool {

// Windows of every kind, for both MaxPool and AveragePool.
struct Windows {
  std::string name;
  std::string attributes;
  Dims x;
};

std::vector<Windows> windows() {
  return {
      {"plain", "kernel_shape = [2, 2]", {2, 3, 5, 4}},
      {"strides", "kernel_shape = [2, 2], strides = [2, 2]", {1, 2, 4, 6}},
      {"overlapping", "kernel_shape = [3, 3], strides = [2, 1]", {1, 2, 7, 5}},
      {"stride_beyond_kernel", "kernel_shape = [1, 2], strides = [2, 3]", {1, 2, 5, 8}},
      {"pads", "kernel_shape = [3, 2], pads = [1, 0, 1, 1]", {1, 2, 4, 4}},
      {"pads_and_strides",
       "kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 0, 1]",
       {1, 2, 6, 5}},
      {"dilations", "kernel_shape = [2, 3], dilations = [3, 2]", {1, 2, 6, 7}},
      {"dilations_and_pads",
       "kernel_shape = [2, 2], dilations = [2, 3], pads = [1, 1, 1, 1]",
       {1, 1, 4, 5}},
      {"ceil", "kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1", {1, 2, 6, 7}},
      {"ceil_and_pads",
       "kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1], ceil_mode = 1",
       {1, 2, 6, 5}},
      {"ceil_beyond", "kernel_shape = [3, 3], strides = [2, 3], ceil_mode = 1", {1, 2, 2, 5}},
      {"floor", "kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 0", {1, 2, 6, 7}},
      {"same_upper",
       "kernel_shape = [3, 2], strides = [2, 2], auto_pad = \"SAME_UPPER\"",
       {1, 2, 5, 6}},
      {"same_lower",
       "kernel_shape = [3, 2], strides = [2, 2], auto_pad = \"SAME_LOWER\"",
       {1, 2, 5, 6}},
      {"same_upper_without_strides",
       "kernel_shape = [2, 4], auto_pad = \"SAME_UPPER\"",
       {1, 1, 3, 5}},
      {"valid", "kernel_shape = [2, 2], strides = [2, 3], auto_pad = \"VALID\"", {1, 2, 5, 6}},
      {"notset", "kernel_shape = [2, 2], pads = [1, 1, 0, 0], auto_pad = \"NOTSET\"", {1, 2, 3, 3}},
      {"one_axis", "kernel_shape = [3], strides = [2], pads = [1, 0]", {2, 2, 7}},
      {"three_axes",
       "kernel_shape = [2, 1, 2], strides = [1, 2, 2], pads = [1, 0, 0, 0, 0, 1]",
       {1, 2, 3, 4, 5}},
      {"whole_image", "kernel_shape = [3, 4]", {2, 2, 3, 4}},
      {"one_element", "kernel_shape = [1, 1]", {1, 1, 1, 1}},
      {"no_images", "kernel_shape = [2, 2]", {0, 2, 3, 3}},
  };
}

}  // namespace pool

std::vector<OpCase> pool_cases() {
  std::vector<OpCase> cases;
  for (const pool::Windows& one : pool::windows()) {
    cases.push_back({.name = "max_" + one.name,
                     .model = "y = MaxPool <" + one.attributes + "> (x)",
                     .inputs = {uniform(one.x, -3, 3)}});
    cases.push_back({.name = "average_" + one.name,
                     .model = "y = AveragePool <" + one.attributes + "> (x)",
                     .inputs = {uniform(one.x, -1, 1)}});
    cases.push_back({.name = "average_include_pad_" + one.name,
                     .model = "y = AveragePool <" + one.attributes + ", count_include_pad = 1> (x)",
                     .inputs = {uniform(one.x, -1, 1)}});
  }
  for (const std::string order : {"0", "1"}) {
    cases.push_back({.name = "max_indices_order_" + order,
                     .model = "y, i = MaxPool <kernel_shape = [2, 3], strides = [2, 1], "
                              "storage_order = " +
                              order + "> (x)",
                     .inputs = {uniform({2, 2, 4, 5}, -3, 3)}});
    cases.push_back(
        {.name = "max_indices_three_axes_order_" + order,
         .model = "y, i = MaxPool <kernel_shape = [2, 2, 2], storage_order = " + order + "> (x)",
         .inputs = {uniform({1, 2, 3, 4, 2}, -3, 3)}});
  }
  cases.push_back({.name = "average_exclude_pad",
                   .model = "y = AveragePool <kernel_shape = [2, 2], pads = [1, 1, 1, 1], "
                            "count_include_pad = 0> (x)",
                   .inputs = {uniform({1, 1, 3, 3}, -1, 1)}});
  cases.push_back({.name = "max_first_of_equal",
                   .model = "y = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x)",
                   .inputs = {values({1, 1, 2, 0, 1, 1, 2, 2}, {1, 1, 2, 4})},
                   .no_gradient = "equal elements are a kink",
                   .expected = {{1, 2}}});
  cases.push_back({.name = "max_bytes",
                   .model = "y = MaxPool <kernel_shape = [2, 2]> (x)",
                   .inputs = {integers({1, 1, 3, 3}, 0, 255, DataType::kUint8)},
                   .no_gradient = "integers"});
  cases.push_back({.name = "max_signed_bytes",
                   .model = "y = MaxPool <kernel_shape = [2, 2]> (x)",
                   .inputs = {integers({1, 1, 3, 3}, -128, 127, DataType::kInt8)},
                   .no_gradient = "integers"});
  for (const std::string op : {"GlobalAveragePool", "GlobalMaxPool"}) {
    const auto add = [&](std::string name, Dims x) {
      cases.push_back({.name = op + "_" + name,
                       .model = "y = " + op + " (x)",
                       .inputs = {uniform(std::move(x), -3, 3)}});
    };
    add("images", {2, 3, 3, 4});
    add("one_axis", {2, 3, 5});
    add("three_axes", {1, 2, 2, 3, 2});
    add("one_position", {2, 2, 1, 1});
    add("no_images", {0, 2, 2, 2});
  }
  return cases;
}

std::vector<ErrorCase> pool_error_cases() {
  std::vector<ErrorCase> cases;
  for (const std::string op : {"MaxPool", "AveragePool"}) {
    const auto add = [&](std::string name, const std::string& attributes, Dims x, std::string error,
                         std::vector<std::string> fragments) {
      fragments.emplace_back("head");
      cases.push_back({.name = op + "_" + name,
                       .model = "[head] y = " + op + " <" + attributes + "> (x)",
                       .inputs = {uniform(std::move(x), -1, 1)},
                       .error = std::move(error),
                       .fragments = std::move(fragments)});
    };
    add("no_kernel", "strides = [1, 1]", {1, 1, 3, 3}, "ModelError", {"kernel_shape"});
    add("kernel_too_large", "kernel_shape = [4, 4]", {1, 1, 3, 3}, "ShapeError", {});
    add("zero_kernel", "kernel_shape = [0, 1]", {1, 1, 3, 3}, "ModelError", {"kernel_shape"});
    add("negative_stride", "kernel_shape = [2, 2], strides = [1, -1]", {1, 1, 3, 3}, "ModelError",
        {"strides"});
    add("zero_dilation", "kernel_shape = [2, 2], dilations = [0, 1]", {1, 1, 3, 3}, "ModelError",
        {"dilations"});
    add("window_in_padding", "kernel_shape = [2, 2], pads = [2, 0, 0, 0]", {1, 1, 3, 3},
        "ModelError", {"padding"});
    add("flag", "kernel_shape = [2, 2], ceil_mode = 2", {1, 1, 3, 3}, "ModelError", {"ceil_mode"});
    add("auto_pad", "kernel_shape = [2, 2], auto_pad = \"FULL\"", {1, 1, 3, 3}, "ModelError",
        {"auto_pad"});
  }
  cases.push_back({.name = "storage_order",
                   .model = "[head] y = MaxPool <kernel_shape = [2, 2], storage_order = 2> (x)",
                   .inputs = {uniform({1, 1, 3, 3}, -1, 1)},
                   .error = "ModelError",
                   .fragments = {"head", "storage_order"}});
  cases.push_back(
      {.name = "count_include_pad",
       .model = "[head] y = AveragePool <kernel_shape = [2, 2], count_include_pad = 3> (x)",
       .inputs = {uniform({1, 1, 3, 3}, -1, 1)},
       .error = "ModelError",
       .fragments = {"head", "count_include_pad"}});
  for (const std::string op : {"GlobalAveragePool", "GlobalMaxPool"}) {
    cases.push_back({.name = op + "_no_positions",
                     .model = "[head] y = " + op + " (x)",
                     .inputs = {uniform({1, 2, 0, 3}, -1, 1)},
                     .error = "ShapeError",
                     .fragments = {"head"}});
  }
  return cases;
}

namespace pool {

using Ints = std::vector<std::int64_t>;

struct Layer {
  Dims x;
  Dims y;
  Ints kernel;
  Ints strides;
  Ints pads;
};

std::vector<Layer> layers() {
  return {
      {{2, 3, 28, 28}, {2, 3, 14, 14}, {2, 2}, {2, 2}, {0, 0, 0, 0}},
      {{2, 3, 7, 9}, {2, 3, 3, 4}, {2, 2}, {2, 2}, {0, 0, 0, 0}},
      {{2, 3, 6, 70}, {2, 3, 3, 35}, {2, 2}, {2, 2}, {0, 0, 0, 0}},
      {{1, 4, 9, 9}, {1, 4, 5, 5}, {3, 3}, {2, 2}, {1, 1, 1, 1}},
      {{1, 4, 8, 20}, {1, 4, 8, 20}, {3, 3}, {1, 1}, {1, 1, 1, 1}},
      {{1, 2, 3, 3}, {1, 2, 1, 1}, {3, 3}, {1, 1}, {0, 0, 0, 0}},
      {{2, 2, 16}, {2, 2, 8}, {2}, {2}, {0, 0}},
  };
}

KernelCall call_of(const Layer& layer, std::string_view op_type, std::vector<Tensor> inputs,
                   std::vector<opdef::TensorDesc> outputs, std::string_view domain) {
  return {.op_type = op_type,
          .attributes = {{.name = "kernel_shape", .value = layer.kernel},
                         {.name = "strides", .value = layer.strides},
                         {.name = "pads", .value = layer.pads}},
          .inputs = std::move(inputs),
          .outputs = std::move(outputs),
          .domain = domain};
}

}  // namespace pool

namespace pool {

void compare_kernels(const Layer& layer, int threads, const device::CpuOptions& cpu = {}) {
  constexpr auto kFloat = DataType::kFloat32;
  // Few distinct values, so that ties occur: they must give the same indices.
  Tensor x = random_tensor(DataType::kInt32, layer.x, 1, 0, 5).cast(kFloat);
  x.mutable_data<float>()[3] = std::numeric_limits<float>::quiet_NaN();
  const Tensor dy = random_tensor(kFloat, layer.y, 2);
  const opdef::TensorDesc y{.dtype = kFloat, .dims = layer.y};
  const opdef::TensorDesc indices{.dtype = DataType::kInt64, .dims = layer.y};
  const opdef::TensorDesc dx{.dtype = kFloat, .dims = layer.x};
  KernelCall max = call_of(layer, "MaxPool", {x}, {y, indices}, "");
  max.threads = threads;
  max.cpu = &cpu;
  EXPECT_EQ(compare_offers(max, 0), 1u);
  const Tensor taken = run_plain(max).at(1);
  max.outputs[1] = {};
  compare_offers(max, 0);
  max.outputs = {{}, indices};
  compare_offers(max, 0);
  KernelCall max_grad = call_of(layer, "MaxPoolGrad", {dy, taken, x}, {dx}, "onnxgrad");
  max_grad.threads = threads;
  max_grad.cpu = &cpu;
  compare_offers(max_grad, 1e-6);
  const Tensor image = random_tensor(kFloat, layer.x, 3);
  compare_offers(call_of(layer, "AveragePool", {image}, {y}, ""), 1e-6);
  compare_offers(call_of(layer, "AveragePoolGrad", {dy, image}, {dx}, "onnxgrad"), 1e-6);
}

}  // namespace pool

TEST(PoolKernels, FastOnesAgreeWithThePlainOne) {
  const auto check = [](const device::CpuOptions& cpu) {
    for (const pool::Layer& layer : pool::layers()) {
      SCOPED_TRACE(layer.x.to_string());
      pool::compare_kernels(layer, 1, cpu);
    }
  };
  device::for_each_instruction_set(check);
}

TEST(PoolKernels, ThreadsGiveTheSame) {
  pool::compare_kernels({{4, 16, 64, 66}, {4, 16, 32, 33}, {2, 2}, {2, 2}, {0, 0, 0, 0}}, 2);
  pool::compare_kernels({{4, 16, 64, 66}, {4, 16, 32, 33}, {3, 3}, {2, 2}, {1, 1, 1, 1}}, 3);
}

TEST(PoolKernels, RowsThatAPoolDoesNotChangeAreAddedAsAWhole) {
  const std::vector<pool::Layer> layers = {
      {{2, 3, 7, 9}, {2, 3, 7, 9}, {3, 1}, {1, 1}, {1, 0, 1, 0}},
      {{1, 1, 6, 4, 5}, {1, 1, 3, 4, 5}, {2, 1, 1}, {2, 1, 1}, {0, 0, 0, 0, 0, 0}},
      {{8, 1, 40, 16, 64}, {8, 1, 40, 16, 64}, {5, 1, 1}, {1, 1, 1}, {2, 0, 0, 2, 0, 0}},
  };
  for (const pool::Layer& layer : layers) {
    SCOPED_TRACE(layer.x.to_string());
    const opdef::TensorDesc y{.dtype = DataType::kFloat32, .dims = layer.y};
    const opdef::TensorDesc dx{.dtype = DataType::kFloat32, .dims = layer.x};
    const Tensor image = random_tensor(DataType::kFloat32, layer.x, 1);
    const Tensor dy = random_tensor(DataType::kFloat32, layer.y, 2);
    KernelCall forward = pool::call_of(layer, "AveragePool", {image}, {y}, "");
    KernelCall backward = pool::call_of(layer, "AveragePoolGrad", {dy, image}, {dx}, "onnxgrad");
    for (KernelCall* call : {&forward, &backward}) {
      call->threads = 3;
      EXPECT_EQ(compare_offers(*call, 1e-6), 1u);
    }
  }
}

TEST(PoolKernels, IndicesOfAnotherPoolAreFollowed) {
  // The gradient adds wherever the indices point, inside or outside the windows.
  const pool::Layer layer = pool::layers().front();
  const Tensor x = random_tensor(DataType::kFloat32, layer.x, 1);
  const Tensor dy = random_tensor(DataType::kFloat32, layer.y, 2);
  const Tensor indices = random_tensor(DataType::kInt64, layer.y, 3, 0, 4000);
  const KernelCall call =
      pool::call_of(layer, "MaxPoolGrad", {dy, indices, x},
                    {{.dtype = DataType::kFloat32, .dims = layer.x}}, "onnxgrad");
  EXPECT_EQ(compare_offers(call, 1e-6), 1u);
}

TEST(PoolKernels, IndicesOutOfRangeAreRefused) {
  const pool::Layer layer = pool::layers().front();
  const Tensor x = random_tensor(DataType::kFloat32, layer.x, 1);
  const Tensor dy = random_tensor(DataType::kFloat32, layer.y, 2);
  const opdef::TensorDesc dx{.dtype = DataType::kFloat32, .dims = layer.x};
  for (const std::int64_t wrong :
       {std::int64_t{-1}, layer.x.num_elements(), std::int64_t{1} << 40}) {
    Tensor indices = Tensor::zeros(DataType::kInt64, layer.y);
    indices.mutable_data<std::int64_t>()[5] = wrong;
    EXPECT_THROW(
        run_offers(pool::call_of(layer, "MaxPoolGrad", {dy, indices, x}, {dx}, "onnxgrad")),
        DataError);
  }
}

}  // namespace onnxgrad::ops_test
