#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "device/testing/instruction_sets.h"
#include "ops/testing/kernel_run.h"
#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {

namespace softmax {

// Rows of -inf, as a mask that leaves nothing makes them, are NaN; a Where replaces them, or nobody
// reads them.
void add_masked(std::vector<OpCase>& cases, const std::string& op) {
  constexpr double kMasked = -std::numeric_limits<double>::infinity();
  const CaseInput x = values(
      {0.5, -1, 2, kMasked, kMasked, kMasked, kMasked, 0.25, kMasked, 1, kMasked, -1}, {4, 3});
  const CaseInput keep = values({1, 1, 1, 0, 0, 0, 0, 1, 0, 1, 0, 1}, {4, 3}, DataType::kBool);
  cases.push_back({.name = op + "_masked_row",
                   .model = "p = " + op + " (x)\ny = Where (keep, p, zero)",
                   .inputs = {x, keep, values({0}, {})}});
  cases.push_back({.name = op + "_masked_row_unread",
                   .model = "p = " + op + " (x)\nrows = Gather (p, indices)",
                   .inputs = {values({0.5, -1, 2, kMasked, kMasked, kMasked, 1, 0, -1}, {3, 3}),
                              ints({0, 2})}});
}

}  // namespace softmax

std::vector<OpCase> softmax_cases() {
  std::vector<OpCase> cases;
  for (const std::string op : {"Softmax", "LogSoftmax"}) {
    const auto add = [&](std::string name, const std::string& attributes, CaseInput x) {
      cases.push_back({.name = op + "_" + name,
                       .model = "y = " + op + " " + attributes + "(x)",
                       .inputs = {std::move(x)}});
    };
    add("default_axis", "", uniform({3, 5}, -2, 2));
    add("last_axis", "<axis = 2> ", uniform({2, 3, 4}, -2, 2));
    add("first_axis", "<axis = 0> ", uniform({4, 3}, -2, 2));
    add("middle_axis", "<axis = 1> ", uniform({2, 4, 3}, -2, 2));
    add("negative_axis", "<axis = -2> ", uniform({2, 4, 3}, -2, 2));
    add("one_class", "", uniform({2, 1}, -2, 2));
    add("one_row", "", uniform({7}, -2, 2));
    add("no_rows", "", uniform({0, 4}, -2, 2));
    add("no_classes", "", uniform({3, 0}, -2, 2));
    add("far_apart", "", values({-60, 0, 60, -1, 0, 1}, {2, 3}));
    add("large", "", values({1000, 1001, 999, -1000, -1001, -1000.5}, {2, 3}));
    add("wide", "", uniform({3, 77}, -4, 4));
    softmax::add_masked(cases, op);
  }
  cases.push_back(
      {.name = "hardmax", .model = "y = Hardmax (x)", .inputs = {uniform({3, 5}, -2, 2)}});
  cases.push_back({.name = "hardmax_first_axis",
                   .model = "y = Hardmax <axis = 0> (x)",
                   .inputs = {uniform({4, 2, 2}, -2, 2)}});
  cases.push_back({.name = "hardmax_negative_axis",
                   .model = "y = Hardmax <axis = -2> (x)",
                   .inputs = {uniform({2, 3, 2}, -2, 2)}});
  cases.push_back(
      {.name = "hardmax_one", .model = "y = Hardmax (x)", .inputs = {uniform({2, 1}, -2, 2)}});
  cases.push_back(
      {.name = "hardmax_no_rows", .model = "y = Hardmax (x)", .inputs = {uniform({0, 3}, -2, 2)}});
  cases.push_back({.name = "hardmax_first_of_equal",
                   .model = "y = Hardmax (x)",
                   .inputs = {values({1, 3, 3, 2, 2, 2}, {2, 3})},
                   .no_gradient = "equal elements are a jump",
                   .expected = {{0, 1, 0, 1, 0, 0}}});
  return cases;
}

std::vector<ErrorCase> softmax_error_cases() {
  std::vector<ErrorCase> cases;
  for (const std::string op : {"Softmax", "LogSoftmax", "Hardmax"}) {
    cases.push_back({.name = op + "_axis",
                     .model = "[head] y = " + op + " <axis = 2> (x)",
                     .inputs = {uniform({3, 5}, -2, 2)},
                     .error = "ShapeError",
                     .fragments = {"head", "axis"}});
    cases.push_back({.name = op + "_integers",
                     .model = "[head] y = " + op + " (x)",
                     .inputs = {integers({3, 5}, 0, 9)},
                     .error = "ModelError",
                     .fragments = {"head"}});
  }
  return cases;
}

TEST(SoftmaxKernels, FastOnesAgreeWithThePlainOne) {
  const auto check = [] {
    for (const char* op : {"Softmax", "LogSoftmax"}) {
      for (const Dims& dims : {Dims{1, 1}, Dims{3, 5}, Dims{7, 16}, Dims{2, 100}, Dims{5, 1000},
                               Dims{2, 17, 3}, Dims{0, 4}, Dims{3, 0}, Dims{64, 10}}) {
        for (const DataType dtype : {DataType::kFloat32, DataType::kFloat64}) {
          SCOPED_TRACE(std::string(op) + dims.to_string());
          const KernelCall call{.op_type = op,
                                .attributes = {{.name = "axis", .value = std::int64_t{1}}},
                                .inputs = {random_tensor(dtype, dims, 7, -9, 9)},
                                .outputs = {{.dtype = dtype, .dims = dims}}};
          const double tolerance = dtype == DataType::kFloat32 ? 2e-6 : 4e-15;
          EXPECT_EQ(compare_offers(call, tolerance), dims.rank() == 2 ? 1u : 0u);
        }
      }
    }
  };
  device::for_each_instruction_set(check);
}

TEST(SoftmaxKernels, NanAndInfinityGoThrough) {
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const KernelCall call{.op_type = "Softmax",
                        .inputs = {Tensor::from(std::vector<float>{0, nan, 1, -inf, 2, 2}, {2, 3})},
                        .outputs = {{.dtype = DataType::kFloat32, .dims = {2, 3}}}};
  compare_offers(call, 1e-6);
  const auto y = run_plain(call).at(0).to_doubles();
  EXPECT_TRUE(std::isnan(y[0]));
  EXPECT_EQ(y[3], 0);
  EXPECT_EQ(y[4], 0.5);
}

}  // namespace onnxgrad::ops_test
