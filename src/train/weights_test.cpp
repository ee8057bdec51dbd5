#include "train/weights.h"

#include <gmock/gmock.h>

#include "onnx/model_io.h"
#include "train/testing/draft.h"

namespace onnxgrad::train::weights_test {

using testing::ElementsAre;
using testing::HasSubstr;
using train_test::Draft;

Tensor ones(Dims dims) {
  Tensor tensor = Tensor::empty(DataType::kFloat32, std::move(dims));
  std::ranges::fill(tensor.mutable_data<float>(), 1.0F);
  return tensor;
}

std::vector<std::string> trainable_names(const Draft& draft) {
  std::vector<std::string> names;
  for (const Weight& weight : find_weights(*draft.model, builtin_engine().ops)) {
    if (weight.trainable) names.push_back(weight.value->name);
  }
  return names;
}

TEST(Weights, MatricesAndTheirBiasesAreTrained) {
  Draft draft = train_test::linear_model();
  EXPECT_THAT(trainable_names(draft), ElementsAre("W", "b"));
  const auto weights = find_weights(*draft.model, builtin_engine().ops);
  EXPECT_EQ(weights[0].reader->op_type, "MatMul");
  EXPECT_EQ(weights[1].reader->op_type, "Add");
  EXPECT_EQ(weights[1].layer->op_type, "MatMul");
}

TEST(Weights, ConstantsAreNot) {
  Draft draft;
  ir::GraphBuilder& g = draft.g;
  ir::Value* x = draft.input("x", DataType::kFloat32, {ir::Dim::named("N"), 4});
  ir::Value* mean = draft.weight("mean", ones({4}));
  ir::Value* scale = draft.weight("scale", ones({4}));
  ir::Value* unity = draft.weight("unity", ones({1}));
  ir::Value* epsilon = draft.weight("epsilon", ones({}));
  ir::Value* w = draft.weight("w", ones({4, 3}));
  ir::Value* shape = draft.weight("shape", Tensor::from(std::vector<std::int64_t>{-1, 3}, Dims{2}));
  ir::Value* h = g.matmul(g.div(g.sub(x, mean), scale), w);
  draft.output(g.reshape(g.sub(unity, g.op("Sigmoid", {g.add(h, epsilon)})), shape));
  EXPECT_THAT(trainable_names(draft), ElementsAre("w"));
}

TEST(Weights, AreSeenThroughTransposeAndIdentity) {
  Draft draft;
  ir::GraphBuilder& g = draft.g;
  ir::Value* x = draft.input("x", DataType::kFloat32, {ir::Dim::named("N"), 4});
  ir::Value* w = draft.weight("w", ones({3, 4}));
  ir::Value* b = draft.weight("b", ones({3}));
  ir::Value* y = g.identity(g.matmul(x, g.identity(g.transpose(w, {1, 0}))));
  draft.output(g.add(g.identity(b), y));
  EXPECT_THAT(trainable_names(draft), ElementsAre("w", "b"));
}

// What exporters write of a normalisation, and what only looks like one.
TEST(Weights, ScaleAndShiftOfNormalizationsThatAreWrittenOut) {
  const auto trainable = [](const std::string& nodes) {
    const auto file = onnx_io::load_text(
        "<ir_version: 10, opset_import: [\"\" : 23]>\n"
        "main (float[N, 4] x, float[N, 4] k) => (float[N, 4] y)\n"
        "<float[4] scale = {1, 1, 1, 1}, float[4] shift = {0, 0, 0, 0}, float epsilon = {1e-5},\n"
        " float two = {2}, float half = {0.5}, float minus_half = {-0.5}, float one = {1},\n"
        " float[4] mean = {1, 2, 3, 4}, int64[1] last = {-1}> {\n" +
        nodes + "}");
    const ir::Model model = onnx_io::to_internal(file, builtin_engine().ops);
    std::vector<std::string> names;
    for (const Weight& weight : find_weights(model, builtin_engine().ops)) {
      if (weight.trainable) names.push_back(weight.value->name);
    }
    return names;
  };
  const std::string center = "m = ReduceMean(x, last)  d = Sub(x, m)  ";
  const std::string variance = "q = Pow(d, two)  v = ReduceMean(q, last)  e = Add(v, epsilon)  ";
  const std::string affine = "  t = Mul(n, scale)  y = Add(t, shift)";
  // Layer normalisation before opset 17, and its forms.
  EXPECT_THAT(trainable(center + variance + "s = Sqrt(e)  n = Div(d, s)" + affine),
              ElementsAre("scale", "shift"));
  EXPECT_THAT(trainable(center + variance + "s = Pow(e, half)  n = Div(d, s)" + affine),
              ElementsAre("scale", "shift"));
  EXPECT_THAT(trainable(center + variance + "s = Pow(e, minus_half)  n = Mul(s, d)" + affine),
              ElementsAre("scale", "shift"));
  EXPECT_THAT(trainable(center + variance + "s = Sqrt(e)  r = Reciprocal(s)  n = Mul(d, r)" +
                        "  t = Mul(scale, n)  y = Add(shift, t)"),
              ElementsAre("scale", "shift"));
  EXPECT_THAT(trainable(center + variance + "s = Sqrt(e)  r = Div(one, s)  n = Mul(d, r)" + affine),
              ElementsAre("scale", "shift"));
  EXPECT_THAT(trainable("y = RMSNormalization(x, scale)"), ElementsAre("scale"));
  // A scaler's numbers, a division by another root, a scale of plain data, a shift without scale.
  EXPECT_THAT(trainable("c = Sub(x, mean)  y = Mul(c, scale)"), testing::IsEmpty());
  EXPECT_THAT(trainable("a = Abs(k)  s = Sqrt(a)  n = Div(x, s)" + affine), testing::IsEmpty());
  EXPECT_THAT(trainable(center + variance + "s = Sqrt(e)  n = Div(d, s)  t = Mul(n, k)" +
                        "  y = Add(t, shift)"),
              testing::IsEmpty());
  EXPECT_THAT(trainable(center + variance + "s = Sqrt(e)  n = Div(d, s)  y = Mul(n, two)"),
              testing::IsEmpty());
}

TEST(Weights, AMaskAddedToProductsOfActivationsIsNone) {
  Draft draft;
  ir::GraphBuilder& g = draft.g;
  ir::Value* q = draft.input("q", DataType::kFloat32, {ir::Dim::named("N"), 4, 4});
  ir::Value* mask = draft.weight("mask", ones({4, 4}));
  draft.output(g.add(g.matmul(q, q), mask));
  EXPECT_THAT(trainable_names(draft), testing::IsEmpty());
}

TEST(Weights, ABiasOfOneNumberBelongsToOneColumn) {
  Draft one = train_test::linear_model();
  EXPECT_THAT(trainable_names(one), testing::Contains("b"));
}

TEST(Weights, PatternsChoose) {
  Draft draft = train_test::linear_model();
  draft.weight("unused", ones({2}));
  const auto all = find_weights(*draft.model, builtin_engine().ops);
  const auto names = [&](const std::vector<std::string>& trainable,
                         const std::vector<std::string>& frozen) {
    std::vector<std::string> chosen;
    for (const Weight& weight : select_weights(all, trainable, frozen)) {
      chosen.push_back(weight.value->name);
    }
    return chosen;
  };
  EXPECT_THAT(names({}, {}), ElementsAre("W", "b"));
  EXPECT_THAT(names({}, {"b"}), ElementsAre("W"));
  EXPECT_THAT(names({"u*", "b"}, {}), ElementsAre("b", "unused"));
  EXPECT_THROW(names({"c*"}, {}), ModelError);
  EXPECT_THROW(names({}, {"*"}), ModelError);
}

TEST(Weights, InfoNamesStorageAndReader) {
  Draft draft = train_test::linear_model();
  ir::Value* w = draft.model->graph->find("W");
  const auto infos = [&] {
    std::vector<WeightInfo> result;
    for (const Weight& weight : find_weights(*draft.model, builtin_engine().ops)) {
      result.push_back(weight_info(weight));
    }
    return result;
  };
  EXPECT_EQ(infos()[0].storage, WeightInfo::Storage::kInitializer);
  EXPECT_EQ(infos()[0].op_type, "MatMul");
  EXPECT_EQ(infos()[0].dims, Dims({2, 1}));
  w->origin = std::make_shared<ir::WeightOrigin>(
      ir::WeightOrigin{.kind = ir::WeightOrigin::Kind::kAttribute, .name = "y"});
  EXPECT_EQ(infos()[0].storage, WeightInfo::Storage::kAttribute);
}

}  // namespace onnxgrad::train::weights_test
