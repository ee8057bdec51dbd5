#include "runtime/layouts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "autodiff/gradient.h"
#include "device/testing/layout_kernels.h"
#include "device/testing/simulated_device.h"
#include "ir/builder.h"
#include "onnx/inference.h"
#include "opdef/layout_order.h"
#include "runtime/executor.h"
#include "runtime/testing/builtin_engine.h"
#include "runtime/testing/model_draft.h"

// Kernels of the simulated device that ask for layouts; the numbers are those of the CPU, which
// knows plain memory only, bit for bit.

namespace onnxgrad::runtime::layouts_test {
namespace {

using device::testing::LayoutWish;
using ir::Value;
using opdef::Layout;

Layout channels_last(const opdef::KernelRequest& /*request*/, std::size_t /*i*/) {
  return {.kind = Layout::Kind::kChannelsLast};
}

Layout blocked(const opdef::KernelRequest& /*request*/, std::size_t /*i*/) {
  return {.kind = Layout::Kind::kBlocked, .block = 8};
}

// Some layout that follows from the operator, the operand and its shape.
Layout any_layout(const opdef::KernelRequest& request, std::size_t i) {
  constexpr Layout kLayouts[] = {{},
                                 {.kind = Layout::Kind::kChannelsLast},
                                 {.kind = Layout::Kind::kBlocked, .block = 8},
                                 {.kind = Layout::Kind::kBlocked, .block = 3}};
  const std::size_t inputs = request.inputs.size();
  const Dims& dims = i < inputs ? request.inputs[i].dims : request.outputs[i - inputs].dims;
  const std::string key = request.node.op_type + dims.to_string() + std::to_string(i);
  return kLayouts[std::hash<std::string>()(key) % std::size(kLayouts)];
}

const Engine& cpu_engine() {
  static const Engine engine{builtin_engine().ops, builtin_engine().on_host(),
                             onnx_io::make_type_inferer, device::cpu()};
  return engine;
}

// The simulated device with such kernels.
template <LayoutWish kWish>
const Engine& engine_with() {
  static const opdef::KernelRegistry kernels = [] {
    opdef::KernelRegistry own = builtin_engine().on_host();
    device::testing::add_layout_kernels<kWish>(builtin_engine().on_host(), own);
    return own;
  }();
  static const Engine engine{builtin_engine().ops, kernels, onnx_io::make_type_inferer,
                             device::testing::simulated_device(), &builtin_engine().on_host()};
  return engine;
}

Tensor random_numbers(Dims dims, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<float> values(static_cast<std::size_t>(dims.num_elements()));
  for (float& value : values) value = static_cast<float>(random() >> 40) * 0x1p-23F - 1;
  return Tensor::from(values, std::move(dims));
}

struct Draft : ModelDraft {
  std::uint64_t seed = 0;

  Value* input(const char* name, const Dims& dims) {
    return ModelDraft::input(name, dims, DataType::kFloat32);
  }
  Value* constant(const Dims& dims) { return g.constant(random_numbers(dims, ++seed)); }
  Value* state(const char* name, const Dims& dims) {
    return ModelDraft::state(name, random_numbers(dims, ++seed));
  }
  Value* conv(Value* x, Value* w) {
    return g.op("Conv", {x, w}, {{.name = "pads", .value = std::vector<std::int64_t>(4, 1)}});
  }
  Value* pool(std::string_view op_type, Value* x, std::int64_t stride) {
    return g.op(op_type, {x},
                {{.name = "kernel_shape", .value = std::vector<std::int64_t>{3, 3}},
                 {.name = "strides", .value = std::vector<std::int64_t>{stride, stride}},
                 {.name = "pads", .value = std::vector<std::int64_t>(4, 1)}});
  }
  Executor on(const Engine& engine, bool fuse = true) const {
    return Executor(std::make_shared<ir::Model>(ir::clone(model)), engine, {.fuse = fuse});
  }
};

std::vector<Dims> dims_of(const std::vector<Tensor>& tensors) {
  std::vector<Dims> dims;
  for (const Tensor& tensor : tensors) dims.push_back(tensor.dims());
  return dims;
}

std::size_t count_of(std::string_view text, std::string_view word) {
  std::size_t count = 0;
  for (std::size_t at = text.find(word); at != std::string_view::npos; at = text.find(word, at + 1))
    ++count;
  return count;
}

void expect_equal(const std::vector<Tensor>& given, const std::vector<Tensor>& expected) {
  ASSERT_EQ(given.size(), expected.size());
  for (std::size_t i = 0; i < given.size(); ++i) {
    if (given[i].equals(expected[i])) continue;
    const std::vector<double> a = given[i].to_doubles();
    const std::vector<double> b = expected[i].to_doubles();
    const auto at = static_cast<std::size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
    ADD_FAILURE() << "result " << i << ", element " << at << ": " << a[at] << " instead of "
                  << b[at];
  }
}

// Conv -> Relu -> Conv: one conversion before and one after; the weights are converted once, when
// the plan is made.
TEST(Layouts, OfAChainAreConvertedAtItsEnds) {
  Draft draft;
  Value* x = draft.input("x", Dims{2, 3, 6, 5});
  Value* h = draft.g.op("Relu", {draft.conv(x, draft.constant({8, 3, 3, 3}))});
  draft.model.graph->outputs = {draft.conv(h, draft.constant({4, 8, 3, 3}))};
  const std::vector<Tensor> inputs{random_numbers({2, 3, 6, 5}, 1)};
  for (const bool fuse : {true, false}) {
    Executor plain = draft.on(cpu_engine(), fuse);
    for (const Engine* engine : {&engine_with<channels_last>(), &engine_with<blocked>()}) {
      Executor executor = draft.on(*engine, fuse);
      const std::string plan = executor.prepare(dims_of(inputs)).to_text();
      EXPECT_EQ(count_of(plan, "ConvertLayout"), 2U) << plan;
      expect_equal(executor.run(inputs), plain.run(inputs));
    }
    EXPECT_EQ(count_of(plain.prepare(dims_of(inputs)).to_text(), "ConvertLayout"), 0U);
  }
}

TEST(Layouts, AreShownAndPadded) {
  Draft draft;
  Value* x = draft.input("x", Dims{2, 3, 6, 5});
  Value* h = draft.conv(x, draft.constant({9, 3, 3, 3}));
  draft.model.graph->outputs = {draft.g.op("GlobalAveragePool", {h})};
  const std::string plan = draft.on(engine_with<blocked>()).prepare({Dims{2, 3, 6, 5}}).to_text();
  EXPECT_NE(plan.find("float32[2, 9, 6, 5] blocked_8 @"), std::string::npos) << plan;
  // The result of the convolution has two blocks of channels.
  const std::int64_t at_least = 2 * 2 * 6 * 5 * 8 * 4;
  const auto arena = plan.find("arena ");
  EXPECT_GE(std::stoll(plan.substr(arena + 6)), at_least) << plan;
}

// A value that is read in a layout and in plain order is converted once for each.
TEST(Layouts, ConvertAValueOnce) {
  Draft draft;
  Value* x = draft.input("x", Dims{2, 4, 6, 6});
  Value* a = draft.conv(x, draft.constant({4, 4, 3, 3}));
  Value* b = draft.conv(x, draft.constant({4, 4, 3, 3}));
  Value* turned = draft.g.transpose(a, {0, 2, 3, 1});
  Value* flat = draft.g.reshape(a, {2, 144});
  draft.model.graph->outputs = {turned, draft.g.exp(flat), b, a};
  const std::vector<Tensor> inputs{random_numbers({2, 4, 6, 6}, 1)};
  Executor executor = draft.on(engine_with<channels_last>());
  const std::string plan = executor.prepare(dims_of(inputs)).to_text();
  EXPECT_EQ(count_of(plan, "ConvertLayout"), 3U) << plan;  // x; a; b
  expect_equal(executor.run(inputs), draft.on(cpu_engine()).run(inputs));
}

// One of each element-wise case: operands of one layout, a scalar, one that is broadcast.
TEST(Layouts, ArePassedOnByElementwiseKernels) {
  Draft draft;
  Value* x = draft.input("x", Dims{2, 5, 4, 4});
  Value* s = draft.input("s", Dims{});
  Value* a = draft.conv(x, draft.constant({11, 5, 3, 3}));
  Value* b = draft.conv(x, draft.constant({11, 5, 3, 3}));
  Value* sum = draft.g.op("Sigmoid", {draft.g.mul(draft.g.add(a, b), s)});
  Value* pooled = draft.pool("MaxPool", sum, 2);
  draft.model.graph->outputs = {pooled, draft.g.add(pooled, draft.constant({11, 1, 1}))};
  const std::vector<Tensor> inputs{random_numbers({2, 5, 4, 4}, 1), random_numbers({}, 2)};
  for (const Engine* engine : {&engine_with<channels_last>(), &engine_with<blocked>()}) {
    Executor executor = draft.on(*engine);
    const std::string plan = executor.prepare(dims_of(inputs)).to_text();
    EXPECT_EQ(count_of(plan, "ConvertLayout"), 2U) << plan;  // x; what is pooled
    expect_equal(executor.run(inputs), draft.on(cpu_engine()).run(inputs));
  }
}

// A small residual network with its optimizer.
struct Training {
  Draft draft;
  std::vector<Tensor> batch{random_numbers({4, 3, 9, 9}, 100), random_numbers({4, 5}, 101)};

  Training() {
    ir::GraphBuilder& g = draft.g;
    Value* x = draft.input("x", batch[0].dims());
    Value* y = draft.input("y", batch[1].dims());
    std::vector<Value*> weights{draft.state("w1", {8, 3, 3, 3}),  draft.state("w2", {8, 8, 3, 3}),
                                draft.state("scale", {8}),        draft.state("bias", {8}),
                                draft.state("w3", {13, 8, 3, 3}), draft.state("dense", {13, 5})};
    Value* mean = draft.state("mean", {8});
    Value* variance = draft.g.exp(draft.constant({8}));
    Value* h = g.op("Relu", {draft.conv(x, weights[0])});
    const std::vector<Value*> normalized = g.ops(
        "BatchNormalization", {draft.conv(h, weights[1]), weights[2], weights[3], mean, variance},
        3, {{.name = "training_mode", .value = std::int64_t{1}}});
    h = g.op("Relu", {g.add(normalized[0], h)});
    h = draft.pool("MaxPool", h, 2);
    h = g.op("Sigmoid", {draft.conv(h, weights[4])});
    h = g.reshape(g.op("GlobalAveragePool", {draft.pool("AveragePool", h, 1)}), {4, 13});
    Value* difference = g.sub(g.matmul(h, weights[5]), y);
    Value* loss = g.reduce_mean(g.mul(difference, difference), {}, false);
    const auto gradients = autodiff::add_vjp(g, cpu_engine().ops, std::vector{loss},
                                             std::vector{g.ones_like(loss)}, weights);
    for (std::size_t i = 0; i < weights.size(); ++i) {
      update(weights[i], g.sub(weights[i], g.scale(gradients[i], 0.1)));
    }
    update(mean, normalized[1]);
    draft.model.graph->outputs = {loss};
  }

  void update(Value* from, Value* to) {
    draft.model.state.push_back({.input = from, .output = to});
  }

  // Three steps: losses, then states.
  std::vector<Tensor> run(Executor& executor) const {
    std::vector<Tensor> results;
    for (int step = 0; step < 3; ++step) {
      for (const Tensor& loss : executor.run(batch)) results.push_back(loss.clone());
    }
    for (std::size_t i = 0; i < executor.state().size(); ++i) {
      results.push_back(executor.read_state(i));
    }
    return results;
  }
};

TEST(Layouts, TrainWithTheBitsOfPlainOrder) {
  const Training training;
  for (const bool fuse : {true, false}) {
    Executor plain = training.draft.on(cpu_engine(), fuse);
    const std::vector<Tensor> expected = training.run(plain);
    for (const Engine* engine :
         {&engine_with<channels_last>(), &engine_with<blocked>(), &engine_with<any_layout>()}) {
      Executor executor = training.draft.on(*engine, fuse);
      expect_equal(training.run(executor), expected);
    }
  }
}

// The batch, three weights there and back, and the gradient of the global average, an expansion. In
// blocks, the averages of 13 channels are padded.
TEST(Layouts, OfATrainingStepAreFewConversions) {
  const Training training;
  for (const auto& [engine, expected] :
       {std::pair{&engine_with<channels_last>(), 8U}, std::pair{&engine_with<blocked>(), 9U}}) {
    Executor executor = training.draft.on(*engine);
    const std::string plan = executor.prepare(dims_of(training.batch)).to_text();
    EXPECT_EQ(count_of(plan, "ConvertLayout"), expected) << plan;
  }
}

// Kernels that run again to save memory keep their layouts.
TEST(Layouts, StayWhenValuesAreComputedAgain) {
  const Training training;
  const auto model = std::make_shared<ir::Model>(ir::clone(training.draft.model));
  Executor plain = training.draft.on(cpu_engine());
  const std::vector<Tensor> expected = training.run(plain);
  Executor all(model, engine_with<channels_last>(), {});
  training.run(all);
  const MemoryUse use = all.memory();
  // The largest limit, in steps, for which something runs again.
  bool has_run_again = false;
  for (std::int64_t part = 79; part > 0 && !has_run_again; --part) {
    constexpr std::int64_t kForInputs = 1 << 16;
    const auto budget = std::make_shared<base::MemoryBudget>(
        (use.state + use.constants + use.arena) * part / 80 + kForInputs);
    const auto on_device = engine_with<channels_last>().device.budget(budget);
    on_device->reserve(kForInputs);
    Executor less(model, engine_with<channels_last>(), {.budget = budget, .fits_budget = true});
    const std::string plan = less.prepare(dims_of(training.batch)).to_text();
    on_device->release(kForInputs);
    if (plan.find("/again") == std::string::npos) continue;
    has_run_again = true;
    expect_equal(training.run(less), expected);
  }
  EXPECT_TRUE(has_run_again);
}

// A graph of random nodes over images, some of which know no layout. Its weights are inputs:
// kernels of the CPU may compute with constants in another order.
Draft random_model(std::uint64_t seed, std::vector<Tensor>& inputs) {
  Draft draft;
  const auto input = [&](const Dims& dims) {
    inputs.push_back(random_numbers(dims, 1000 * seed + inputs.size()));
    return draft.input("x", dims);
  };
  ir::GraphBuilder& g = draft.g;
  std::mt19937_64 random(seed);
  const auto up_to = [&](std::size_t end) { return random() % end; };
  const auto channels = static_cast<std::int64_t>(2 + up_to(9));
  std::vector<Value*> images{input({2, channels, 4, 4})};  // all of this shape
  const auto any = [&] { return images[up_to(images.size())]; };
  const std::size_t count = 4 + up_to(12);
  for (std::size_t i = 0; i < count; ++i) {
    switch (up_to(9)) {
      case 0:
      case 1:
        images.push_back(draft.conv(any(), input({channels, channels, 3, 3})));
        break;
      case 2:
        images.push_back(g.op("Relu", {any()}));
        break;
      case 3:
        images.push_back(g.add(any(), any()));
        break;
      case 4:
        images.push_back(draft.pool(up_to(2) == 0 ? "MaxPool" : "AveragePool", any(), 1));
        break;
      case 5:
        images.push_back(g.mul(any(), draft.constant({channels, 1, 1})));
        break;
      case 6:
        images.push_back(g.transpose(any(), {0, 1, 3, 2}));
        break;
      case 7:
        images.push_back(
            g.reshape(g.op("Softmax", {g.reshape(any(), {2, -1})}), {2, channels, 4, 4}));
        break;
      default:
        images.push_back(g.sub(any(), g.op("GlobalAveragePool", {any()})));
        break;
    }
  }
  draft.model.graph->outputs = {images.back(), any(), g.reshape(any(), {-1})};
  return draft;
}

TEST(Layouts, OfRandomGraphsGiveTheSameNumbers) {
  std::size_t conversions = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::vector<Tensor> inputs;
    const Draft draft = random_model(seed, inputs);
    const bool fuse = seed % 2 == 0;
    Executor executor = draft.on(engine_with<any_layout>(), fuse);
    conversions += count_of(executor.prepare(dims_of(inputs)).to_text(), "ConvertLayout");
    expect_equal(executor.run(inputs), draft.on(cpu_engine(), fuse).run(inputs));
  }
  EXPECT_GT(conversions, 100U);
}

// An offer that asks for something else when it gets what it asked for.
TEST(Layouts, AreWhatAnOfferAsksForTwice) {
  opdef::KernelRegistry kernels = builtin_engine().kernels;
  kernels.add("", "GlobalAveragePool", 2000, [](const opdef::KernelRequest& request) {
    const bool is_plain = request.inputs[0].layout.is_plain();
    opdef::KernelOffer offer;
    offer.kernel.fn = [](const void*, opdef::KernelArgs, const opdef::Launch&) {};
    if (is_plain) offer.kernel.input_layouts = {{.kind = Layout::Kind::kChannelsLast}};
    return offer;
  });
  const Engine engine{builtin_engine().ops, kernels, onnx_io::make_type_inferer,
                      device::testing::simulated_device(), &builtin_engine().kernels};
  Draft draft;
  draft.model.graph->outputs = {
      draft.g.op("GlobalAveragePool", {draft.input("x", Dims{2, 4, 3, 3})})};
  Executor executor = draft.on(engine);
  EXPECT_THROW(executor.prepare({Dims{2, 4, 3, 3}}), InternalError);
}

TEST(Layouts, AreReadInPlainOrder) {
  const Dims dims{1, 3, 2};
  const Tensor stored =
      Tensor::from(std::vector<float>{0, 2, 1, 3, 4, -1, 5, -1}, Dims{1, 2, 2, 2});
  const Tensor plain = in_plain_order(stored, dims, {.kind = Layout::Kind::kBlocked, .block = 2});
  EXPECT_TRUE(plain.equals(Tensor::from(std::vector<float>{0, 1, 2, 3, 4, 5}, dims)));
}

}  // namespace
}  // namespace onnxgrad::runtime::layouts_test
