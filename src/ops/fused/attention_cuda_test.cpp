#include <gtest/gtest.h>

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <vector>

#include "device/cuda/cuda_device.h"
#include "ops/testing/card_engine.h"
#include "ops/testing/case_runner.h"

// Attention of 16-bit operands on a card, beside the nodes that it replaces, on the CPU: by cuDNN
// where rows are multiples of 16 bytes, else by texts.

namespace onnxgrad::ops_test::attention_cuda {

struct Sizes {
  std::int64_t heads, queries, keys, size, value_size;
};

/// Attention and its gradient, written out, of operands and probabilities that are rounded to a
/// type of 16 bits. `between` leads from the scores s to m, whose Softmax is taken, `back` from
/// their gradient dm to ds.
OpCase rounded(const Sizes& n, int half, const std::string& between, const std::string& back,
               std::vector<CaseInput> more) {
  const std::string round = "{0}_f16 = Cast <to = {1}> ({0})\n{0}_wide = Cast <to = 1> ({0}_f16)\n";
  OpCase made;
  made.name = fmt::format("rounded_{}_{}_{}", n.queries, n.size, between.size());
  for (const char* name : {"q", "k", "v", "dy"}) {  // heads beside each other in rows
    made.model += fmt::format(fmt::runtime(round), name, half);
    if (std::string_view(name) == "k") continue;
    made.model += fmt::format("{0}_heads = Transpose <perm = [0, 2, 1, 3]> ({0}_wide)\n", name);
  }
  made.model += "kt = Transpose <perm = [0, 2, 3, 1]> (k_wide)\ns = MatMul (q_heads, kt)\n" +
                between + "d = Softmax (m)\n" + fmt::format(fmt::runtime(round), "d", half) +
                R"(o = MatMul (d_wide, v_heads)
y = Transpose <perm = [0, 2, 1, 3]> (o)
vt = Transpose <perm = [0, 1, 3, 2]> (v_heads)
dp = MatMul (dy_heads, vt)
is_nan = IsNaN (d_wide)
is_unused = Equal (dp, zero)
both = And (is_nan, is_unused)
used = Where (both, zero, d_wide)
along = Mul (used, dp)
sum = ReduceSum <keepdims = 1> (along, last)
centred = Sub (dp, sum)
dm = Mul (used, centred)
)" + back + R"(k_heads = Transpose <perm = [0, 1, 3, 2]> (kt)
dq_heads = MatMul (ds, k_heads)
dq = Transpose <perm = [0, 2, 1, 3]> (dq_heads)
qt = Transpose <perm = [0, 1, 3, 2]> (q_heads)
dkt = MatMul (qt, ds)
dk = Transpose <perm = [0, 3, 1, 2]> (dkt)
dt = Transpose <perm = [0, 1, 3, 2]> (d_wide)
dv_heads = MatMul (dt, dy_heads)
dv = Transpose <perm = [0, 2, 1, 3]> (dv_heads))";
  made.inputs = {uniform({2, n.queries, n.heads, n.size}, -1, 1).named("q"),
                 uniform({2, n.keys, n.heads, n.size}, -1, 1).named("k"),
                 uniform({2, n.keys, n.heads, n.value_size}, -1, 1).named("v"),
                 uniform({2, n.queries, n.heads, n.value_size}, -1, 1).named("dy"),
                 values({0}, {}).constant().named("zero"),
                 ints({-1}).constant().named("last")};
  made.inputs.insert(made.inputs.end(), more.begin(), more.end());
  made.outputs = {"y", "dq", "dk", "dv"};
  return made;
}

// Adds -1e38 behind the query's place.
CaseInput triangle(std::int64_t queries, std::int64_t keys) {
  std::vector<double> numbers;
  for (std::int64_t i = 0; i < queries; ++i) {
    for (std::int64_t j = 0; j < keys; ++j) numbers.push_back(j <= i ? 0 : -1e38);
  }
  return values(numbers, {queries, keys}).constant().named("mask");
}

// `label`: of the kernels, forward and backward.
void expect_like_nodes(const OpCase& one, const std::string& label) {
  SCOPED_TRACE(one.model);
  const BuiltCase built = build_case(one, {.dtype = DataType::kFloat32});
  const CaseResult given = run_case(one, built, {}, card_engine());
  const CaseResult expected = run_case(one, built, {.fuse = false});
  constexpr double kRoundings = 1.0 / 64;  // of probabilities and of gradients of scores
  for (std::size_t i = 0; i < expected.outputs.size(); ++i) {
    EXPECT_EQ(compare(given.outputs[i], expected.outputs[i], kRoundings), "") << i;
  }
  std::vector<Dims> dims;
  for (const Tensor& input : built.inputs) dims.push_back(input.dims());
  runtime::Executor executor(built.forward, card_engine(), {});
  const std::string plan = executor.prepare(dims).to_text();
  for (const char* op_type : {"Attention", "AttentionGradient"}) {
    const std::string step = fmt::format(" {} [{}", op_type, label);
    EXPECT_NE(plan.find(step), std::string::npos) << step << " is not in " << plan;
  }
}

class CudaAttentionTest : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (device::cuda::num_cards() == 0) GTEST_SKIP() << "no card";
  }
};

TEST_P(CudaAttentionTest, IsThatOfCudnn) {
  const Sizes n{.heads = 3, .queries = 20, .keys = 20, .size = 16, .value_size = 8};
  const auto check = [&](const std::string& between, const std::string& back,
                         const std::vector<CaseInput>& more, const std::string& label = "") {
    expect_like_nodes(rounded(n, GetParam(), between, back, more), "cuDNN, 6 of 20x20x16" + label);
  };
  const CaseInput scale = values({0.25}, {}).constant().named("scale");
  check("m = Mul (s, scale)\n", "ds = Mul (dm, scale)\n", {scale});
  const std::string add = "m = Add (s, mask)\n";
  const std::string back = "ds = Identity (dm)\n";
  check(add, back, {triangle(20, 20)}, " causal");
  check(add, back, {uniform({2, 1, 1, 20}, -3, 3).named("mask")});
  check(add, back, {uniform({3, 20, 20}, -3, 3).named("mask")});
}

TEST_P(CudaAttentionTest, IsATextOtherwise) {
  const Sizes n{.heads = 3, .queries = 33, .keys = 18, .size = 12, .value_size = 20};
  const auto check = [&](const std::string& between, const std::string& back,
                         const std::vector<CaseInput>& more) {
    expect_like_nodes(rounded(n, GetParam(), between, back, more), "tiles of 6 of 33x18x12");
  };
  check("m = Identity (s)\n", "ds = Identity (dm)\n", {});
  check("m = Where (keep, s, fill)\n", "ds = Where (keep, dm, zero)\n",
        {integers({33, 18}, 0, 3, DataType::kBool).named("keep"),
         values({-1e9}, {}).constant().named("fill")});
}

INSTANTIATE_TEST_SUITE_P(Cuda, CudaAttentionTest, ::testing::Values(10, 16));

}  // namespace onnxgrad::ops_test::attention_cuda
