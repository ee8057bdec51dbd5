#include "runtime/executor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "autodiff/gradient.h"
#include "ir/builder.h"
#include "onnx/inference.h"
#include "runtime/testing/builtin_engine.h"
#include "runtime/testing/model_draft.h"

namespace onnxgrad::runtime::executor_test {
namespace {

using ir::Value;

// A model under construction, then an executor of it.
struct Fixture : ModelDraft {
  Value* input(const char* name, ir::SymbolicShape shape, DataType dtype = DataType::kFloat64) {
    return ModelDraft::input(name, std::move(shape), dtype);
  }
  void update(Value* from, Value* to) { model.state.push_back({.input = from, .output = to}); }
  Executor executor(bool fuse = true) const {
    return Executor(std::make_shared<ir::Model>(ir::clone(model)), builtin_engine(),
                    {.fuse = fuse});
  }
};

Tensor column(const std::vector<double>& numbers) {
  const auto rows = static_cast<std::int64_t>(numbers.size());
  return Tensor::from(numbers, Dims{rows, 1});
}

// y = x w + b by gradient descent on the mean squared error.
class LinearRegression : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    ir::GraphBuilder& g = f_.g;
    Value* x = f_.input("x", {ir::Dim::named("N"), 1});
    Value* y = f_.input("y", {ir::Dim::named("N"), 1});
    Value* rate = f_.input("rate", {});
    Value* w = f_.state("w", column({0.5}));
    Value* b = f_.state("b", Tensor::from(std::vector<double>{0.25}, Dims{1}));
    Value* d = g.sub(g.add(g.matmul(x, w), b), y);
    Value* loss = g.reduce_mean(g.mul(d, d), {}, false);
    const std::vector<Value*> outputs{loss};
    const std::vector<Value*> seeds{g.ones_like(loss)};
    const std::vector<Value*> weights{w, b};
    const auto gradients = autodiff::add_vjp(g, builtin_engine().ops, outputs, seeds, weights);
    f_.update(w, g.sub(w, g.mul(rate, gradients[0])));
    f_.update(b, g.sub(b, g.mul(rate, gradients[1])));
    f_.model.graph->outputs = {loss};
  }

  // One step in plain arithmetic; returns the loss.
  static double step(double& w, double& b, const std::vector<double>& x,
                     const std::vector<double>& y, double rate) {
    double loss = 0;
    double dw = 0;
    double db = 0;
    const auto n = static_cast<double>(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double d = x[i] * w + b - y[i];
      loss += d * d / n;
      dw += 2 * d * x[i] / n;
      db += 2 * d / n;
    }
    w -= rate * dw;
    b -= rate * db;
    return loss;
  }

  Fixture f_;
};

TEST_P(LinearRegression, FollowsTheHandWrittenLoop) {
  Executor executor = f_.executor(GetParam());
  ASSERT_EQ(executor.inputs().size(), 3U);
  ASSERT_EQ(executor.state().size(), 2U);
  double w = 0.5;
  double b = 0.25;
  for (int i = 0; i < 30; ++i) {
    // Two shapes take turns over one state.
    const std::vector<double> x =
        i % 2 == 0 ? std::vector<double>{1, -2, 3} : std::vector<double>{0.5};
    const std::vector<double> y =
        i % 2 == 0 ? std::vector<double>{2, 1, -1} : std::vector<double>{4};
    const double expected = step(w, b, x, y, 0.05);
    const std::vector<Tensor> inputs{column(x), column(y), Tensor::scalar(0.05)};
    const std::vector<Tensor> outputs = executor.run(inputs);
    ASSERT_NEAR(outputs[0].to_doubles()[0], expected, 1e-12);
    ASSERT_NEAR(executor.read_state(0).to_doubles()[0], w, 1e-12);
    ASSERT_NEAR(executor.read_state(1).to_doubles()[0], b, 1e-12);
  }
}

TEST_P(LinearRegression, RunsFewKernelsInPlace) {
  Executor executor = f_.executor(GetParam());
  const Execution& plan = executor.prepare({Dims{10, 1}, Dims{10, 1}, Dims{}});
  if (!GetParam()) {
    EXPECT_GE(plan.num_kernels(), 8U);  // about one per operator
    return;
  }
  EXPECT_EQ(plan.num_kernels(), 1U) << plan.to_text();
  EXPECT_NE(plan.to_text().find("Sub_1 float64[1, 1] @state 0"), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Fusion, LinearRegression, testing::Bool());

// loss = sum((x w) w): the weight is read twice forward, and both reads come before the update.
TEST(Executor, TiedWeightIsUpdatedAfterItsLastReader) {
  for (const bool fuse : {true, false}) {
    Fixture f;
    Value* x = f.input("x", {2, 2});
    const std::vector<double> initial{1, 2, 3, 4};
    Value* w = f.state("w", Tensor::from(initial, Dims{2, 2}));
    Value* y = f.g.matmul(f.g.matmul(x, w), w);
    Value* loss = f.g.reduce_sum(y, {}, false);
    const std::vector<Value*> outputs{loss};
    const std::vector<Value*> seeds{f.g.ones_like(loss)};
    const std::vector<Value*> weights{w};
    const auto gradients = autodiff::add_vjp(f.g, builtin_engine().ops, outputs, seeds, weights);
    f.update(w, f.g.sub(w, gradients[0]));
    f.model.graph->outputs = {loss};
    Executor executor = f.executor(fuse);
    const std::vector<Tensor> inputs{Tensor::from(std::vector<double>{1, 0, 0, 1}, Dims{2, 2})};
    EXPECT_DOUBLE_EQ(executor.run(inputs)[0].to_doubles()[0], 7 + 10 + 15 + 22);
    // d sum(W W) / dW_ij = (row sum of column index j of W) + (column sum of row index i of W).
    EXPECT_EQ(executor.read_state(0).to_doubles(),
              (std::vector<double>{1 - (3 + 4), 2 - (7 + 4), 3 - (3 + 6), 4 - (7 + 6)}));
  }
}

TEST(Executor, StatesCanSwapAndKeepAndShowOldValues) {
  Fixture f;
  Value* a = f.state("a", Tensor::scalar(1.0));
  Value* b = f.state("b", Tensor::scalar(2.0));
  Value* c = f.state("c", Tensor::scalar(3.0));
  Value* x = f.input("x", {});
  f.update(a, b);
  f.update(b, a);
  f.update(c, f.g.add(c, x));
  f.model.graph->outputs = {c};  // the value before the step
  Executor executor = f.executor();
  const std::vector<Tensor> inputs{Tensor::scalar(10.0)};
  EXPECT_EQ(executor.run(inputs)[0].to_doubles()[0], 3);
  EXPECT_EQ(executor.run(inputs)[0].to_doubles()[0], 13);
  EXPECT_EQ(executor.read_state(0).to_doubles()[0], 1);
  EXPECT_EQ(executor.read_state(1).to_doubles()[0], 2);
  EXPECT_EQ(executor.read_state(2).to_doubles()[0], 23);
}

// Equal nodes are merged, and nodes that do nothing are dropped, under the states too.
TEST(Executor, StatesMayTakeOneValue) {
  for (const bool fuse : {false, true}) {
    Fixture f;
    Value* x = f.input("x", {ir::Dim::named("N"), 1});
    Value* a = f.state("a", column({0, 0}));
    Value* b = f.state("b", column({0, 0}));
    Value* c = f.state("c", column({0, 0}));
    f.update(a, f.g.mul(x, x));
    f.update(b, f.g.mul(x, x));
    f.update(c, f.g.identity(f.g.mul(x, x)));
    f.model.graph->outputs = {f.g.add(a, f.g.add(b, c))};
    Executor executor = f.executor(fuse);
    const std::vector<Tensor> inputs{column({2, 3})};
    EXPECT_EQ(executor.run(inputs)[0].to_doubles(), (std::vector<double>{0, 0}));
    EXPECT_EQ(executor.run(inputs)[0].to_doubles(), (std::vector<double>{12, 27}));
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(executor.read_state(i).to_doubles(), (std::vector<double>{4, 9})) << i;
    }
  }
}

TEST(Executor, SharesTheGivenModelAndLeavesItAsItIs) {
  Fixture f;
  Value* x = f.input("x", {ir::Dim::named("N")});
  Value* w = f.state("w", Tensor::from(std::vector<double>{2}, Dims{1}));
  f.update(w, f.g.add(w, w));
  f.model.graph->outputs = {f.g.mul(x, w)};
  const auto model = std::make_shared<const ir::Model>(ir::clone(f.model));
  const std::string before = ir::to_text(*model->graph);
  Executor executor(model, builtin_engine());
  EXPECT_EQ(model.use_count(), 2);  // no copy besides those of its plans
  for (const std::vector<double>& numbers : {std::vector{1.0}, std::vector{1.0, 3.0}}) {
    const Dims dims{static_cast<std::int64_t>(numbers.size())};
    executor.run(std::vector{Tensor::from(numbers, dims)});
  }
  EXPECT_EQ(executor.read_state(0).to_doubles(), std::vector{8.0});
  EXPECT_EQ(ir::to_text(*model->graph), before);
}

TEST(Executor, WrongInputsAreNamed) {
  Fixture f;
  Value* x = f.input("pixels", {ir::Dim::named("N"), 3});
  f.model.graph->outputs = {f.g.exp(x)};
  Executor executor = f.executor();
  try {
    executor.prepare({Dims{2, 4}});
    FAIL();
  } catch (const ShapeError& error) {
    EXPECT_NE(std::string(error.what()).find("'pixels'"), std::string::npos);
  }
  const std::vector<Tensor> inputs{Tensor::from(std::vector<float>{1, 2, 3}, Dims{1, 3})};
  EXPECT_THROW(executor.run(inputs), DataError);
}

TEST(Executor, OneArenaServesAllShapes) {
  Fixture f;
  Value* x = f.input("x", {ir::Dim::named("N"), 4});
  Value* w = f.state("w", Tensor::zeros(DataType::kFloat64, Dims{4, 4}));
  Value* y = f.g.matmul(f.g.op("Softmax", {f.g.matmul(x, w)}), w);
  f.model.graph->outputs = {y};
  Executor executor = f.executor();
  Execution& small = executor.prepare({Dims{2, 4}});
  executor.prepare({Dims{64, 4}});  // moves the arena
  const Tensor rows = Tensor::zeros(DataType::kFloat64, Dims{2, 4});
  small.bind(0, rows.raw());
  small.run();
  EXPECT_EQ(small.output_desc(0).dims, (Dims{2, 4}));
  EXPECT_EQ(small.output_tensor(0).to_doubles(), std::vector<double>(8, 0));
}

// sum over the positive elements of x w, found by NonZero: the shape depends on the values, and the
// update of w comes after it.
TEST(Executor, NonZeroEndsARegion) {
  for (const bool fuse : {true, false}) {
    Fixture f;
    Value* x = f.input("x", {ir::Dim::named("N")});
    Value* w = f.state("w", Tensor::scalar(2.0));
    Value* y = f.g.mul(x, w);
    Value* positive = f.g.greater(y, f.g.scalar_like(y, 0));
    Value* where = f.g.squeeze(f.g.op("NonZero", {positive}), {0});
    Value* picked = f.g.gather(y, where, 0);
    Value* loss = f.g.reduce_sum(f.g.mul(picked, picked), {}, false);
    const std::vector<Value*> outputs{loss};
    const std::vector<Value*> seeds{f.g.ones_like(loss)};
    const std::vector<Value*> weights{w};
    const auto gradients = autodiff::add_vjp(f.g, builtin_engine().ops, outputs, seeds, weights);
    f.update(w, f.g.sub(w, f.g.scale(gradients[0], 0.01)));
    f.model.graph->outputs = {loss, picked};
    Executor executor = f.executor(fuse);
    double expected_w = 2;
    for (const std::vector<double>& numbers :
         {std::vector<double>{1, -1, 3}, std::vector<double>{-1, -2, 2},
          std::vector<double>{-1, -1, -1}}) {
      double squares = 0;
      for (const double v : numbers) squares += v > 0 ? v * v : 0;
      const std::vector<Tensor> inputs{Tensor::from(numbers, Dims{3})};
      const std::vector<Tensor> results = executor.run(inputs);
      EXPECT_NEAR(results[0].to_doubles()[0], squares * expected_w * expected_w, 1e-12);
      EXPECT_EQ(results[1].num_elements(),
                std::ranges::count_if(numbers, [](double v) { return v > 0; }));
      expected_w -= 0.01 * 2 * expected_w * squares;
      EXPECT_NEAR(executor.read_state(0).to_doubles()[0], expected_w, 1e-12);
    }
  }
}

// y = condition ? x w : x + w, with w captured by both branches.
TEST(Executor, IfRunsAndDifferentiatesTheBranchTaken) {
  Fixture f;
  Value* condition = f.input("condition", {}, DataType::kBool);
  Value* x = f.input("x", {2});
  Value* w = f.state("w", Tensor::from(std::vector<double>{3, 5}, Dims{2}));
  const auto branch = [&](const char* op_type) {
    auto graph = std::make_shared<ir::Graph>(f.model.graph->names_ptr(), f.model.graph.get());
    graph->name = op_type;
    ir::GraphBuilder g(f.model, *graph, *f.inferer, builtin_engine().ops);
    graph->outputs = {g.op(op_type, {x, w})};
    return ir::GraphPtr(graph);
  };
  Value* y = f.g.op("If", {condition},
                    {{.name = "then_branch", .value = branch("Mul")},
                     {.name = "else_branch", .value = branch("Add")}});
  Value* loss = f.g.reduce_sum(f.g.mul(y, y), {}, false);
  const std::vector<Value*> outputs{loss};
  const std::vector<Value*> seeds{f.g.ones_like(loss)};
  const std::vector<Value*> wrt{w, x};
  const auto gradients = autodiff::add_vjp(f.g, builtin_engine().ops, outputs, seeds, wrt);
  f.model.graph->outputs = {y, gradients[0], gradients[1]};
  f.update(w, f.g.identity(w));
  Executor executor = f.executor();
  const Tensor numbers = Tensor::from(std::vector<double>{2, 7}, Dims{2});
  const auto run = [&](bool taken) {
    const std::vector<Tensor> inputs{Tensor::scalar(taken), numbers};
    return executor.run(inputs);
  };
  // dy = 2 y; Mul: dw = dy x, dx = dy w; Add: dw = dx = dy.
  const std::vector<Tensor> product = run(true);
  EXPECT_EQ(product[0].to_doubles(), (std::vector<double>{6, 35}));
  EXPECT_EQ(product[1].to_doubles(), (std::vector<double>{24, 490}));
  EXPECT_EQ(product[2].to_doubles(), (std::vector<double>{36, 350}));
  const std::vector<Tensor> sum = run(false);
  EXPECT_EQ(sum[0].to_doubles(), (std::vector<double>{5, 12}));
  EXPECT_EQ(sum[1].to_doubles(), (std::vector<double>{10, 24}));
  EXPECT_EQ(sum[2].to_doubles(), (std::vector<double>{10, 24}));
}

// A Reshape to a shape that is fed: the tail is compiled for its value.
TEST(Executor, ShapesCanBeFed) {
  Fixture f;
  Value* x = f.input("x", {6});
  Value* shape = f.input("shape", {ir::Dim::named("R")}, DataType::kInt64);
  f.model.graph->outputs = {f.g.neg(f.g.reshape(x, shape))};
  Executor executor = f.executor();
  const Tensor numbers = Tensor::from(std::vector<double>{1, 2, 3, 4, 5, 6}, Dims{6});
  for (const std::vector<std::int64_t>& wanted :
       {std::vector<std::int64_t>{2, 3}, std::vector<std::int64_t>{3, 2}}) {
    const std::vector<Tensor> inputs{numbers, Tensor::from(wanted, Dims{2})};
    const std::vector<Tensor> results = executor.run(inputs);
    EXPECT_EQ(results[0].dims(), Dims(wanted));
    EXPECT_EQ(results[0].to_doubles()[5], -6);
  }
}

TEST(Executor, ProfilesTracesAndCountsMemory) {
  Fixture f;
  Value* x = f.input("x", {4, 4});
  Value* w = f.state("w", Tensor::zeros(DataType::kFloat64, Dims{4, 4}));
  f.update(w, f.g.add(w, x));
  f.model.graph->outputs = {f.g.exp(f.g.matmul(x, x))};
  Executor executor = f.executor();
  const std::vector<Tensor> inputs{Tensor::zeros(DataType::kFloat64, Dims{4, 4})};
  executor.run(inputs);
  EXPECT_TRUE(executor.profile().empty());
  executor.set_profiling(true, 3);
  for (int i = 0; i < 5; ++i) executor.run(inputs);
  executor.set_profiling(false);
  executor.run(inputs);
  const auto table = executor.profile();
  ASSERT_EQ(table.size(), 2U);
  for (const KernelProfile& kernel : table) {
    EXPECT_EQ(kernel.calls, 5);
    EXPECT_GT(kernel.total_s, 0);
  }
  EXPECT_GE(table[0].total_s, table[1].total_s);
  const std::string trace = executor.trace_json();
  std::size_t events = 0;
  for (std::size_t at = 0; (at = trace.find("\"ph\":\"X\"", at)) != std::string::npos; ++at)
    ++events;
  EXPECT_EQ(events, 3U) << trace;
  EXPECT_EQ(executor.memory().state, 128);
  EXPECT_GE(executor.memory().arena, 128);
}

// y = log(exp(x) - 1): the logarithm of a negative number is the first that is not a number.
TEST(Executor, FindsTheFirstValueThatIsNotFinite) {
  Fixture f;
  Value* x = f.input("x", {2});
  Value* y = f.g.log(f.g.sub(f.g.exp(x), f.g.scalar_like(x, 1)));
  f.model.graph->outputs = {f.g.mul(y, y)};
  Executor executor = f.executor(/*fuse=*/false);
  Execution& execution = executor.prepare({Dims{2}});
  const std::vector<double> good{1, 2};
  execution.bind(0, reinterpret_cast<const std::byte*>(good.data()));
  EXPECT_FALSE(execution.run_until_non_finite());
  const std::vector<double> bad{1, -2};
  execution.bind(0, reinterpret_cast<const std::byte*>(bad.data()));
  const auto found = execution.run_until_non_finite();
  ASSERT_TRUE(found);
  EXPECT_EQ(found->value, y->name);
}

// Results lie in blocks that the caller owns; an input that is a result is the same memory.
TEST(Executor, KeepsResultsWithoutCopies) {
  Fixture f;
  Value* x = f.input("x", {ir::Dim::named("N")});
  Value* doubled = f.g.scale(x, 2);
  Value* squared = f.g.mul(doubled, doubled);
  f.model.graph->outputs = {squared, doubled, f.g.reshape(x, {-1, 1}), f.g.scalar_like(x, 7)};
  Executor executor(std::make_shared<ir::Model>(ir::clone(f.model)), builtin_engine(),
                    {.output_blocks = {0, 1, 1, 1}});
  const Tensor input = Tensor::from(std::vector<double>{1, 2, 3}, Dims{3});
  const auto first = executor.run_keeping(std::vector{input});
  const auto second = executor.run_keeping(std::vector{input.clone()});
  EXPECT_EQ(first[0].to_doubles(), (std::vector<double>{4, 16, 36}));
  EXPECT_EQ(first[1].to_doubles(), (std::vector<double>{2, 4, 6}));
  EXPECT_EQ(first[2].raw(), input.raw());
  EXPECT_EQ(first[2].dims(), Dims({3, 1}));
  EXPECT_EQ(first[3].to_doubles(), std::vector<double>{7});
  EXPECT_EQ(first[3].raw(), second[3].raw());
  EXPECT_NE(first[0].raw(), second[0].raw());
  EXPECT_EQ(executor.num_compiled(), 1);
  // Two runs, two blocks of one unit each. Another device's results are copies, so the second run
  // takes the blocks of the first.
  const int runs = builtin_engine().device.is_host() ? 2 : 1;
  EXPECT_EQ(executor.memory().blocks, runs * 2 * builtin_engine().device.alignment());
}

// A shape that comes in as a value is known when the plan is compiled for it.
TEST(Executor, ShapeInputsAreCompiledByValue) {
  Fixture f;
  Value* x = f.input("x", {ir::Dim::named("N")});
  Value* shape = f.input("shape", {2}, DataType::kInt64);
  f.model.graph->outputs = {f.g.scale(f.g.reshape(x, shape), 3)};
  Executor executor(std::make_shared<ir::Model>(ir::clone(f.model)), builtin_engine(),
                    {.output_blocks = {0}, .shape_inputs = {1}});
  const Tensor input = Tensor::from(std::vector<double>{1, 2, 3, 4}, Dims{4});
  const auto run = [&](std::vector<std::int64_t> dims) {
    return executor.run_keeping(std::vector{input, Tensor::from(dims, Dims{2})}).at(0);
  };
  EXPECT_EQ(run({2, 2}).dims(), Dims({2, 2}));
  EXPECT_EQ(run({4, 1}).dims(), Dims({4, 1}));
  EXPECT_EQ(run({2, 2}).to_doubles(), (std::vector<double>{3, 6, 9, 12}));
  EXPECT_EQ(executor.num_compiled(), 2);
}

// Rows of a table by number, of those rows of x that are positive: the numbers decide no shape.
struct PickedRows : Fixture {
  PickedRows() {
    Value* x = input("x", {ir::Dim::named("N")});
    Value* labels = input("labels", {ir::Dim::named("N")}, DataType::kInt64);
    Value* table = g.constant(column({10, 20, 30}), "table");
    Value* where = g.squeeze(g.op("NonZero", {g.greater(x, g.scalar_like(x, 0))}), {0});
    model.graph->outputs = {g.gather(table, g.gather(labels, where, 0), 0)};
  }
  static std::vector<Tensor> feeds(const std::vector<double>& x,
                                   const std::vector<std::int64_t>& labels) {
    const auto rows = static_cast<std::int64_t>(x.size());
    return {Tensor::from(x, Dims{rows}), Tensor::from(labels, Dims{rows})};
  }
};

TEST(Executor, TailsAreCompiledForShapesAndNotForLabels) {
  const PickedRows f;
  Executor executor = f.executor();
  EXPECT_EQ(executor.run(f.feeds({1, -1, 1}, {2, 0, 1}))[0].to_doubles(),
            (std::vector<double>{30, 20}));
  const std::int64_t compiled = executor.num_compiled();
  EXPECT_GE(compiled, 2);  // the tail counts
  EXPECT_EQ(executor.run(f.feeds({1, 1, -1}, {0, 2, 1}))[0].to_doubles(),
            (std::vector<double>{10, 30}));
  EXPECT_EQ(executor.num_compiled(), compiled);
  EXPECT_EQ(executor.run(f.feeds({-1, 1, -1}, {0, 2, 1}))[0].to_doubles(),
            (std::vector<double>{30}));
  EXPECT_EQ(executor.num_compiled(), compiled + 1);  // one row is another shape
}

TEST(Executor, TailsUsedLastAreKept) {
  const PickedRows f;
  Executor executor(std::make_shared<ir::Model>(ir::clone(f.model)), builtin_engine(),
                    {.max_cached_plans = 4});
  const auto run = [&](std::size_t positive) {
    std::vector<double> x(20, -1);
    std::fill_n(x.begin(), positive, 1);
    EXPECT_EQ(executor.run(f.feeds(x, std::vector<std::int64_t>(20, 1)))[0].to_doubles(),
              std::vector<double>(positive, 20));
    return executor.num_compiled();
  };
  for (std::size_t positive = 1; positive <= 15; ++positive) run(positive);
  EXPECT_EQ(executor.num_cached(), 1 + 4);
  const std::int64_t dynamic = executor.memory().dynamic;
  EXPECT_GT(dynamic, 0);
  const std::int64_t compiled = run(15);
  EXPECT_EQ(compiled, 16);
  EXPECT_EQ(run(12), compiled);  // still there, and now the one used last
  EXPECT_EQ(run(1), compiled + 1);
  EXPECT_EQ(run(12), compiled + 1);
  EXPECT_EQ(executor.num_cached(), 1 + 4);
  EXPECT_LE(executor.memory().dynamic, 2 * dynamic);
}

// An integer state that a tail carries on to a second tail.
TEST(Executor, CountsThroughTwoTails) {
  Fixture f;
  Value* x = f.input("x", {ir::Dim::named("N")});
  Value* count = f.state("count", Tensor::scalar(std::int64_t{0}));
  const auto positive = [&](Value* values) {
    Value* where = f.g.op("NonZero", {f.g.greater(values, f.g.scalar_like(values, 0))});
    return f.g.gather(values, f.g.squeeze(where, {0}), 0);
  };
  Value* once = positive(x);
  Value* twice = positive(f.g.sub(once, f.g.scalar_like(once, 1)));
  f.update(count, f.g.add(count, f.g.int_scalar(1)));
  f.model.graph->outputs = {twice};
  Executor executor = f.executor();
  for (const std::vector<double>& numbers : {std::vector<double>{3, -1, 0.5, 2}, {5, 3, 1, 0}}) {
    const auto results = executor.run(std::vector{Tensor::from(numbers, Dims{4})});
    EXPECT_EQ(results[0].to_doubles(),
              (std::vector<double>{numbers[0] - 1, numbers[0] == 3 ? 1.0 : 2.0}));
  }
  EXPECT_EQ(executor.read_state(0).to_int64s(), std::vector<std::int64_t>{2});
  EXPECT_EQ(executor.num_compiled(), 3);
}

TEST(Executor, UnknownOperatorIsRefusedWithItsName) {
  Fixture f;
  Value* x = f.input("x", {3}, DataType::kFloat32);
  ir::Node* node = f.model.graph->add_node("Frobnicate", {x}, 1, {}, "my.domain", "frob");
  node->outputs[0]->type = x->type;
  ir::Node* other = f.model.graph->add_node("Sign", {node->outputs[0]}, 1, {}, "other", "sign");
  other->outputs[0]->type = x->type;
  f.model.graph->outputs = {other->outputs[0]};
  try {
    const Executor executor = f.executor();
    FAIL();
  } catch (const UnsupportedOperatorError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("2 nodes: my.domain.Frobnicate"), std::string::npos) << text;
    EXPECT_NE(text.find("other.Sign"), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace onnxgrad::runtime::executor_test
