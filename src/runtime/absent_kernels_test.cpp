// Devices without one of the fused operators that passes make: their plans have the nodes that it
// stands for, and give the same results. The operators are those that are registered.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "autodiff/gradient.h"
#include "ir/builder.h"
#include "onnx/inference.h"
#include "opdef/fused.h"
#include "runtime/executor.h"
#include "runtime/testing/builtin_engine.h"

namespace onnxgrad::runtime::absent_kernels_test {
namespace {

using ir::Value;

// A step under construction, with random inputs and weights.
class Step {
 public:
  ir::GraphBuilder& g() { return g_; }

  Tensor random(const Dims& dims) {
    std::uniform_real_distribution<float> uniform(-0.5F, 0.5F);
    std::vector<float> numbers(static_cast<std::size_t>(dims.num_elements()));
    std::ranges::generate(numbers, [&] { return uniform(random_); });
    return Tensor::from(numbers, dims);
  }
  Value* input(Tensor tensor) {
    const ir::Type type = ir::Type::tensor(tensor.dtype(), tensor.dims());
    inputs.push_back(std::move(tensor));
    return graph().add_input("x", type);
  }
  Value* input(const Dims& dims) { return input(random(dims)); }
  Value* labels(std::int64_t count) {
    std::vector<std::int64_t> numbers(static_cast<std::size_t>(count));
    std::ranges::generate(numbers, [&] { return static_cast<std::int64_t>(random_() % 4); });
    return input(Tensor::from(numbers, Dims{count}));
  }
  Value* weight(const Dims& dims) {
    Value* value = graph().add_input("w", ir::Type::tensor(DataType::kFloat32, dims));
    value->initializer = random(dims);
    graph().initializers.push_back(value);
    return value;
  }

  void result(Value* value) { graph().outputs.push_back(value); }
  std::vector<Value*> gradients(Value* of, const std::vector<Value*>& wrt) {
    const std::vector<Value*> outputs{g_.reduce_mean(g_.mul(of, of), {}, false)};
    const std::vector<Value*> seeds{g_.ones_like(outputs[0])};
    result(outputs[0]);
    return autodiff::add_vjp(g_, builtin_engine().ops, outputs, seeds, wrt);
  }
  void descend(Value* w, Value* gradient) { update(w, g_.sub(w, g_.mul(rate_, gradient))); }
  void add_momentum(Value* w, Value* gradient) {
    Value* m = weight(w->type.fixed_dims());
    const opdef::WeightUpdate op{.rule = opdef::UpdateRule::kMomentum, .beta1 = 0.9};
    const auto next = g_.call(opdef::kWeightUpdate, {gradient, w, m, rate_}, 2, op.attributes());
    update(w, next[0]);
    update(m, next[1]);
  }

  // The results of two runs, then the states.
  std::vector<Tensor> run(const Engine& engine) const {
    Executor executor(std::make_shared<ir::Model>(ir::clone(model_)), engine);
    std::vector<Tensor> found = executor.run(inputs);
    for (const Tensor& next : executor.run(inputs)) found.push_back(next);
    for (std::size_t i = 0; i < executor.state().size(); ++i) {
      found.push_back(
          Tensor::from(executor.read_state(i).to_doubles(), executor.read_state(i).dims()));
    }
    return found;
  }

  std::vector<Tensor> inputs = {};

 private:
  ir::Graph& graph() { return *model_.graph; }
  void update(Value* from, Value* to) { model_.state.push_back({.input = from, .output = to}); }

  ir::Model model_ = [] {
    ir::Model empty;
    empty.set_opset("", ir::kInternalOpset);
    return empty;
  }();
  std::unique_ptr<ir::TypeInferer> inferer_ = onnx_io::make_type_inferer(model_);
  ir::GraphBuilder g_{model_, *model_.graph, *inferer_, builtin_engine().ops};
  std::mt19937 random_{1};
  Value* rate_ = input(Tensor::scalar(0.05F));
};

ir::Attribute ints(const char* name, std::vector<std::int64_t> value) {
  return {.name = name, .value = std::move(value)};
}

void linear_regression(Step& s) {
  Value* w = s.weight({2, 1});
  Value* b = s.weight({1});
  Value* z = s.g().sub(s.g().add(s.g().matmul(s.input({10, 2}), w), b), s.input({10, 1}));
  const auto gradients = s.gradients(z, {w, b});
  s.descend(w, gradients[0]);
  s.descend(b, gradients[1]);
}

void perceptron(Step& s) {
  Value* first = s.weight({6, 5});
  Value* second = s.weight({5, 3});
  Value* hidden = s.g().op("Relu", {s.g().matmul(s.input({8, 6}), first)});
  const auto gradients = s.gradients(s.g().matmul(hidden, second), {first, second});
  s.descend(first, gradients[0]);
  s.add_momentum(second, gradients[1]);
}

void embeddings(Step& s) {
  Value* first = s.weight({20, 4});
  Value* second = s.weight({20, 4});
  Value* ids = s.labels(6);
  const auto row = [&](Value* table) { return s.g().gather(table, ids, 0); };
  const auto gradients = s.gradients(s.g().mul(row(first), row(second)), {first, second});
  s.descend(first, gradients[0]);
  s.add_momentum(second, gradients[1]);
}

void classifier_of_images(Step& s) {
  ir::GraphBuilder& g = s.g();
  Value* first = s.weight({8, 3, 3, 3});
  Value* second = s.weight({8, 8, 3, 3});
  Value* dense = s.weight({8, 4096});
  const std::vector<ir::Attribute> window{ints("kernel_shape", {2, 2}), ints("strides", {2, 2})};
  const ir::Attribute pads = ints("pads", {1, 1, 1, 1});
  Value* variance = g.constant(Tensor::from(std::vector<float>(8, 1.0F), Dims{8}));
  Value* x = g.op("Conv", {s.input({4, 3, 12, 12}), first}, {pads});
  x = g.ops("BatchNormalization", {x, s.weight({8}), s.weight({8}), s.weight({8}), variance}, 3,
            {{.name = "training_mode", .value = std::int64_t{1}}})[0];
  x = g.op("MaxPool", {g.op("Relu", {x})}, window);
  x = g.op("AveragePool", {g.op("Conv", {x, second}, {pads})}, window);
  Value* scores = g.matmul(g.reduce_mean(x, {2, 3}, false), dense);
  Value* loss = g.op("SoftmaxCrossEntropyLoss", {scores, s.labels(4)});
  const auto gradients = s.gradients(loss, {first, second, dense});
  s.descend(first, gradients[0]);
  s.add_momentum(second, gradients[1]);
  s.descend(dense, gradients[2]);
}

void attention(Step& s) {
  ir::GraphBuilder& g = s.g();
  const std::vector<Value*> x{s.weight({1, 2, 6, 4}), s.weight({1, 2, 4, 6}),
                              s.weight({1, 2, 6, 4})};
  Value* shares = g.op("Softmax", {g.scale(g.matmul(x[0], x[1]), 0.5)},
                       {{.name = "axis", .value = std::int64_t{-1}}});
  const auto gradients = s.gradients(g.matmul(shares, x[2]), x);
  for (std::size_t i = 0; i < x.size(); ++i) s.descend(x[i], gradients[i]);
}

void feed_forward(Step& s) {
  ir::GraphBuilder& g = s.g();
  Value* scale = s.weight({64});
  Value* x = s.weight({64, 64});
  Value* sum = g.add(x, s.input({64, 64}));
  Value* normal = g.op("LayerNormalization", {sum, scale, s.weight({64})});
  Value* y = g.op("Gelu", {normal}, {{.name = "approximate", .value = std::string("none")}});
  const auto gradients = s.gradients(g.add(y, sum), {x, scale});
  s.descend(x, gradients[0]);
  s.descend(scale, gradients[1]);
}

// SiLU, and its gradient by what 16 bits have kept of its input.
void rounded_activation(Step& s) {
  ir::GraphBuilder& g = s.g();
  Value* u = s.input({64, 64});
  Value* half = g.cast(g.cast(u, DataType::kBfloat16), DataType::kFloat32);
  Value* sigmoid = g.op("Sigmoid", {half});
  Value* y = g.mul(half, sigmoid);
  Value* slope = g.add(sigmoid, g.mul(y, g.sub(g.scalar_like(u, 1), sigmoid)));
  s.result(g.mul(u, g.op("Sigmoid", {u})));
  s.result(y);
  s.result(g.mul(s.input({64, 64}), slope));
}

void cells(Step& s) {
  for (const auto& [op_type, gates] : {std::pair{"LSTM", 4}, {"GRU", 3}, {"RNN", 1}}) {
    Value* w = s.weight({1, gates * 4, 3});
    Value* y = s.g().op(op_type, {s.input({5, 2, 3}), w, s.weight({1, gates * 4, 4})},
                        {{.name = "hidden_size", .value = std::int64_t{4}}});
    s.descend(w, s.gradients(y, {w})[0]);
  }
}

void convolutions(Step& s) {
  const auto convolve = [&](Value* x, const Dims& w) {
    const std::int64_t pad = w[2] / 2;
    const std::int64_t group = w[1] == 1 ? w[0] : 1;
    return s.g().op("Conv", {x, s.input(w)},
                    {ints("pads", {pad, pad, pad, pad}), {.name = "group", .value = group}});
  };
  Value* wide = s.g().op("Relu", {convolve(s.input({8, 8, 32, 32}), {48, 8, 1, 1})});
  s.result(convolve(convolve(wide, {48, 1, 3, 3}), {8, 48, 1, 1}));
  s.result(s.g().op("Relu", {convolve(s.input({1, 3, 8, 8}), {4, 3, 3, 3})}));
}

void quantized_product(Step& s) {
  ir::GraphBuilder& g = s.g();
  std::vector<std::int64_t> codes(std::size_t{200} * 100);
  for (std::size_t i = 0; i < codes.size(); ++i) {
    codes[i] = static_cast<std::int64_t>(i * i % 255) - 127;
  }
  Value* weight = g.op("DequantizeLinear",
                       {g.constant(Tensor::from(codes, Dims{200, 100}).cast(DataType::kInt8)),
                        g.constant(s.random({100}))},
                       {{.name = "axis", .value = std::int64_t{1}}});
  s.result(g.matmul(s.input({4, 200}), weight));
}

struct Sample {
  const char* name;
  void (*build)(Step& step);
};
constexpr Sample kSamples[] = {
    {"linear regression", linear_regression},
    {"perceptron", perceptron},
    {"embeddings", embeddings},
    {"classifier of images", classifier_of_images},
    {"attention", attention},
    {"feed-forward", feed_forward},
    {"rounded activation", rounded_activation},
    {"cells", cells},
    {"convolutions", convolutions},
    {"quantized product", quantized_product},
};

// Made by the runtime for control flow, several workers and layouts, not by passes.
const std::set<std::string> kOfRuntime = {"ConvertLayout", "FinishExchange", "If",
                                          "Loop",          "Scan",           "StartExchange"};

std::set<std::string> operators_of_passes() {
  std::set<std::string> names;
  for (const std::string& name : builtin_engine().kernels.op_types(ir::kFusedDomain)) {
    if (!kOfRuntime.contains(name)) names.insert(name);
  }
  return names;
}

Engine engine_with(const opdef::KernelRegistry& kernels) {
  return {builtin_engine().ops, kernels, builtin_engine().make_inferer, builtin_engine().device};
}

opdef::KernelOffer builtin_offer(const opdef::KernelRequest& request) {
  opdef::KernelOffer offer;
  for (const auto& entry :
       builtin_engine().kernels.offers(request.node.domain, request.node.op_type)) {
    offer = entry.offer(request);
    if (offer.kernel.fn != nullptr) break;
  }
  return offer;
}

std::set<std::string>& planned() {
  static std::set<std::string> names;
  return names;
}

// Offers the kernels of the CPU and remembers the operators of nodes that are there.
opdef::KernelOffer remember(const opdef::KernelRequest& request) {
  if (!request.is_candidate) planned().insert(request.node.op_type);
  return builtin_offer(request);
}

std::set<std::string> fused_operators_of(const Step& step) {
  opdef::KernelRegistry kernels = builtin_engine().kernels;
  for (const std::string& name : kernels.op_types(ir::kFusedDomain)) {
    kernels.remove(ir::kFusedDomain, name);
    kernels.add(ir::kFusedDomain, name, 0, remember);
  }
  planned().clear();
  step.run(engine_with(kernels));
  return planned();
}

// One element-wise node at a time: other kernels of the CPU compute none.
opdef::KernelOffer offer_short_program(const opdef::KernelRequest& request) {
  const auto op = opdef::Elementwise::read(request.node);
  if (!op.reduce_axes.empty() || op.stored > 1 || op.program.instructions.size() > 12) {
    return opdef::KernelOffer::decline("short programs without reductions only");
  }
  return builtin_offer(request);
}

opdef::KernelRegistry without(const std::string& op_type) {
  opdef::KernelRegistry kernels = builtin_engine().kernels;
  kernels.remove(ir::kFusedDomain, op_type);
  if (op_type == opdef::kElementwise) {
    kernels.add(ir::kFusedDomain, op_type, 0, offer_short_program);
  }
  return kernels;
}

void expect_near(const std::vector<Tensor>& found, const std::vector<Tensor>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    const std::vector<double> a = found[i].to_doubles();
    const std::vector<double> b = expected[i].to_doubles();
    ASSERT_EQ(a.size(), b.size());
    for (std::size_t j = 0; j < a.size(); ++j) {
      ASSERT_NEAR(a[j], b[j], 2e-5 * std::max(1.0, std::abs(b[j]))) << "tensor " << i;
    }
  }
}

TEST(AbsentKernels, GraphsAreMadeOfWhatThereIs) {
  if (!builtin_engine().device.is_host()) {
    GTEST_SKIP() << "another device leaves them to the CPU: host_steps_test.cpp";
  }
  std::set<std::string> found;
  for (const Sample& sample : kSamples) {
    Step step;
    sample.build(step);
    const std::vector<Tensor> expected = step.run(builtin_engine());
    for (const std::string& name : fused_operators_of(step)) {
      SCOPED_TRACE(sample.name + (" without " + name));
      const opdef::KernelRegistry kernels = without(name);
      expect_near(step.run(engine_with(kernels)), expected);
      found.insert(name);
    }
  }
  EXPECT_EQ(found, operators_of_passes());
}

TEST(AbsentKernels, NoneOfThemIsNeeded) {
  if (!builtin_engine().device.is_host()) {
    GTEST_SKIP() << "another device leaves them to the CPU: host_steps_test.cpp";
  }
  opdef::KernelRegistry kernels = without(std::string(opdef::kElementwise));
  for (const std::string& name : operators_of_passes()) {
    if (name != opdef::kElementwise) kernels.remove(ir::kFusedDomain, name);
  }
  for (const Sample& sample : kSamples) {
    SCOPED_TRACE(sample.name);
    Step step;
    sample.build(step);
    expect_near(step.run(engine_with(kernels)), step.run(builtin_engine()));
  }
}

}  // namespace
}  // namespace onnxgrad::runtime::absent_kernels_test
