#include "runtime/streams.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "ir/builder.h"
#include "onnx/inference.h"
#include "runtime/program.h"
#include "runtime/testing/builtin_engine.h"

namespace onnxgrad::runtime::streams_test {
namespace {

using ir::Value;
using Kind = Location::Kind;

bool overlap(const PlanStep& a, std::size_t i, const PlanStep& b, std::size_t j) {
  const Location& x = a.args[i];
  const Location& y = b.args[j];
  if (x.kind != y.kind || a.uses[i].bytes == 0 || b.uses[j].bytes == 0) return false;
  if (x.kind == Kind::kState) return x.at == y.at;
  if (x.kind == Kind::kBlock && x.block != y.block) return false;
  if (x.kind != Kind::kArena && x.kind != Kind::kBlock) return false;
  return x.at < y.at + b.uses[j].bytes && y.at < x.at + a.uses[i].bytes;
}

bool writes_state(const PlanStep& step) {
  for (std::size_t i = 0; i < step.args.size(); ++i) {
    const device::Operand& use = step.uses[i];
    if (step.args[i].kind == Kind::kState && use.is_written && use.bytes > 0) return true;
  }
  return false;
}

// Whether `second` has to come after `first`.
bool conflict(const PlanStep& first, const PlanStep& second) {
  if (first.is_exchange && second.is_exchange) return true;
  if (!first.kernel.checks.empty() && writes_state(second)) return true;
  for (std::size_t i = 0; i < first.args.size(); ++i) {
    for (std::size_t j = 0; j < second.args.size(); ++j) {
      const bool writes = first.uses[i].is_written || second.uses[j].is_written;
      if (writes && overlap(first, i, second, j)) return true;
    }
  }
  return false;
}

// Checks every pair of steps by the closure of the streams' orders and the waits. Returns how many
// streams the plan uses.
std::size_t check(const Plan& plan) {
  std::set<int> streams;
  std::vector<bool> is_in_segment(plan.steps.size());
  for (const Segment& segment : plan.segments) {
    const std::size_t n = segment.end - segment.begin;
    const auto at = [&](std::size_t i) -> const PlanStep& { return plan.steps[segment.begin + i]; };
    // comes_after[i][j]: step i begins after step j has ended.
    std::vector<std::vector<bool>> comes_after(n, std::vector<bool>(n));
    std::vector<bool> is_awaited(n);
    for (std::size_t i = 0; i < n; ++i) {
      is_in_segment[segment.begin + i] = true;
      streams.insert(at(i).place.stream);
      std::vector<std::size_t> before;
      for (std::size_t j = i; j-- > 0;) {
        if (at(j).place.stream != at(i).place.stream) continue;
        before.push_back(j);
        break;
      }
      for (const std::uint32_t j : at(i).place.waits) {
        EXPECT_LT(j, i);
        EXPECT_NE(at(j).place.stream, at(i).place.stream);
        is_awaited[j] = true;
        for (const std::size_t other : before) {
          EXPECT_FALSE(other == j || comes_after[other][j]) << "step " << i << " waits for " << j;
        }
        before.push_back(j);
      }
      for (const std::size_t j : before) {
        comes_after[i][j] = true;
        for (std::size_t k = 0; k < j; ++k) {
          if (comes_after[j][k]) comes_after[i][k] = true;
        }
      }
      for (std::size_t j = 0; j < i; ++j) {
        if (!conflict(at(j), at(i))) continue;
        EXPECT_TRUE(comes_after[i][j]) << "steps " << j << " and " << i << "\n" << plan.to_text();
      }
    }
    for (std::size_t i = 0; i < n; ++i) EXPECT_EQ(at(i).place.is_awaited, is_awaited[i]);
  }
  EXPECT_TRUE(std::ranges::all_of(is_in_segment, [](bool is_in) { return is_in; }));
  return streams.size();
}

PlanStep random_step(std::mt19937& random) {
  PlanStep step;
  const auto up_to = [&](unsigned n) { return static_cast<std::int64_t>(random() % n); };
  for (std::int64_t i = up_to(4); i >= 0; --i) {
    const std::int64_t what = up_to(8);
    Location at{.kind = Kind::kArena, .at = up_to(64)};
    if (what == 1) at = {.kind = Kind::kState, .at = up_to(3)};
    if (what == 2) at = {.kind = Kind::kBlock, .at = up_to(8), .block = random() % 2};
    if (what == 3) at = {.kind = Kind::kFeed};
    step.args.push_back(at);
    const bool is_written = what != 3 && up_to(3) == 0;
    step.uses.push_back({.bytes = up_to(6), .is_read = !is_written, .is_written = is_written});
  }
  step.kernel.flops = 1000.0 * static_cast<double>(up_to(100000));
  if (up_to(12) == 0) step.kernel.checks.emplace_back();
  step.is_exchange = up_to(12) == 0;
  return step;
}

TEST(Streams, OrderConflictingSteps) {
  std::mt19937 random(11);
  for (int i = 0; i < 300; ++i) {
    Plan plan;
    const std::size_t size = 1 + random() % 60;
    while (plan.steps.size() < size) plan.steps.push_back(random_step(random));
    const std::size_t middle = random() % (size + 1);
    if (middle > 0) plan.segments.push_back({.begin = 0, .end = middle});
    if (middle < size) {
      plan.segments.push_back({.kind = Segment::Kind::kSubmitted, .begin = middle, .end = size});
    }
    const int most = 1 + static_cast<int>(random() % 4);
    assign_streams(plan, most);
    EXPECT_LE(check(plan), static_cast<std::size_t>(most));
    if (HasFailure()) return;
  }
}

struct Fixture {
  std::shared_ptr<ir::Model> model = [] {
    auto empty = std::make_shared<ir::Model>();
    empty->set_opset("", ir::kInternalOpset);
    return empty;
  }();
  std::unique_ptr<ir::TypeInferer> inferer = onnx_io::make_type_inferer(*model);
  ir::GraphBuilder g{*model, *model->graph, *inferer, builtin_engine().ops};
  Program program;
  std::vector<FeedInfo> feeds;

  Value* input(const Dims& dims) {
    program.inputs.push_back({.index = program.num_feeds++});
    feeds.push_back({.desc = {.dtype = DataType::kFloat32, .dims = dims}, .value = {}});
    return model->graph->add_input("x" + std::to_string(program.num_feeds),
                                   ir::Type::tensor(DataType::kFloat32, dims));
  }
  // One kernel for each node.
  Plan plan(device::Device& device) const {
    const Engine& known = builtin_engine();
    const Engine engine{known.ops, known.kernels, known.make_inferer, device};
    Program own = program;
    own.model = std::make_shared<ir::Model>(ir::clone(*model));
    return compile(own, feeds, engine, {.fuse = false}).plan;
  }
};

TEST(Streams, OrderThePlansOfRandomGraphs) {
  std::mt19937 random(5);
  std::size_t num_spread = 0;
  for (int i = 0; i < 60; ++i) {
    Fixture f;
    std::vector<Value*> values{f.input({8, 8}), f.input({8, 8})};
    const auto any = [&] { return values[random() % values.size()]; };
    for (std::size_t n = random() % 40; n-- > 0;) {
      switch (random() % 4) {
        case 0:
          values.push_back(f.g.matmul(any(), any()));
          break;
        case 1:
          values.push_back(f.g.exp(any()));
          break;
        default:
          values.push_back(f.g.add(any(), any()));
      }
    }
    f.model->graph->outputs = {values.back(), any()};
    if (check(f.plan(device::testing::simulated_device())) > 1) ++num_spread;
    for (const PlanStep& step : f.plan(device::cpu()).steps) EXPECT_EQ(step.place.stream, 0);
    if (HasFailure()) return;
  }
  EXPECT_GT(num_spread, 30U);
}

// Both sides of a diamond read the same value, whose memory the second one does not take over.
TEST(Streams, ADiamondTakesTwo) {
  Fixture f;
  Value* top = f.g.exp(f.input({64, 64}));
  Value* left = f.g.exp(top);
  Value* right = f.g.matmul(top, top);
  f.model->graph->outputs = {f.g.add(left, right)};
  const Plan plan = f.plan(device::testing::simulated_device());
  EXPECT_EQ(check(plan), 2U) << plan.to_text();
  ASSERT_EQ(plan.steps.size(), 4U);
  EXPECT_NE(plan.steps[1].place.stream, plan.steps[2].place.stream);
  EXPECT_EQ(plan.steps[3].place.waits.size(), 1U);
  EXPECT_NE(plan.to_text().find("(stream 1 after 0)"), std::string::npos) << plan.to_text();
}

}  // namespace
}  // namespace onnxgrad::runtime::streams_test
