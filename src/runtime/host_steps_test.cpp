#include "runtime/host_steps.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "autodiff/gradient.h"
#include "device/testing/counting_device.h"
#include "device/testing/simulated_kernels.h"
#include "device/testing/simulated_recording.h"
#include "ir/builder.h"
#include "onnx/inference.h"
#include "onnx/model_io.h"
#include "onnxgrad/error.h"
#include "runtime/evaluator.h"
#include "runtime/executor.h"
#include "runtime/testing/builtin_engine.h"
#include "runtime/testing/model_draft.h"

// Plans of the simulated device, some of whose kernels are the CPU's. Expected: the numbers of the
// CPU alone.

namespace onnxgrad::runtime::host_steps_test {
namespace {

using ir::Value;
using testing::HasSubstr;

Engine on_cpu() {
  const Engine& any = builtin_engine();
  return {.ops = any.ops, .kernels = any.on_host(), .make_inferer = any.make_inferer};
}

Engine on_device(device::Device& device, const opdef::KernelRegistry& kernels) {
  const Engine& any = builtin_engine();
  return {.ops = any.ops,
          .kernels = kernels,
          .make_inferer = any.make_inferer,
          .device = device,
          .host_kernels = &any.on_host()};
}

// All kernels of the CPU but those of these operators.
opdef::KernelRegistry without(const std::vector<std::string>& op_types) {
  opdef::KernelRegistry kernels = builtin_engine().on_host();
  for (const std::string& op_type : op_types) {
    for (const std::string_view domain : {std::string_view(""), std::string_view(ir::kFusedDomain),
                                          std::string_view(ir::kFunctionDomain)}) {
      kernels.remove(domain, op_type);
    }
  }
  return kernels;
}

Tensor ramp(const Dims& dims, double scale) {
  std::vector<double> values;
  for (std::int64_t i = 0; i < dims.num_elements(); ++i) {
    values.push_back(scale * static_cast<double>((i * 7) % 11 - 5));
  }
  return Tensor::from(values, dims).cast(DataType::kFloat32);
}

struct Draft : ModelDraft {
  Value* input(const char* name, const Dims& dims, DataType dtype = DataType::kFloat32) {
    return ModelDraft::input(name, dims, dtype);
  }
  Value* number(std::int64_t value) { return g.constant(Tensor::from(std::vector{value}, {1})); }
  std::shared_ptr<const ir::Model> done() const {
    return std::make_shared<const ir::Model>(ir::clone(model));
  }
};

// A network with gradient descent: products, element-wise work, random numbers, selections, sums.
std::shared_ptr<const ir::Model> network() {
  Draft draft;
  ir::GraphBuilder& g = draft.g;
  Value* x = draft.input("x", Dims{4, 6});
  Value* w = draft.state("w", ramp({6, 5}, 0.1));
  Value* b = draft.state("b", ramp({5}, 0.05));
  Value* hidden = g.op("Tanh", {g.add(g.matmul(x, w), b)});
  hidden = g.op("Dropout", {hidden, g.scalar_like(hidden, 0.3),
                            g.constant(Tensor::scalar_of(DataType::kBool, 1))});
  Value* best = g.ops("TopK", {hidden, draft.number(3)}, 2)[0];
  Value* sums = g.op("CumSum", {best, draft.number(1)});
  Value* shares = g.op("Softmax", {sums});
  Value* loss = g.reduce_mean(g.mul(shares, sums), {}, false);
  const std::vector<Value*> outputs{loss};
  const std::vector<Value*> seeds{g.ones_like(loss)};
  const std::vector<Value*> weights{w, b};
  const auto gradients = autodiff::add_vjp(g, builtin_engine().ops, outputs, seeds, weights);
  Value* rate = g.scalar_like(loss, 0.5);
  draft.model.state.push_back({.input = w, .output = g.sub(w, g.mul(rate, gradients[0]))});
  draft.model.state.push_back({.input = b, .output = g.sub(b, g.mul(rate, gradients[1]))});
  draft.model.graph->outputs = {loss, best};
  return draft.done();
}

struct Outcome {
  std::vector<Tensor> values;
  std::string plan;
};

// Three steps: results of each, and the state.
Outcome run(const Engine& engine) {
  Executor executor(network(), engine, {.seed = 5});
  Outcome outcome;
  for (int step = 0; step < 3; ++step) {
    const auto results = executor.run(std::vector{ramp({4, 6}, 0.2 + step)});
    outcome.values.insert(outcome.values.end(), results.begin(), results.end());
    ++executor.cells().step;
  }
  for (std::size_t i = 0; i < 2; ++i) outcome.values.push_back(executor.read_state(i).clone());
  outcome.plan = executor.prepare({Dims{4, 6}}).to_text();
  return outcome;
}

void expect_equal(const Outcome& a, const Outcome& b) {
  ASSERT_EQ(a.values.size(), b.values.size());
  for (std::size_t i = 0; i < a.values.size(); ++i) {
    EXPECT_TRUE(a.values[i].equals(b.values[i])) << i << "\n" << a.plan << b.plan;
  }
}

void expect_near(const Outcome& a, const Outcome& b) {
  ASSERT_EQ(a.values.size(), b.values.size());
  for (std::size_t i = 0; i < a.values.size(); ++i) {
    const std::vector<double> left = a.values[i].to_doubles();
    const std::vector<double> right = b.values[i].to_doubles();
    ASSERT_EQ(left.size(), right.size());
    for (std::size_t k = 0; k < left.size(); ++k) EXPECT_NEAR(left[k], right[k], 1e-5);
  }
}

std::set<std::string> op_types(const std::string& plan) {
  std::set<std::string> types;
  std::istringstream lines(plan);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    int number = 0;
    std::string type;
    if (words >> number >> type) types.insert(type);
  }
  return types;
}

TEST(HostSteps, EachOperatorLeftOutGivesTheSameBits) {
  const Outcome expected = run(on_cpu());
  const std::set<std::string> types = op_types(expected.plan);
  ASSERT_GE(types.size(), 6U) << expected.plan;
  const auto named = builtin_engine().on_host().op_types(ir::kFusedDomain);
  const std::set<std::string> fused(named.begin(), named.end());
  for (const std::string& type : types) {
    SCOPED_TRACE(type);
    const opdef::KernelRegistry kernels = without({type});
    const Outcome actual = run(on_device(device::testing::simulated_device(), kernels));
    // Passes make other fused operators only where the device has them; the CPU computes
    // element-wise nodes one by one. Sums are in another order then.
    const bool is_on_cpu = actual.plan.find(type + " [on the CPU: ") != std::string::npos;
    const bool is_made = actual.plan.find(" " + type + " [") != std::string::npos;
    const bool is_fused = fused.contains(type);
    EXPECT_TRUE(is_on_cpu || (is_fused && !is_made)) << actual.plan;
    is_fused ? expect_near(actual, expected) : expect_equal(actual, expected);
  }
  expect_near(run(on_device(device::testing::simulated_device(), {})), expected);  // none at all
}

// x -> TopK, CumSum on the CPU -> Tanh: x out, the sums in, the values between nowhere; both only
// once, although two steps read x and two read the sums.
TEST(HostSteps, ValuesAreCopiedOnceEachWay) {
  Draft draft;
  ir::GraphBuilder& g = draft.g;
  Value* x = g.op("Tanh", {draft.input("x", Dims{2, 8})});
  Value* best = g.ops("TopK", {x, draft.number(4)}, 2)[0];
  Value* sums = g.op("CumSum", {best, draft.number(1)});
  Value* others = g.op("CumSum", {x, draft.number(1)});
  draft.model.graph->outputs = {g.op("Tanh", {sums}), g.op("Sin", {sums}), g.op("Tanh", {others})};
  device::testing::CountingDevice device;
  const opdef::KernelRegistry kernels = without({"TopK", "CumSum"});
  Executor executor(draft.done(), on_device(device, kernels), {.fuse = false});
  Executor reference(draft.done(), on_cpu(), {.fuse = false});
  const std::vector<Tensor> inputs{ramp({2, 8}, 0.1)};
  Execution& plan = executor.prepare({Dims{2, 8}});
  plan.bind(0, inputs[0].raw());
  plan.run();
  executor.stream()->synchronize();
  const std::int64_t before_in = device.counts.copies_in;
  const std::int64_t before_out = device.counts.copies_out;
  plan.run();
  executor.stream()->synchronize();
  EXPECT_EQ(device.counts.copies_in - before_in, 1 + 2) << plan.to_text();  // x, two sums
  EXPECT_EQ(device.counts.copies_out - before_out, 1) << plan.to_text();
  EXPECT_TRUE(plan.output_tensor(0).equals(reference.run(inputs)[0]));
}

// Profiles and searches run one kernel at a time. Sums of large numbers are infinite.
TEST(HostSteps, KernelsRunAlone) {
  Draft draft;
  ir::GraphBuilder& g = draft.g;
  Value* x = g.op("Neg", {draft.input("x", Dims{1, 4})});
  Value* sums = g.op("CumSum", {x, draft.number(1)});
  draft.model.graph->outputs = {g.op("Softmax", {g.op("Transpose", {sums})})};
  const opdef::KernelRegistry kernels = without({"CumSum"});
  Executor executor(draft.done(), on_device(device::testing::simulated_device(), kernels));
  Executor reference(draft.done(), on_cpu());
  const std::vector<Tensor> small{ramp({1, 4}, 0.1)};
  executor.set_profiling(true);
  EXPECT_TRUE(executor.run(small)[0].equals(reference.run(small)[0]));
  Execution& plan = executor.prepare({Dims{1, 4}});
  EXPECT_EQ(executor.profile().size(), plan.num_kernels());
  executor.set_profiling(false);
  const Tensor large = Tensor::from(std::vector<float>{-3e38F, -3e38F, 1, 1}, {1, 4});
  plan.bind(0, large.raw());
  const auto found = plan.run_until_non_finite();
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->op_type, "CumSum");
  plan.bind(0, small[0].raw());
  EXPECT_FALSE(plan.run_until_non_finite().has_value());
  EXPECT_TRUE(plan.output_tensor(0).equals(reference.run(small)[0]));
}

TEST(HostSteps, TextsStayOnTheHost) {
  Draft draft;
  ir::GraphBuilder& g = draft.g;
  Value* names = draft.input("names", Dims{3}, DataType::kString);
  Value* numbers = g.op("Cast", {names}, {{.name = "to", .value = std::int64_t{1}}});
  Value* same = g.op("Identity", {names});
  draft.model.graph->outputs = {g.op("Tanh", {numbers}), same};
  const Tensor fed =
      Tensor::from_strings({"0.5", "-1.25", "3 with a text that is longer than a short one"}, {3});
  const Tensor good = Tensor::from_strings({"0.5", "-1.25", "3"}, {3});
  Executor executor(draft.done(),
                    on_device(device::testing::simulated_device(), builtin_engine().on_host()));
  Executor reference(draft.done(), on_cpu());
  const auto results = executor.run(std::vector{good});
  const auto expected = reference.run(std::vector{good});
  EXPECT_TRUE(results[0].equals(expected[0]));
  EXPECT_TRUE(results[1].equals(good));
  EXPECT_THROW(executor.run(std::vector{fed}), DataError);
}

// A step that throws on the CPU has changed no state, and the next one runs.
TEST(HostSteps, AnErrorLeavesTheState) {
  Draft draft;
  ir::GraphBuilder& g = draft.g;
  Value* x = draft.input("x", Dims{3});
  Value* index = draft.input("index", Dims{2}, DataType::kInt64);
  Value* w = draft.state("w", ramp({3}, 1));
  draft.model.state.push_back({.input = w, .output = g.add(w, x)});
  draft.model.graph->outputs = {g.op("Gather", {x, index})};
  const opdef::KernelRegistry kernels = without({"Gather"});
  Executor executor(draft.done(), on_device(device::testing::simulated_device(), kernels));
  const auto indices = [](std::int64_t last) {
    return Tensor::from(std::vector<std::int64_t>{0, last}, {2});
  };
  EXPECT_THROW(executor.run(std::vector{ramp({3}, 1), indices(7)}), DataError);
  EXPECT_TRUE(executor.read_state(0).equals(ramp({3}, 1)));
  const auto results = executor.run(std::vector{ramp({3}, 1), indices(2)});
  EXPECT_EQ(results[0].to_doubles(), (std::vector<double>{-5, -2}));
  EXPECT_TRUE(executor.read_state(0).equals(ramp({3}, 2)));
}

// Inputs in host memory: their slots stay, so the third step is the first repetition.
TEST(Recordings, WorkIsRepeatedWhileArgumentsStay) {
  for (const bool has_host_step : {false, true}) {
    device::testing::CountingDevice device;
    const opdef::KernelRegistry kernels = without({has_host_step ? "TopK" : ""});
    Executor executor(network(), on_device(device, kernels), {.seed = 5});
    const int segments = has_host_step ? 2 : 1;
    Execution& plan = executor.prepare({Dims{4, 6}});
    const std::vector<Tensor> fed{ramp({4, 6}, 0.2), ramp({4, 6}, 0.3)};
    for (std::size_t step = 0; step < 5; ++step) {
      plan.bind(0, fed[step % 2].raw());
      plan.run();
      ++executor.cells().step;
    }
    executor.stream()->synchronize();
    EXPECT_EQ(device.counts.runs, segments) << plan.to_text();
    EXPECT_EQ(device.counts.records, segments);
    EXPECT_EQ(device.counts.repeats, 4 * segments);
    const Tensor state = executor.read_state(0);
    Executor reference(network(), on_cpu(), {.seed = 5});
    for (std::size_t step = 0; step < 5; ++step) {
      reference.run(std::vector{fed[step % 2]});
      ++reference.cells().step;
    }
    EXPECT_TRUE(state.equals(reference.read_state(0)));
  }
}

// y = 2 x, by a kernel that cannot be recorded.
void twice(const void* /*data*/, opdef::KernelArgs args, const opdef::Launch& /*launch*/) {
  for (int i = 0; i < 4; ++i) args.at<float>(1)[i] = 2 * args.at<float>(0)[i];
}

opdef::KernelOffer offer_twice(const opdef::KernelRequest& /*request*/) {
  device::testing::RecordingRules::of_process().forbid(twice);
  opdef::KernelOffer offer;
  offer.kernel.fn = twice;
  offer.kernel.not_recordable = "it waits";
  return offer;
}

TEST(Recordings, LeaveOutKernelsThatSaySo) {
  Draft draft;
  ir::GraphBuilder& g = draft.g;
  Value* x = g.op("Tanh", {draft.input("x", Dims{4})});
  draft.model.graph->outputs = {g.op("Tanh", {g.op("Hardmax", {x})})};
  opdef::KernelRegistry kernels = builtin_engine().on_host();
  kernels.add("", "Hardmax", 100, offer_twice);
  device::testing::CountingDevice device;
  Executor executor(draft.done(), on_device(device, kernels));
  const std::vector<Tensor> inputs{ramp({4}, 0.1)};
  for (int step = 0; step < 4; ++step) {
    const auto y = executor.run(inputs)[0].to_doubles();
    EXPECT_NEAR(y[1], std::tanh(2 * std::tanh(0.2)), 1e-6);
  }
  EXPECT_EQ(device.counts.records, 2);
  EXPECT_EQ(device.counts.runs, 2 + 4);
  EXPECT_THAT(executor.prepare({Dims{4}}).to_text(),
              HasSubstr("submitted, 0 bytes copied: Hardmax"));
}

// Bodies stay on the device: nothing is copied to the host but what decides how often they run.
TEST(Bodies, AreSubmittedToADevice) {
  struct Case {
    const char* text;
    const char* reason;
    int copies_out;
  };
  for (const Case& one :
       {Case{R"(scan (float[3,4] x, float[4,4] w) => (float[4] last) <float[4] zero = {0,0,0,0}> {
        last, all = Scan <num_scan_inputs = 1, body = b (float[4] s, float[4] e)
            => (float[4] next, float[4] kept) {
          m = MatMul (s, w)
          n = Add (m, e)
          next = Tanh (n)
          kept = Identity (next)
        }> (zero, x)
      })",
             "its body is submitted for each iteration", 0},
        Case{R"(fixed (float[3,4] x, float[4,4] w) => (float[4,4] last) <int64 n = {3}> {
        last = Loop <body = b (int64 i, bool c, float[4,4] s) => (bool d, float[4,4] next) {
          d = Identity (c)
          t = Cast <to = 1> (i)
          m = Add (s, t)
          next = MatMul (m, w)
        }> (n, , w)
      })",
             "its body is submitted for each iteration", 0},
        Case{R"(computed (float[3,4] x, float[4,4] w) => (float[4,4] last) <float most = {5}> {
        last = Loop <body = b (int64 i, bool c, float[4,4] s) => (bool d, float[4,4] next) {
          h = Add (s, w)
          next = Identity (h)
          t = ReduceMax <keepdims = 0> (next)
          d = Less (t, most)
        }> ( , , w)
      })",
             "its condition is computed by the body", 4},
        Case{R"(branch (float[3,4] x, float[4,4] w) => (float[4,4] y) <float zero = {0}> {
        t = ReduceMax <keepdims = 0> (x)
        c = Less (t, zero)
        r = If (c) <then_branch = a () => (float[4,4] p) { p = MatMul (w, w) },
                    else_branch = b () => (float[4,4] q) { q = Neg (w) }>
        y = Tanh (r)
      })",
             "the host reads its condition", 1}}) {
    const std::string text =
        "<ir_version: 10, opset_import: [\"\" : 21]>\n" + std::string(one.text);
    SCOPED_TRACE(text);
    const KernelEvaluator evaluator(on_cpu());
    const auto model = std::make_shared<const ir::Model>(
        onnx_io::to_internal(onnx_io::load_text(text), builtin_engine().ops, &evaluator));
    device::testing::CountingDevice device;
    const opdef::KernelRegistry kernels = without({"MatMul"});  // in the bodies, on the CPU
    for (const bool all : {true, false}) {
      Executor executor(model, on_device(device, all ? builtin_engine().on_host() : kernels));
      Executor reference(model, on_cpu());
      const std::vector<Tensor> inputs{ramp({3, 4}, 0.1), ramp({4, 4}, 0.2)};
      const std::int64_t before = device.counts.copies_out;
      const auto results = executor.run(inputs);
      EXPECT_TRUE(results[0].equals(reference.run(inputs)[0]));
      EXPECT_TRUE(executor.run(inputs)[0].equals(results[0]));
      const std::string plan = executor.prepare({Dims{3, 4}, Dims{4, 4}}).to_text();
      EXPECT_THAT(plan, HasSubstr(one.reason));
      const int outputs = 2;
      if (!all) continue;
      EXPECT_EQ(device.counts.copies_out - before, outputs + 2 * one.copies_out) << plan;
    }
  }
}

// A tail reads values of the plan before it, and what the host computed between them.
TEST(Recordings, AreMadeOfTails) {
  Draft draft;
  ir::GraphBuilder& g = draft.g;
  Value* x = draft.input("x", Dims{4});
  Value* h = g.op("Tanh", {x});
  Value* chosen = g.op("Compress", {h, g.greater(x, g.scalar_like(x, 0.15))});
  draft.model.graph->outputs = {g.op("Tanh", {g.add(chosen, g.reduce_sum(h, {}, true))})};
  device::testing::CountingDevice device;
  Executor executor(draft.done(), on_device(device, builtin_engine().on_host()));
  const std::vector<Tensor> inputs{ramp({4}, 0.1)};
  const Tensor first = executor.run(inputs)[0];
  for (int step = 1; step < 4; ++step) EXPECT_TRUE(executor.run(inputs)[0].equals(first));
  EXPECT_EQ(device.counts.runs, 2);
  EXPECT_EQ(device.counts.records, 2);
  EXPECT_EQ(device.counts.repeats, 2 * 3);
}

// A larger plan moves the arena: recordings are made anew. An input elsewhere on the device too.
TEST(Recordings, AreMadeAnewWhenMemoryMoves) {
  Draft draft;
  Value* x = draft.model.graph->add_input(
      "x", ir::Type::tensor(DataType::kFloat32, ir::SymbolicShape{ir::Dim::named("N"), 4}));
  ir::GraphBuilder& g = draft.g;
  draft.model.graph->outputs = {g.reduce_mean(g.matmul(x, g.transpose(x, {1, 0})), {}, false)};
  device::testing::CountingDevice device;
  Executor executor(draft.done(), on_device(device, builtin_engine().on_host()));
  const auto step = [&](std::int64_t rows) {
    return executor.run(std::vector{ramp({rows, 4}, 0.1)})[0];
  };
  const Tensor first = step(2);
  step(2);
  EXPECT_EQ(device.counts.records, 1);
  step(900);
  step(900);
  EXPECT_EQ(device.counts.records, 2);
  EXPECT_TRUE(step(2).equals(first));
  EXPECT_TRUE(step(2).equals(first));
  EXPECT_EQ(device.counts.records, 3);
}

}  // namespace
}  // namespace onnxgrad::runtime::host_steps_test
