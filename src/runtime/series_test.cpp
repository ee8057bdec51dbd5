// Series of steps, wherever their rows are, with and without a tail of the plan.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "ir/builder.h"
#include "onnx/inference.h"
#include "runtime/executor.h"
#include "runtime/resident_rows.h"
#include "runtime/testing/builtin_engine.h"

namespace onnxgrad::runtime::series_test {
namespace {

// s = s + rate sum(x); returns sum(x); the sum of the positive x, which are found by a shape that
// depends on them if there is a tail; and a view of the old s.
Executor make_executor(bool has_tail) {
  ir::Model model;
  model.set_opset("", ir::kInternalOpset);
  const auto inferer = onnx_io::make_type_inferer(model);
  ir::GraphBuilder g{model, *model.graph, *inferer, builtin_engine().ops};
  const auto input = [&](const char* name, ir::SymbolicShape shape) {
    return model.graph->add_input(name, ir::Type::tensor(DataType::kFloat64, std::move(shape)));
  };
  ir::Value* x = input("x", {ir::Dim::named("N")});
  ir::Value* rate = input("rate", {});
  ir::Value* s = input("s", {});
  s->initializer = Tensor::scalar(1.0);
  model.graph->initializers.push_back(s);
  ir::Value* positive = nullptr;
  if (has_tail) {
    ir::Value* where = g.squeeze(g.op("NonZero", {g.greater(x, g.scalar_like(x, 0))}), {0});
    positive = g.gather(x, where, 0);
  } else {
    positive = g.op("Relu", {x});
  }
  ir::Value* sum = g.reduce_sum(x, {}, false);
  model.state.push_back({.input = s, .output = g.add(s, g.mul(rate, sum))});
  model.graph->outputs = {sum, g.reduce_sum(positive, {}, false), g.reshape(s, {1})};
  return Executor(std::make_shared<ir::Model>(ir::clone(model)), builtin_engine(), {});
}

constexpr std::int64_t kBatch = 3;
constexpr std::size_t kSteps = 5;

// Batches in two blocks of staging memory.
struct Staged final : StagedBatches {
  Staged(device::Device& device, const std::vector<double>& all,
         const std::vector<std::int64_t>& places)
      : numbers(all), order(places) {
    for (auto& slot : slots) slot = device.allocate_staging(kBatch * sizeof(double));
  }
  void fill(std::size_t step, std::size_t slot) override {
    for (std::size_t i = 0; i < kBatch; ++i) {
      reinterpret_cast<double*>(slots[slot].get())[i] =
          numbers[static_cast<std::size_t>(order[step * kBatch + i])];
    }
  }
  const std::byte* rows(std::size_t /*i*/, std::size_t slot) const override {
    return slots[slot].get();
  }

  const std::vector<double>& numbers;
  const std::vector<std::int64_t>& order;
  std::array<std::shared_ptr<std::byte>, 2> slots = {};
};

class Series : public testing::TestWithParam<std::tuple<std::string, bool>> {};

TEST_P(Series, AreTheirSteps) {
  const auto& [place, has_tail] = GetParam();
  Executor executor = make_executor(has_tail);
  if (place != "in place" && executor.device().is_host()) {
    GTEST_SKIP() << "the host reads rows in place";
  }
  std::vector<double> numbers(kSteps * kBatch);
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<double>(i * i % 11) - 4;
  const bool is_gathered = place == "resident" || place == "staged";
  std::vector<std::int64_t> order;  // 7 i mod 15: a permutation
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    order.push_back(static_cast<std::int64_t>(is_gathered ? 7 * i % numbers.size() : i));
  }
  const auto* const data = reinterpret_cast<const std::byte*>(numbers.data());
  const std::vector<ResidentRows::Column> columns{
      {.input = 0, .data = data, .row_bytes = sizeof(double)}};
  const auto resident = ResidentRows::copy(executor.device(), *executor.stream(), columns,
                                           static_cast<std::int64_t>(numbers.size()));
  ASSERT_NE(resident, nullptr);
  if (place == "resident") resident->set_order(order);

  double bound = 9;
  const std::vector<double> rates{0.5, 2, 0, 1, 0.25};
  const std::vector<std::size_t> results{0, 1, 2};
  const std::vector<StepSeries::Input> inputs{
      {.number = 0, .data = data, .row_bytes = sizeof(double)}};
  Execution& plan = executor.prepare({Dims{kBatch}, Dims{}});
  plan.bind(1, reinterpret_cast<const std::byte*>(&bound));
  std::vector<double> seen(3 * kSteps);
  double s = 1;
  std::size_t done = 0;
  for (const std::size_t steps : {std::size_t{1}, std::size_t{2}, kSteps - 3}) {
    std::vector<std::int64_t> first_rows;
    for (std::size_t k = 0; k < steps; ++k) {
      first_rows.push_back(static_cast<std::int64_t>(done + k) * kBatch);
    }
    // Batches of a series are counted from its first place, or by its source.
    const std::vector<std::int64_t> rest(order.begin() + first_rows.front(), order.end());
    Staged of_rest(executor.device(), numbers, rest);
    StepSeries series{.steps = steps,
                      .batch_rows = kBatch,
                      .inputs = inputs,
                      .scalar = {.number = 1,
                                 .dtype = DataType::kFloat64,
                                 .bound = reinterpret_cast<std::byte*>(&bound),
                                 .values = std::span(rates).subspan(done, steps)},
                      .results = results};
    if (place == "in place") series.first_rows = first_rows;
    if (place == "staged") series.staged = &of_rest;
    if (place.starts_with("resident")) series.resident = resident.get();
    series.first_place = first_rows.front();
    ASSERT_EQ(plan.run_series(series, seen), steps);
    for (std::size_t k = 0; k < steps; ++k, ++done) {
      double sum = 0;
      double positive = 0;
      for (std::size_t i = 0; i < kBatch; ++i) {
        const double x = numbers[static_cast<std::size_t>(order[done * kBatch + i])];
        sum += x;
        positive += std::max(x, 0.0);
      }
      EXPECT_EQ(seen[3 * k], sum) << "step " << done;
      EXPECT_EQ(seen[3 * k + 1], positive) << "step " << done;
      EXPECT_EQ(seen[3 * k + 2], s) << "step " << done;
      s += rates[done] * sum;
    }
    EXPECT_EQ(executor.cells().step, done);
  }
  EXPECT_EQ(executor.read_state(0).to_doubles()[0], s);
  // The next run reads the number where it is bound.
  bound = 0;
  plan.bind(0, data);
  plan.run();
  EXPECT_EQ(executor.read_state(0).to_doubles()[0], s);
}

INSTANTIATE_TEST_SUITE_P(Places, Series,
                         testing::Combine(testing::Values("in place", "resident",
                                                          "resident in order", "staged"),
                                          testing::Bool()));

}  // namespace
}  // namespace onnxgrad::runtime::series_test
