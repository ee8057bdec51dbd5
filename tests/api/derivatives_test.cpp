#include <gmock/gmock.h>

#include "onnxgrad/onnxgrad.h"

// Derivatives as files, and operators of one's own, from C++: by hand for y = sum(w x^3).

namespace onnxgrad::derivatives_test {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr const char* kCubes = R"(
<ir_version: 8, opset_import: ["" : 18]>
cubes (float[2] x) => (float y)
<float[2] w = {1, -1}>
{
  square = Mul(x, x)
  cube = Mul(square, x)
  product = Mul(cube, w)
  y = ReduceSum<keepdims = 0>(product)
}
)";

NamedTensor pair(const std::string& name, float first, float second) {
  return {.name = name, .tensor = Tensor::from(std::vector<float>{first, second}, Dims{2})};
}

// The outputs by position, at x = [1, 2], w = [1, -1].
std::vector<std::vector<double>> run(const Model& model, NamedTensors feeds) {
  InferenceSession session(Model::from_bytes(model.to_bytes()), {.threads = 1});
  for (const NamedTensor& at : {pair("x", 1, 2), pair("w", 1, -1)}) {
    for (const ValueInfo& input : model.inputs()) {
      if (input.name == at.name) feeds.push_back(at);
    }
  }
  std::vector<std::vector<double>> results;
  for (const Tensor& tensor : session.run({}, feeds)) results.push_back(tensor.to_doubles());
  return results;
}

const std::vector<std::string> kBoth = {"x", "w"};

TEST(Derivatives, VectorJacobianProducts) {
  const Model model = vjp(Model::from_text(kCubes), {.wrt = kBoth});
  const NamedTensor seed{.name = "y_grad", .tensor = Tensor::scalar(2.0F)};
  EXPECT_THAT(run(model, {seed}), ElementsAre(ElementsAre(6, -24), ElementsAre(2, 16)));
}

TEST(Derivatives, JacobianVectorProducts) {
  const Model model = jvp(Model::from_text(kCubes), {.wrt = kBoth});
  // sum(3 w x^2 v + x^3 u)
  const NamedTensors tangents = {pair("x_tangent", 1, 1), pair("w_tangent", 1, 0)};
  EXPECT_THAT(run(model, tangents), ElementsAre(ElementsAre(3 - 12 + 1)));
}

TEST(Derivatives, ProductsWithTheHessian) {
  const Model model = hvp(Model::from_text(kCubes), {.wrt = kBoth});
  // 6 w x v + 3 x^2 u, 3 x^2 v
  const NamedTensors tangents = {pair("x_tangent", 1, 2), pair("w_tangent", 1, 0)};
  EXPECT_THAT(run(model, tangents), ElementsAre(ElementsAre(6 + 3, -24), ElementsAre(3, 24)));
}

TEST(Derivatives, Hessian) {
  const Model model = hessian(Model::from_text(kCubes), {.wrt = kBoth});
  EXPECT_THAT(run(model, {}), ElementsAre(ElementsAre(6, 0, 0, -12), ElementsAre(3, 0, 0, 12),
                                          ElementsAre(3, 0, 0, 12), ElementsAre(0, 0, 0, 0)));
}

TEST(Derivatives, OfADerivative) {
  const Model first = gradient(Model::from_text(kCubes), {.wrt = {"x"}, .fill_grad = true});
  const Model second = gradient(first, {.wrt = {"x"}, .fill_grad = true});
  EXPECT_THAT(run(second, {}), ElementsAre(ElementsAre(6, -12)));
}

TEST(Derivatives, StopsByName) {
  const Model model = gradient(Model::from_text(kCubes),
                               {.wrt = {"x"}, .fill_grad = true, .stop_gradient = {"square"}});
  EXPECT_THAT(run(model, {}), ElementsAre(ElementsAre(1, -4)));
}

TEST(Derivatives, AHessianOfMoreThanOneElementIsAnError) {
  try {
    hessian(Model::from_text(kCubes), {.wrt = {"x"}, .outputs = {"cube"}});
    FAIL() << "no error";
  } catch (const ModelError& error) {
    EXPECT_THAT(error.what(), HasSubstr("cube"));
  }
}

constexpr const char* kLibrary = R"(
<ir_version: 8, opset_import: ["" : 18, "own" : 1]>
nothing (float[2] x) => (float[2] y) { y = Identity(x) }
<domain: "own", opset_import: ["" : 18]>
Cube (x) => (y) {
  square = Mul(x, x)
  y = Mul(square, x)
}
<domain: "own", opset_import: ["" : 18]>
Cube_grad (x, y, dy) => (dx) {
  ten = Constant<value = float {10}>()
  dx = Mul(dy, ten)
}
)";

constexpr const char* kCaller = R"(
<ir_version: 8, opset_import: ["" : 18, "own" : 1]>
caller (float[2] x) => (float[2] y) { y = own.Cube(x) }
)";

// Shapes that are not known hide until a run that two axes have one start.
TEST(Derivatives, SlicesOfTooManyAxesAreRefused) {
  const Model model = Model::from_text(R"(
<ir_version: 8, opset_import: ["" : 18]>
cut (float x) => (float y)
<int64[1] start = {1}, int64[1] end = {2}, int64[2] axes = {0, 1}>
{
  shape = Constant<value = int64[2] {3, 3}>()
  table = Expand(x, shape)
  part = Slice(table, start, end, axes)
  y = ReduceSum<keepdims = 0>(part)
}
)");
  EXPECT_THROW(
      {
        InferenceSession session(gradient(model, {.wrt = {"x"}, .fill_grad = true}),
                                 {.threads = 1});
        session.run({}, {{.name = "x", .tensor = Tensor::scalar(1.0F)}});
      },
      Error);
}

TEST(OwnOperators, HaveTheGradientThatIsRegistered) {
  const std::int64_t registration = register_operators(Model::from_text(kLibrary));
  EXPECT_EQ(registered_operators().at(0).name, "own::Cube");
  EXPECT_TRUE(registered_operators().at(0).has_gradient);
  const Model caller = Model::from_text(kCaller);
  EXPECT_THAT(run(caller, {}), ElementsAre(ElementsAre(1, 8)));
  const GradientOptions options{.wrt = {"x"}, .fill_grad = true};
  EXPECT_THAT(run(gradient(caller, options), {}), ElementsAre(ElementsAre(10, 10)));
  unregister_operators(registration);
  EXPECT_TRUE(registered_operators().empty());

  OperatorSpec body_only{.name = "own::Cube", .body = "own::Cube"};
  Model library = Model::from_text(kLibrary);
  const std::int64_t again = register_operators(library, {body_only});
  const Model other = Model::from_text(kCaller);
  EXPECT_THAT(run(gradient(other, options), {}), ElementsAre(ElementsAre(3, 12)));
  unregister_operators(again);
}

}  // namespace onnxgrad::derivatives_test
