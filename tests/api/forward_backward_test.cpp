#include <gmock/gmock.h>

#include <algorithm>
#include <memory>
#include <thread>

#include "onnxgrad/onnxgrad.h"

// Separate forward and backward passes: who owns which memory, and the order of passes. That the
// gradients are right for all kinds of models is tested against onnxruntime in
// tests/python/test_forward_backward.py.

namespace onnxgrad::api_forward_backward_test {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr const char* kLinear = R"(
<ir_version: 8, opset_import: ["" : 17]>
linear (float[N, 2] x) => (float[N, 1] y)
<float[2, 1] w = {3, 4}, float[1] b = {0}>
{
  m = MatMul(x, w)
  y = Add(m, b)
}
)";

// The gradient needs x, w, the output y (Sigmoid's rule) and the hidden h.
constexpr const char* kTwoLayers = R"(
<ir_version: 8, opset_import: ["" : 17]>
two_layers (float[N, 2] x) => (float[N, 1] y)
<float[2, 2] w = {1, 2, 3, 4}, float[2, 1] v = {0.5, -0.5}>
{
  m = MatMul(x, w)
  h = Tanh(m)
  s = MatMul(h, v)
  y = Sigmoid(s)
}
)";

Tensor floats(const std::vector<float>& values, Dims dims) {
  return Tensor::from(values, std::move(dims));
}

NamedTensors feed(const Tensor& x) { return {{.name = "x", .tensor = x}}; }

const Tensor& find(const NamedTensors& tensors, const std::string& name) {
  const auto found = std::ranges::find(tensors, name, &NamedTensor::name);
  if (found == tensors.end()) throw std::out_of_range(name);
  return found->tensor;
}

// One after the other, so that the first gradient is another than the last.
std::vector<Tensor> ones(const ForwardBackward::Result& result) {
  std::vector<Tensor> gradients;
  for (const Tensor& output : result.outputs) {
    Tensor gradient = Tensor::empty(output.dtype(), output.dims());
    std::ranges::fill(gradient.mutable_data<float>(), 1.0F);
    gradients.push_back(gradient);
  }
  return gradients;
}

TEST(ForwardBackwardApi, GradientsOfALinearModel) {
  ForwardBackward runner(Model::from_text(kLinear), {.engine = {.threads = 1}});
  EXPECT_EQ(runner.inputs().at(0).name, "x");
  EXPECT_EQ(runner.outputs().at(0).name, "y");
  EXPECT_THAT(runner.weight_infos(), SizeIs(2));
  EXPECT_THAT(runner.gradient_inputs(), ElementsAre("x"));
  const auto result = runner.forward(feed(floats({1, 2, 5, 7}, Dims{2, 2})));
  EXPECT_THAT(result.outputs.at(0).to_doubles(), ElementsAre(11, 43));
  const std::vector<Tensor> dy{floats({1, 10}, Dims{2, 1})};
  const auto gradients = runner.backward(dy);
  // dw = x^T dy, db = sum(dy), dx = dy w^T.
  EXPECT_THAT(find(gradients.weights, "w").to_doubles(), ElementsAre(51, 72));
  EXPECT_THAT(find(gradients.weights, "b").to_doubles(), ElementsAre(11));
  EXPECT_THAT(find(gradients.inputs, "x").to_doubles(), ElementsAre(3, 4, 30, 40));
}

TEST(ForwardBackwardApi, BothPassesInOneCall) {
  ForwardBackward runner(Model::from_text(kTwoLayers), {.engine = {.threads = 1}});
  const std::vector<Tensor> x{floats({1, 2, 5, 7}, Dims{2, 2})};
  const auto result = runner.forward(feed(x.front()));
  const auto gradients = runner.backward(ones(result));
  const auto both = runner.run(x);
  EXPECT_TRUE(both.outputs.at(0).equals(result.outputs.at(0)));
  EXPECT_TRUE(find(both.gradients.weights, "w").equals(find(gradients.weights, "w")));
  EXPECT_TRUE(find(both.gradients.weights, "v").equals(find(gradients.weights, "v")));
  EXPECT_TRUE(find(both.gradients.inputs, "x").equals(find(gradients.inputs, "x")));
  EXPECT_THAT(runner.contexts(), IsEmpty());
  EXPECT_THROW(runner.run({}), DataError);
}

TEST(ForwardBackwardApi, NoPassStaysOpenAfterAnError) {
  ForwardBackward runner(Model::from_text(R"(
    <ir_version: 8, opset_import: ["" : 17]>
    sums (float[N, 2] x, int64[N] labels) => (int64[N] first, float[N, 2] y)
    <float[2, 2] w = {1, 2, 3, 4}>
    { first = Identity(labels)  y = MatMul(x, w) })"));
  const std::vector<Tensor> inputs{floats({1, 2}, Dims{1, 2}),
                                   Tensor::from(std::vector<std::int64_t>{3}, Dims{1})};
  EXPECT_THROW(runner.run(inputs), DataError);  // the first output has no gradient
  EXPECT_THAT(runner.contexts(), IsEmpty());
}

TEST(ForwardBackwardApi, MissingGradientsAreZeros) {
  ForwardBackward runner(Model::from_text(kLinear));
  runner.forward(feed(floats({1, 2}, Dims{1, 2})));
  const auto gradients = runner.backward({});
  EXPECT_THAT(find(gradients.weights, "w").to_doubles(), ElementsAre(0, 0));
}

// Whoever writes to a tensor sees it in all its readers: then there was no copy in between.
TEST(ForwardBackwardApi, NothingIsCopiedBetweenThePasses) {
  ForwardBackward runner(Model::from_text(kTwoLayers), {.engine = {.threads = 1}});
  Tensor x = floats({0.5F, -0.25F, 1, 2}, Dims{2, 2});
  const NamedTensors weights = runner.weights();
  auto result = runner.forward(feed(x));
  const NamedTensors saved = result.context.saved();
  EXPECT_EQ(find(saved, "y").raw(), result.outputs.at(0).raw());
  Tensor h = find(saved, "h");
  EXPECT_EQ(result.context.saved_bytes(), h.size_bytes());  // y is the caller's
  const auto reference = runner.backward(ones(result));

  result = runner.forward(feed(x));
  h = find(result.context.saved(), "h");
  std::ranges::fill(h.mutable_data<float>(), 0.0F);
  const auto without_h = runner.backward(ones(result));
  // dv = h^T ds is zero; tanh'(m) = 1 - h^2 is one.
  EXPECT_THAT(find(without_h.weights, "v").to_doubles(), ElementsAre(0, 0));
  EXPECT_FALSE(find(without_h.inputs, "x").equals(find(reference.inputs, "x")));

  result = runner.forward(feed(x));
  std::ranges::fill(x.mutable_data<float>(), 0.0F);
  const auto without_x = runner.backward(ones(result));
  EXPECT_THAT(find(without_x.weights, "w").to_doubles(), ElementsAre(0, 0, 0, 0));
  // The weights were where they are all the time.
  for (const auto& [name, tensor] : runner.weights()) {
    EXPECT_EQ(tensor.raw(), find(weights, name).raw()) << name;
  }
}

TEST(ForwardBackwardApi, SavedTensorsAreFreedWithTheirPass) {
  ForwardBackward runner(Model::from_text(kTwoLayers));
  const auto first = runner.forward(feed(floats({1, 2}, Dims{1, 2})));
  const auto second = runner.forward(feed(floats({3, 4}, Dims{1, 2})));
  EXPECT_NE(find(first.context.saved(), "h").raw(), find(second.context.saved(), "h").raw());
  const std::byte* const block = find(second.context.saved(), "h").raw();
  runner.backward(ones(second));
  EXPECT_EQ(second.context.saved_bytes(), 0);
  EXPECT_THAT(second.context.saved(), IsEmpty());
  // The next pass takes the memory that has become free.
  const auto third = runner.forward(feed(floats({5, 6}, Dims{1, 2})));
  EXPECT_EQ(find(third.context.saved(), "h").raw(), block);
}

TEST(ForwardBackwardApi, PassesCloseLastFirstOrByContext) {
  ForwardBackward runner(Model::from_text(kLinear));
  std::vector<ForwardBackward::Result> results;
  for (const float value : {1.0F, 2.0F, 3.0F}) {
    results.push_back(runner.forward(feed(floats({value, value}, Dims{1, 2}))));
  }
  EXPECT_THAT(runner.contexts(), SizeIs(3));
  const auto of_w = [](const ForwardBackward::Gradients& gradients) {
    return find(gradients.weights, "w").to_doubles();
  };
  EXPECT_THAT(of_w(runner.backward(ones(results[0]))), ElementsAre(3, 3));
  EXPECT_THAT(of_w(runner.backward(ones(results[0]), results[0].context)), ElementsAre(1, 1));
  EXPECT_THROW(runner.backward(ones(results[0]), results[0].context), Error);
  EXPECT_THAT(runner.contexts(), ElementsAre(results[1].context));
  EXPECT_THAT(of_w(runner.backward(ones(results[1]))), ElementsAre(2, 2));
  EXPECT_THROW(runner.backward(ones(results[1])), Error);

  ForwardBackward other(Model::from_text(kLinear));
  const auto foreign = other.forward(feed(floats({1, 1}, Dims{1, 2})));
  EXPECT_THROW(runner.discard(foreign.context), Error);
  other.discard(foreign.context);
  EXPECT_THAT(other.contexts(), IsEmpty());
}

TEST(ForwardBackwardApi, InferenceSavesNothing) {
  ForwardBackward runner(Model::from_text(kTwoLayers));
  const auto result = runner.forward(feed(floats({1, 2}, Dims{1, 2})), /*training=*/false);
  EXPECT_EQ(result.context.data(), nullptr);
  EXPECT_EQ(result.context.saved_bytes(), 0);
  EXPECT_THAT(runner.contexts(), IsEmpty());
}

TEST(ForwardBackwardApi, OpenPassesKeepTheirWeights) {
  ForwardBackward runner(Model::from_text(kLinear));
  const auto result = runner.forward(feed(floats({1, 1}, Dims{1, 2})));
  runner.set_weights({{.name = "w", .tensor = floats({100, 200}, Dims{2, 1})}});
  EXPECT_THAT(find(runner.backward(ones(result)).inputs, "x").to_doubles(), ElementsAre(3, 4));
  const auto next = runner.forward(feed(floats({1, 1}, Dims{1, 2})));
  EXPECT_THAT(next.outputs[0].to_doubles(), ElementsAre(300));
  EXPECT_THAT(find(runner.backward(ones(next)).inputs, "x").to_doubles(), ElementsAre(100, 200));
  EXPECT_THAT(runner.trained_model().weight("w").to_doubles(), ElementsAre(100, 200));
  EXPECT_THROW(runner.set_weights({{.name = "u", .tensor = floats({1}, Dims{1})}}), ModelError);
  EXPECT_THROW(runner.set_weights({{.name = "w", .tensor = floats({1}, Dims{1})}}), ModelError);
}

TEST(ForwardBackwardApi, ChosenWeightsAndInputs) {
  const Model model = Model::from_text(kTwoLayers);
  ForwardBackward runner(model, {.weights = {"w"}, .input_gradients = false});
  const auto result = runner.forward(feed(floats({1, 2}, Dims{1, 2})));
  const auto gradients = runner.backward(ones(result));
  EXPECT_THAT(gradients.inputs, IsEmpty());
  ASSERT_THAT(gradients.weights, SizeIs(1));
  EXPECT_EQ(gradients.weights[0].name, "w");
  EXPECT_THROW(ForwardBackward(model, {.weights = {"nothing*"}}), ModelError);
  EXPECT_THROW(ForwardBackward(model, {.inputs = {"y"}}), ModelError);
}

TEST(ForwardBackwardApi, WrongGradientsLeaveThePassOpen) {
  ForwardBackward runner(Model::from_text(kLinear));
  const auto result = runner.forward(feed(floats({1, 2}, Dims{1, 2})));
  const auto backward = [&](Tensor gradient) {
    return runner.backward(std::vector<Tensor>{std::move(gradient)});
  };
  EXPECT_THROW(backward(floats({1, 2}, Dims{2, 1})), ShapeError);
  EXPECT_THROW(backward(Tensor::zeros(DataType::kFloat64, Dims{1, 1})), DataError);
  EXPECT_THROW(runner.backward(std::vector<Tensor>(2, result.outputs[0])), DataError);
  EXPECT_THAT(runner.contexts(), SizeIs(1));
  EXPECT_NO_THROW(runner.backward(ones(result)));
}

TEST(ForwardBackwardApi, AContextOutlivesItsObject) {
  auto runner = std::make_unique<ForwardBackward>(Model::from_text(kTwoLayers));
  const auto result = runner->forward(feed(floats({1, 2}, Dims{1, 2})));
  runner.reset();
  EXPECT_THAT(find(result.context.saved(), "h").to_doubles(), SizeIs(2));
  EXPECT_THAT(result.outputs[0].to_doubles(), SizeIs(1));
}

}  // namespace onnxgrad::api_forward_backward_test
