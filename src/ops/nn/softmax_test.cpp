#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "device/testing/instruction_sets.h"
#include "ops/testing/kernel_run.h"
#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {

namespace softmax {

// Rows of -inf, as a mask that excludes all keys makes them, are NaN; a Where replaces them, or
// they are not used.
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

// Attention as exporters write it, which plans compute in one kernel (opdef/attention.h).
void add_attention(std::vector<OpCase>& cases) {
  const auto add = [&](std::string name, const std::string& model, std::vector<CaseInput> inputs) {
    cases.push_back({.name = "attention_" + std::move(name),
                     .model = model,
                     .inputs = std::move(inputs),
                     .outputs = {"y"}});
  };
  const std::string heads =
      "qs = Reshape (a, split)\nks = Reshape (b, split)\nvs = Reshape (c, split)\n"
      "q = Transpose <perm = [0, 2, 1, 3]> (qs)\nkt = Transpose <perm = [0, 2, 3, 1]> (ks)\n"
      "v = Transpose <perm = [0, 2, 1, 3]> (vs)\ns = MatMul (q, kt)\n";
  const std::string merged =
      "o = MatMul (p, v)\nt = Transpose <perm = [0, 2, 1, 3]> (o)\ny = Reshape (t, merge)";
  // Two sequences of three positions, two heads of size four.
  const auto operands = [&](std::vector<CaseInput> more) {
    std::vector<CaseInput> inputs;
    for (const char* name : {"a", "b", "c"})
      inputs.push_back(uniform({2, 3, 8}, -1, 1).named(name));
    inputs.push_back(ints({0, 3, 2, 4}).named("split"));
    for (CaseInput& input : more) inputs.push_back(std::move(input));
    inputs.push_back(ints({0, 3, 8}).named("merge"));
    return inputs;
  };
  const CaseInput half = values({0.5}, {}).constant().named("half");
  add("heads", heads + "p = Softmax (s)\n" + merged, operands({}));
  add("scaled",
      heads +
          "x = Mul (half, s)\nz = Div (x, half)\nw = Mul (z, half)\n"
          "p = Softmax <axis = 3> (w)\n" +
          merged,
      operands({half}));
  const CaseInput triangle =
      values({0, -1e38, -1e38, 0, 0, -1e38, 0, 0, 0}, {1, 1, 3, 3}).constant().named("mask");
  add("causal", heads + "x = Mul (s, half)\nm = Add (mask, x)\np = Softmax (m)\n" + merged,
      operands({half, triangle}));
  const CaseInput seen = values({1, 1, 0, 1, 1, 1, 1, 1, 1}, {3, 3}, DataType::kBool);
  add("causal_from_the_second_key", heads + "m = Where (seen, s, low)\np = Softmax (m)\n" + merged,
      operands({seen.constant().named("seen"), values({-3e38}, {}).constant().named("low")}));
  add("key_padding", heads + "m = Where (hidden, low, s)\np = Softmax (m)\n" + merged,
      operands({values({0, 0, 1, 1, 0, 0}, {2, 1, 1, 3}, DataType::kBool).named("hidden"),
                values({-1e9}, {1}).constant().named("low")}));
  add("learned_bias",
      heads + "u = Add (s, bias)\nm = Where (keep, u, low)\np = Softmax (m)\n" + merged,
      operands({uniform({2, 3, 3}, -1, 1).named("bias"),
                values({1, 1, 0, 0, 1, 1}, {2, 1, 1, 3}, DataType::kBool).named("keep"),
                values({-1e9}, {}).constant().named("low")}));
  add("two_masks", heads + "m = Add (s, rows)\nn = Add (columns, m)\np = Softmax (n)\n" + merged,
      operands({uniform({2, 1, 3, 1}, -1, 1).named("rows"),
                uniform({1, 1, 1, 3}, -1, 1).named("columns")}));
  add("one_tensor_of_operands",
      "all = Reshape (x, shape)\nm = Transpose <perm = [2, 0, 3, 1, 4]> (all)\n"
      "q = Gather <axis = 0> (m, i0)\nk = Gather <axis = 0> (m, i1)\nv = Gather <axis = 0> (m, "
      "i2)\n"
      "kt = Transpose <perm = [0, 1, 3, 2]> (k)\ns = MatMul (q, kt)\np = Softmax (s)\n"
      "y = MatMul (p, v)",
      {uniform({2, 3, 24}, -1, 1), ints({2, 3, 3, 2, 4}).named("shape"), int_scalar(0).named("i0"),
       int_scalar(1).named("i1"), int_scalar(2).named("i2")});
  add("split_of_rank_3",
      "q, k, v = Split <axis = -1, num_outputs = 3> (x)\nkt = Transpose <perm = [0, 2, 1]> (k)\n"
      "s = MatMul (q, kt)\np = Softmax (s)\ny = MatMul (p, v)",
      {uniform({2, 5, 12}, -1, 1)});
  add("shared_keys",
      "kx = Unsqueeze (k, axis)\nke = Expand (kx, wide)\nkr = Reshape (ke, all)\n"
      "kt = Transpose <perm = [0, 1, 3, 2]> (kr)\ns = MatMul (q, kt)\np = Softmax (s)\n"
      "y = MatMul (p, v)",
      {uniform({2, 2, 3, 4}, -1, 1).named("k"), ints({2}).named("axis"),
       ints({2, 2, 3, 3, 4}).named("wide"), ints({2, 6, 3, 4}).named("all"),
       uniform({2, 6, 2, 4}, -1, 1).named("q"), uniform({2, 6, 3, 5}, -1, 1).named("v")});
  add("grouped_queries",
      "g = Reshape (q, rows)\nkt = Transpose <perm = [0, 1, 3, 2]> (k)\nx = MatMul (g, kt)\n"
      "s = Reshape (x, heads)\nm = Add (s, bias)\np = Softmax (m)\nr = Reshape (p, back)\n"
      "o = MatMul (r, v)\ny = Reshape (o, result)",
      {uniform({2, 6, 3, 4}, -1, 1).named("q"), ints({2, 2, 9, 4}).named("rows"),
       uniform({2, 2, 5, 4}, -1, 1).named("k"), ints({2, 6, 3, 5}).named("heads"),
       uniform({6, 3, 5}, -1, 1).named("bias"), ints({2, 2, 9, 5}).named("back"),
       uniform({2, 2, 5, 2}, -1, 1).named("v"), ints({2, 6, 3, 2}).named("result")});
  add("repeated_operands",
      "kt = Transpose <perm = [0, 1, 3, 2]> (k)\ns = MatMul (q, kt)\np = Softmax (s)\n"
      "y = MatMul (p, v)",
      {uniform({1, 2, 4, 3}, -1, 1).named("k"), uniform({3, 1, 2, 3}, -1, 1).named("q"),
       uniform({3, 2, 4, 1}, -1, 1).named("v")});
  add("shares_read",
      "s = MatMul (q, kt)\np = Softmax (s)\no = MatMul (p, v)\ny = Concat <axis = 2> (o, p)",
      {uniform({2, 3, 4}, -1, 1).named("q"), uniform({2, 4, 3}, -1, 1).named("kt"),
       uniform({2, 3, 3}, -1, 1).named("v")});
  add("one_key", "s = MatMul (q, kt)\np = Softmax (s)\ny = MatMul (p, v)",
      {uniform({2, 3, 1}, -1, 1).named("q"), uniform({2, 1, 1}, -1, 1).named("kt"),
       uniform({2, 1, 4}, -1, 1).named("v")});
  add("no_queries", "s = MatMul (q, kt)\np = Softmax (s)\ny = MatMul (p, v)",
      {uniform({2, 0, 3}, -1, 1).named("q"), uniform({2, 3, 2}, -1, 1).named("kt"),
       uniform({2, 2, 4}, -1, 1).named("v")});
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
  softmax::add_attention(cases);
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
  const auto check = [](const device::CpuOptions& cpu) {
    for (const char* op : {"Softmax", "LogSoftmax"}) {
      for (const Dims& dims : {Dims{1, 1}, Dims{3, 5}, Dims{7, 16}, Dims{2, 100}, Dims{5, 1000},
                               Dims{2, 17, 3}, Dims{0, 4}, Dims{3, 0}, Dims{64, 10}}) {
        for (const DataType dtype : {DataType::kFloat32, DataType::kFloat64}) {
          SCOPED_TRACE(std::string(op) + dims.to_string());
          const KernelCall call{.op_type = op,
                                .attributes = {{.name = "axis", .value = std::int64_t{1}}},
                                .inputs = {random_tensor(dtype, dims, 7, -9, 9)},
                                .outputs = {{.dtype = dtype, .dims = dims}},
                                .cpu = &cpu};
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
