#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "onnx/inference.h"
#include "onnx/model_io.h"
#include "runtime/evaluator.h"
#include "runtime/executor.h"
#include "runtime/testing/builtin_engine.h"

// Bodies of Scan, Loop and If: how often they are compiled, what they draw, which way they are run.

namespace onnxgrad::runtime::bodies_test {
namespace {

Executor executor_of(const std::string& graph, int threads = 1) {
  const std::string text = "<ir_version: 10, opset_import: [\"\" : 21]>\n" + graph;
  const KernelEvaluator evaluator(builtin_engine());
  auto model = std::make_shared<const ir::Model>(
      onnx_io::to_internal(onnx_io::load_text(text), builtin_engine().ops, &evaluator));
  return Executor(std::move(model), builtin_engine(), {.threads = threads, .seed = 5});
}

Tensor numbers(const std::vector<double>& values) {
  return Tensor::from(values, Dims{static_cast<std::int64_t>(values.size())});
}

constexpr const char* kRunningSum = R"(sums (double[T] x) => (double[] last, double[T] all) <
  double zero = {0.0}> {
  last, all = Scan <num_scan_inputs = 1,
      body = add (double s, double e) => (double next, double copy) {
    next = Add (s, e)
    copy = Mul (next, next)
  }> (zero, x)
})";

TEST(Bodies, AreCompiledOncePerSetOfShapes) {
  Executor executor = executor_of(kRunningSum);
  for (int run = 0; run < 2; ++run) {
    const std::vector<Tensor> results = executor.run(std::vector{numbers({1, 2, 4})});
    EXPECT_EQ(results[0].to_doubles(), std::vector<double>{7});
    EXPECT_EQ(results[1].to_doubles(), (std::vector<double>{1, 9, 49}));
  }
  EXPECT_EQ(executor.num_compiled(), 2);  // the graph, and the body once for its three iterations
  executor.run(std::vector{numbers({1, 2})});
  EXPECT_EQ(executor.num_compiled(), 2 * 2);
}

TEST(Bodies, AreKernelsOfThePlan) {
  Executor executor = executor_of(kRunningSum);
  executor.run(std::vector{numbers({1, 2, 4})});
  const std::string plan = executor.prepare({Dims{3}}).to_text();
  EXPECT_NE(plan.find("Scan [iterations 3]"), std::string::npos) << plan;
  EXPECT_EQ(plan.find("dynamic"), std::string::npos) << plan;
}

TEST(Bodies, GiveStatesThatChangeTheirRoles) {
  Executor executor =
      executor_of(R"(swap (double[2] x, double[2] y, int64 n) => (double[2] a, double[2] b) {
    a, b = Loop <body = step (int64 i, bool c, double[2] p, double[2] q)
        => (bool c1, double[2] p1, double[2] q1) {
      c1 = Identity (c)
      p1 = Add (p, q)
      q1 = Identity (p)
    }> (n, , x, y)
  })");
  // Fibonacci's numbers.
  for (const auto& [count, a, b] :
       {std::tuple{0, 1.0, 0.0}, {1, 1.0, 1.0}, {2, 2.0, 1.0}, {3, 3.0, 2.0}, {10, 89.0, 55.0}}) {
    const std::vector<Tensor> results = executor.run(std::vector{
        numbers({1, 10}), numbers({0, 0}), Tensor::scalar(static_cast<std::int64_t>(count))});
    EXPECT_EQ(results[0].to_doubles(), (std::vector<double>{a, 10 * a}));
    EXPECT_EQ(results[1].to_doubles(), (std::vector<double>{b, 10 * b}));
  }
}

TEST(Bodies, DrawAnewInEachIteration) {
  Executor executor = executor_of(R"(draws (double[3] x, int64 n) => (double[K, 3] all) {
    last, all = Loop <body = step (int64 i, bool c, double[3] h)
        => (bool c1, double[3] next, double[3] drawn) {
      c1 = Identity (c)
      drawn = RandomUniformLike (h)
      next = Add (h, drawn)
    }> (n, , x)
  })");
  const std::vector<Tensor> inputs{numbers({0, 0, 0}), Tensor::scalar(std::int64_t{20})};
  const std::vector<double> drawn = executor.run(inputs)[0].to_doubles();
  ASSERT_EQ(drawn.size(), 60U);
  for (std::size_t i = 3; i < drawn.size(); ++i) EXPECT_NE(drawn[i], drawn[i - 3]);
  EXPECT_EQ(executor.run(inputs)[0].to_doubles(), drawn);  // drawn for the same step
  ++executor.cells().step;
  EXPECT_NE(executor.run(inputs)[0].to_doubles(), drawn);
}

TEST(Bodies, OfBranchesThatReturnOneShapeAreKernels) {
  Executor executor = executor_of(R"(choose (double[2] x, bool c) => (double[2] y) {
    h = Neg (x)
    r = If (c) <then_branch = a () => (double[2] p) { p = Mul (h, x) },
                else_branch = b () => (double[2] q) { q = Identity (h) }>
    y = Exp (r)
  })");
  const auto run = [&](bool taken) {
    return executor.run(std::vector{numbers({1, 2}), Tensor::scalar(taken)})[0].to_doubles();
  };
  EXPECT_EQ(run(true), (std::vector<double>{std::exp(-1.0), std::exp(-4.0)}));
  EXPECT_EQ(run(false), (std::vector<double>{std::exp(-1.0), std::exp(-2.0)}));
  EXPECT_EQ(executor.num_compiled(), 3);
}

// The condition follows from the shape that the plan is made for; the other branch does not fit it.
TEST(Bodies, AKnownConditionIsItsBranch) {
  Executor executor = executor_of(R"(known (double[N] x) => (double[M] z) <
  int64 two = {2}, double[2] tens = {10.0, 20.0}, double[3] ones = {1.0, 2.0, 3.0}> {
  rows = Size (x)
  is_two = Equal (rows, two)
  y = If <then_branch = a () => (double[K] r) { r = Add (x, tens) },
          else_branch = b () => (double[L] r) { r = Add (x, ones) }> (is_two)
  z = Neg (y)
})");
  const auto run = [&](const std::vector<double>& x) {
    return executor.run(std::vector{numbers(x)})[0].to_doubles();
  };
  EXPECT_EQ(run({1, 1}), (std::vector<double>{-11, -21}));
  EXPECT_EQ(run({1, 1, 1}), (std::vector<double>{-2, -3, -4}));
  EXPECT_EQ(executor.num_compiled(), 2);  // one plan each, and neither tails nor bodies
  EXPECT_EQ(executor.memory().dynamic, 0);
}

// Each iteration has the bits of the same steps outside of a loop.
TEST(Bodies, RunJointSteps) {
  const auto block = [](const std::string& from, const std::string& to) {
    return fmt::format(R"(
      {1}p = MatMul ({0}, w)
      {1}q = Add ({1}p, {0})
      {1} = LayerNormalization <axis = -1> ({1}q, s, b)
)",
                       from, to);
  };
  const std::string inputs = "(float[320, 256] x, float[256, 256] w, float[256] s, float[256] b)";
  Executor unrolled = executor_of("unrolled " + inputs + " => (float[320, 256] y) {" +
                                      block("x", "h1") + block("h1", "h2") + block("h2", "y") + "}",
                                  2);
  Executor loop = executor_of("loop " + inputs + R"( => (float[320, 256] y) < int64 n = {3} > {
    y = Loop <body = step (int64 i, bool c, float[320, 256] h) => (bool d, float[320, 256] next) {
      d = Identity (c))" + block("h", "next") +
                                  "}> (n, , x) }",
                              2);
  std::vector<Tensor> feeds;
  for (const Dims& dims : {Dims{320, 256}, Dims{256, 256}, Dims{256}, Dims{256}}) {
    std::vector<float> values(static_cast<std::size_t>(dims.num_elements()));
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<float>((i * 7919) % 1009) / 1009 - 0.5F;
    }
    feeds.push_back(Tensor::from(values, dims));
  }
  const Tensor expected = unrolled.run(feeds)[0].clone();
  EXPECT_TRUE(loop.run(feeds)[0].equals(expected));
}

}  // namespace
}  // namespace onnxgrad::runtime::bodies_test
