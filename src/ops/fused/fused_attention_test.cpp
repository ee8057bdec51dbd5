#include <gtest/gtest.h>

#include <fmt/format.h>

#include <limits>
#include <string>
#include <vector>

#include "device/testing/instruction_sets.h"
#include "ops/testing/case_runner.h"

// Compares fused attention with the nodes that it replaces, at the edges of its blocks: more rows
// than one block, more probabilities than are stored, dropout. Small cases are in
// nn/softmax_test.cpp.

namespace onnxgrad::ops_test {
namespace fused_attention {

struct Sizes {
  std::int64_t heads, queries, keys, size, value_size;
};

// Builds a case: `between` leads from the scores s to the probabilities d.
OpCase attention(const Sizes& n, const std::string& between, std::vector<CaseInput> more) {
  OpCase made{.name = fmt::format("attention_{}_{}_{}", n.queries, n.keys, between.size()),
              .model = "s = MatMul (q, kt)\n" + between + "\ny = MatMul (d, v)",
              .inputs = {uniform({1, n.heads, n.queries, n.size}, -1, 1).named("q"),
                         uniform({1, n.heads, n.size, n.keys}, -1, 1).named("kt"),
                         uniform({1, n.heads, n.keys, n.value_size}, -1, 1).named("v")},
              .outputs = {"y"},
              .wrt = {"q", "kt", "v"}};
  made.inputs.insert(made.inputs.begin() + 2, more.begin(), more.end());
  return made;
}

// Causal mask: keys up to the query's position plus `offset`.
CaseInput triangle(std::int64_t queries, std::int64_t keys, std::int64_t offset) {
  std::vector<double> numbers;
  for (std::int64_t i = 0; i < queries; ++i) {
    for (std::int64_t j = 0; j < keys; ++j) numbers.push_back(j <= i + offset ? 0 : -1e38);
  }
  return values(numbers, {queries, keys}).constant().named("mask");
}

void expect_same(const CaseResult& fused, const CaseResult& plain, double tolerance) {
  ASSERT_EQ(fused.gradients.size(), plain.gradients.size());
  EXPECT_EQ(compare(fused.outputs[0], plain.outputs[0], tolerance), "");
  for (std::size_t i = 0; i < plain.gradients.size(); ++i) {
    EXPECT_EQ(compare(fused.gradients[i], plain.gradients[i], tolerance), "") << i;
  }
}

void check(const OpCase& op_case, const device::CpuOptions& cpu = {}) {
  SCOPED_TRACE(op_case.model);
  for (const DataType dtype : {DataType::kFloat32, DataType::kFloat64}) {
    const BuiltCase built = build_case(op_case, {.dtype = dtype});
    const CaseResult fused = run_case(op_case, built, {.cpu = cpu});
    expect_same(fused, run_case(op_case, built, {.fuse = false, .cpu = cpu}),
                dtype == DataType::kFloat32 ? 1e-5 : 1e-13);
    // Results do not depend on the number of threads, bit by bit.
    std::vector<Tensor> inputs = built.inputs;
    inputs.insert(inputs.end(), fused.seeds.begin(), fused.seeds.end());
    const auto run = [&](int threads) {
      runtime::Executor executor(built.gradient, builtin_engine(),
                                 {.threads = threads, .cpu = cpu});
      return executor.run(inputs);
    };
    const std::vector<Tensor> expected = run(1);
    for (const int threads : {2, 5}) {
      const std::vector<Tensor> all = run(threads);
      for (std::size_t i = 0; i < all.size(); ++i) {
        EXPECT_EQ(compare(all[i], expected[i], 0), "") << i;
      }
    }
  }
}

}  // namespace fused_attention

TEST(FusedAttention, AgreesWithItsNodes) {
  using fused_attention::attention;
  using fused_attention::check;
  const auto run = [](const device::CpuOptions& cpu) {
    // 300 x 300 probabilities are more than are stored; 7 x 520 has more keys than one block.
    for (const fused_attention::Sizes& n :
         {fused_attention::Sizes{3, 50, 33, 5, 17}, {2, 300, 300, 8, 3}, {1, 7, 520, 4, 4}}) {
      check(attention(n, "d = Softmax (s)", {}), cpu);
      check(attention(n, "m = Add (s, mask)\nd = Softmax (m)",
                      {fused_attention::triangle(n.queries, n.keys, n.keys / 3)}),
            cpu);
      check(attention(n, "m = Add (s, bias)\nd = Softmax (m)",
                      {uniform({n.heads, 1, n.keys}, -1, 1).named("bias")}),
            cpu);
    }
  };
  device::for_each_instruction_set(run);
}

TEST(FusedAttention, DropsWhatDropoutDrops) {
  using fused_attention::attention;
  for (const fused_attention::Sizes& n :
       {fused_attention::Sizes{3, 50, 33, 5, 17}, {2, 300, 300, 8, 3}}) {
    const CaseInput ratio = values({0.25}, {}).constant().named("ratio");
    const CaseInput mode = values({1}, {}, DataType::kBool).constant().named("mode");
    fused_attention::check(
        attention(n, "m = Add (s, mask)\np = Softmax (m)\nd = Dropout <seed = 5> (p, ratio, mode)",
                  {fused_attention::triangle(n.queries, n.keys, 0), ratio, mode}));
    fused_attention::check(
        attention(n, "p = Softmax (s)\nd = Dropout (p, ratio, mode)", {ratio, mode}));
    const CaseInput off = values({0}, {}, DataType::kBool).constant().named("mode");
    fused_attention::check(
        attention(n, "p = Softmax (s)\nd = Dropout (p, ratio, mode)", {ratio, off}));
  }
}

// Compares f16 and bf16 operands, keys in either layout, with nodes that read them in float32.
TEST(FusedAttention, ReadsF16) {
  for (const int half : {10, 16}) {  // float16, bfloat16
    for (const bool turns : {false, true}) {
      for (const fused_attention::Sizes& n :
           {fused_attention::Sizes{3, 50, 33, 5, 17}, {2, 300, 300, 8, 3}}) {
        OpCase one = fused_attention::attention(n, "d = Softmax (s)", {});
        std::string stored;
        for (const char* name : {"q", "kt", "v"}) {
          stored += fmt::format(
              "{0}_f16 = Cast <to = {1}> ({0})\n{0}_wide = Cast <to = 1> ({0}_f16)\n", name, half);
        }
        if (turns) {
          one.inputs[1] = uniform({1, n.heads, n.keys, n.size}, -1, 1).named("kt");
          stored += "kt_turned = Transpose <perm = [0, 1, 3, 2]> (kt_wide)\n";
        }
        one.model =
            stored + fmt::format("s = MatMul (q_wide, {})\nd = Softmax (s)\ny = MatMul (d, v_wide)",
                                 turns ? "kt_turned" : "kt_wide");
        SCOPED_TRACE(one.model);
        const BuiltCase built = build_case(one, {.dtype = DataType::kFloat32});
        fused_attention::expect_same(run_case(one, built), run_case(one, built, {.fuse = false}),
                                     1e-5);
      }
    }
  }
}

// Compares bfloat16 operands and rounded probabilities (multiplied by AMX if available) with the
// nodes that round them. vnni_gemm_test.cpp tests the matrix products, also emulated.
TEST(FusedAttention, MultipliesRoundedProbabilities) {
  for (const bool turns : {false, true}) {
    for (const fused_attention::Sizes& n :
         {fused_attention::Sizes{3, 50, 33, 17, 17}, {2, 300, 300, 32, 70}, {2, 128, 64, 64, 64}}) {
      const std::string round =
          "{0}_f16 = Cast <to = 16> ({0})\n{0}_wide = Cast <to = 1> ({0}_f16)\n";
      for (const bool is_causal : {false, true}) {
        OpCase one = fused_attention::attention(n, "", {});
        std::string model;
        for (const char* name : {"q", "kt", "v"}) {
          model += fmt::format(fmt::runtime(round), name);
        }
        if (turns) {
          one.inputs[1] = uniform({1, n.heads, n.keys, n.size}, -1, 1).named("kt");
          model += "kt_turned = Transpose <perm = [0, 1, 3, 2]> (kt_wide)\n";
        }
        model += fmt::format("s = MatMul (q_wide, {})\n", turns ? "kt_turned" : "kt_wide");
        if (is_causal) {
          model += "m = Add (s, mask)\n";
          one.inputs.insert(one.inputs.begin() + 2,
                            fused_attention::triangle(n.queries, n.keys, n.keys / 3));
        }
        model += fmt::format("d = Softmax ({})\n", is_causal ? "m" : "s");
        model += fmt::format(fmt::runtime(round), "d") + "y = MatMul (d_wide, v_wide)";
        one.model = model;
        SCOPED_TRACE(one.model);
        const BuiltCase built = build_case(one, {.dtype = DataType::kFloat32});
        const CaseResult fused = run_case(one, built);
        const CaseResult plain = run_case(one, built, {.fuse = false});
        // One unit in the last place of a probability.
        fused_attention::expect_same(fused, plain, 1.0 / 256);
      }
    }
  }
}

// A row without keys is NaN; its gradient is zero if nothing reads it.
TEST(FusedAttention, RowsWithoutKeys) {
  const double inf = std::numeric_limits<double>::infinity();
  const OpCase one{
      .name = "attention_row_without_keys",
      .model =
          "s = MatMul (q, kt)\nm = Add (s, mask)\np = Softmax (m)\n"
          "o = MatMul (p, v)\ny = Gather <axis = 1> (o, rows)",
      .inputs = {uniform({1, 2, 3}, -1, 1).named("q"), uniform({1, 3, 2}, -1, 1).named("kt"),
                 values({0, 0, -inf, -inf}, {2, 2}).constant().named("mask"),
                 uniform({1, 2, 4}, -1, 1).named("v"), ints({0}).named("rows")},
      .wrt = {"q", "kt"}};
  const BuiltCase built = build_case(one, {.dtype = DataType::kFloat64});
  fused_attention::expect_same(run_case(one, built), run_case(one, built, {.fuse = false}), 1e-13);
}

}  // namespace onnxgrad::ops_test
