#include "train/weights/weights.h"

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
  for (const Weight& weight : find_weights(*draft.model, builtin_ops())) {
    if (weight.trainable) names.push_back(weight.value->name);
  }
  return names;
}

TEST(Weights, MatricesAndTheirBiasesAreTrained) {
  Draft draft = train_test::linear_model();
  EXPECT_THAT(trainable_names(draft), ElementsAre("W", "b"));
  const auto weights = find_weights(*draft.model, builtin_ops());
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

// Normalisations as exporters write them, and nodes that only look like one.
TEST(Weights, ScaleAndShiftOfNormalizationsThatAreWrittenOut) {
  const auto trainable = [](const std::string& nodes) {
    const auto file = onnx_io::load_text(
        "<ir_version: 10, opset_import: [\"\" : 23]>\n"
        "main (float[N, 4] x, float[N, 4] k) => (float[N, 4] y)\n"
        "<float[4] scale = {1, 1, 1, 1}, float[4] shift = {0, 0, 0, 0}, float epsilon = {1e-5},\n"
        " float two = {2}, float half = {0.5}, float minus_half = {-0.5}, float one = {1},\n"
        " float[4] mean = {1, 2, 3, 4}, int64[1] last = {-1}> {\n" +
        nodes + "}");
    const ir::Model model = onnx_io::to_internal(file, builtin_ops());
    std::vector<std::string> names;
    for (const Weight& weight : find_weights(model, builtin_ops())) {
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
  // A scaler's numbers, a scale of plain data, one number.
  EXPECT_THAT(trainable("c = Sub(x, mean)  y = Mul(c, scale)"), testing::IsEmpty());
  EXPECT_THAT(trainable(center + variance + "s = Sqrt(e)  n = Div(d, s)  y = Mul(n, k)"),
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

// "<name>: <why not>" of every floating initializer; nothing behind the name of those that are
// trained. `header` may name the producer.
std::vector<std::string> described(const std::string& graph, const std::string& header = "") {
  const auto file =
      onnx_io::load_text("<ir_version: 10, opset_import: [\"\" : 23]" + header + ">\n" + graph);
  const ir::Model model = onnx_io::to_internal(file, builtin_ops());
  std::vector<std::string> lines;
  for (const Weight& weight : find_weights(model, builtin_ops())) {
    if (!is_floating(weight.value->initializer.dtype()) || is_of_definition(weight)) continue;
    EXPECT_EQ(weight.trainable, weight.reason.empty()) << weight.value->name;
    lines.push_back(weight.value->name + (weight.trainable ? "" : ": " + weight.reason));
  }
  return lines;
}

constexpr const char* kFromTorch = ", producer_name: \"pytorch\"";

struct FormulaCase {
  std::string name;
  std::string graph;
  std::vector<std::string> expected;
  std::string header = "";
};

class FormulaWeights : public testing::TestWithParam<FormulaCase> {};

TEST_P(FormulaWeights, AreToldFromConstants) {
  const FormulaCase& c = GetParam();
  EXPECT_EQ(described(c.graph, c.header), c.expected);
}

// As torch's two exporters write them.
INSTANTIATE_TEST_SUITE_P(
    Parameters, FormulaWeights,
    testing::ValuesIn(std::vector<FormulaCase>{
        {.name = "class_token_and_places",
         .graph = R"(g (float[N, 2, 2] x) => (float[N, 3, 2] y)
<float[1, 1, 2] cls_token = {0, 0}, float[1, 3, 2] pos_embed = {0.1, 0.7, 0.3, 0.2, 0.9, 0.4},
 int64[1] zero = {0}, int64[1] one = {1}, int64[2] ends = {1, 2}> {
  s = Shape(x)  n = Slice(s, zero, one)  shape = Concat<axis = 0>(n, ends)
  token = Expand(cls_token, shape)  joined = Concat<axis = 1>(token, x)  y = Add(joined, pos_embed)
})",
         .expected = {"cls_token", "pos_embed"}},
        {.name = "sliced_places",
         .graph = R"(g (float[N, T, 2] x) => (float[N, T, 2] y)
<float[1, 3, 2] places = {0.1, 0.7, 0.3, 0.2, 0.9, 0.4}, int64[1] zero = {0}, int64[1] one = {1},
 int64[1] two = {2}> {
  s = Shape(x)  t = Slice(s, one, two)  here = Slice(places, zero, t, one)  y = Add(x, here)
})",
         .expected = {"places"}},
        {.name = "relative_positions",
         .graph = R"(g (float[N, 2, 2, 2] x) => (float[N, 2, 2, 2] y)
<float[3, 2] table = {0.1, 0.7, 0.3, 0.2, 0.9, 0.4}, int64[4] index = {0, 1, 2, 0},
 int64[3] shape = {2, 2, 2}, int64[1] first = {0}> {
  q = MatMul(x, x)  rows = Gather(table, index)  square = Reshape(rows, shape)
  heads = Transpose<perm = [2, 0, 1]>(square)  bias = Unsqueeze(heads, first)  y = Add(q, bias)
})",
         .expected = {"table"}},
        {.name = "layer_scale",
         .graph = R"(g (float[N, 2] x) => (float[N, 2] y)
<float[2, 2] w = {0.1, 0.7, 0.3, 0.2}, float[2] gamma = {1e-6, 1e-6}> {
  h = MatMul(x, w)  a = Relu(h)  s = Mul(gamma, a)  y = Add(x, s)
})",
         .expected = {"w", "gamma"}},
        {.name = "temperature",
         .graph = R"(g (float[N, 2] x, float[2, N] z) => (float[N, N] y)
<float logit_scale = {2.6592}, float logit_bias = {-10}> {
  p = MatMul(x, z)  e = Exp(logit_scale)  s = Mul(p, e)  y = Add(s, logit_bias)
})",
         .expected = {"logit_scale", "logit_bias"},
         .header = kFromTorch},
        {.name = "temperature_of_any_program",
         .graph = R"(g (float[N, 2] x, float[2, N] z) => (float[N, N] y) <float scale = {1}> {
  p = MatMul(x, z)  e = Exp(scale)  y = Mul(p, e)
})",
         .expected = {"scale"}},
        {.name = "packed_projections",
         .graph = R"(g (float[N, 2] x, float[M, 2] z) => (float[N, 2] q, float[M, 4] kv)
<float[6, 2] in_proj_weight = {0.1, 0.7, 0.3, 0.2, 0.9, 0.4, 0.8, 0.6, 0.5, 0.15, 0.25, 0.35},
 float[6] in_proj_bias = {0, 0, 0, 0, 0, 0}, int64[2] sizes = {2, 4}, int64[1] zero = {0},
 int64[1] two = {2}, int64[1] six = {6}> {
  wq, wkv = Split<axis = 0>(in_proj_weight, sizes)
  wqt = Transpose<perm = [1, 0]>(wq)  wkvt = Transpose<perm = [1, 0]>(wkv)
  bq = Slice(in_proj_bias, zero, two)  bkv = Slice(in_proj_bias, two, six)
  hq = MatMul(x, wqt)  q = Add(hq, bq)  hkv = MatMul(z, wkvt)  kv = Add(hkv, bkv)
})",
         .expected = {"in_proj_weight", "in_proj_bias"}},
        {.name = "standardised_convolution",
         .graph = R"(g (float[N, 1, 3, 3] x) => (float[N, 2, 2, 2] y)
<float[2, 1, 2, 2] weight = {0.1, 0.7, 0.3, 0.2, 0.9, 0.4, 0.8, 0.6}, float[2, 1, 1, 1] gain = {1, 1},
 float[2] bias = {0, 0}, int64[3] axes = {1, 2, 3}, float eps = {1e-5}> {
  m = ReduceMean(weight, axes)  d = Sub(weight, m)  q = Mul(d, d)  v = ReduceMean(q, axes)
  e = Add(v, eps)  s = Sqrt(e)  n = Div(d, s)  w = Mul(n, gain)  y = Conv(x, w, bias)
})",
         .expected = {"weight", "gain", "bias", "eps: one number of a formula"}},
        {.name = "state_space",
         .graph = R"(g (float[2, T] x) => (float[2, T] y)
<float[2, 2] dt_proj_weight = {0.1, 0.7, 0.3, 0.2}, float[2, 1] dt_bias = {0.5, -0.25},
 float[2, 3] A_log = {0, 0.6931472, 1.0986123, 0, 0.6931472, 1.0986123}, float[2, 1] D = {1, 1},
 int64[1] last = {-1}> {
  p = MatMul(dt_proj_weight, x)  b = Add(p, dt_bias)  dt = Softplus(b)
  e = Exp(A_log)  a = Neg(e)  r = ReduceSum(a, last)  h = Mul(dt, r)  s = Mul(D, x)  y = Add(h, s)
})",
         .expected = {"dt_proj_weight", "dt_bias", "A_log", "D"}},
        {.name = "centres",
         .graph = R"(g (float[N, 1, 2] x) => (float[N, 3, 2] y)
<float[3, 2] centres = {0.1, 0.7, 0.3, 0.2, 0.9, 0.4}> { y = Sub(x, centres) })",
         .expected = {"centres"}},
        {.name = "mask_token",
         .graph = R"(g (float[N, T, 2] x, bool[N, T, 1] hidden) => (float[N, T, 2] y)
<float[1, 1, 2] mask_token = {0, 0}> { y = Where(hidden, mask_token, x) })",
         .expected = {"mask_token"}},
        {.name = "in_a_branch",
         .graph = R"(g (float[N, 2] x, bool c) => (float[N, 2] y) <float[2] gate = {0.3, -0.7}> {
  h = Relu(x)
  y = If (c) <then_branch = a () => (float[N, 2] t) <float[2] shift = {0, 0}> {
                u = Mul(h, gate)  t = Add(u, shift) },
              else_branch = b () => (float[N, 2] e) { e = Identity(h) }>
})",
         .expected = {"gate", "shift_1"}}}),
    [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Constants, FormulaWeights,
    testing::ValuesIn(std::vector<FormulaCase>{
        {.name = "scaler",
         .graph = R"(g (float[N, 2] x) => (float[N, 2] y)
<float[2] mean = {0.1, 0.7}, float[2] inverse = {0.3, 0.2}, float[1, 2] shift = {1.5, 0}> {
  c = Sub(x, mean)  s = Mul(inverse, c)  y = Add(s, shift)
})",
         .expected = {"mean: scales an input of the model", "inverse: scales an input of the model",
                      "shift: scales an input of the model"}},
        {.name = "pixels",
         .graph = R"(g (uint8[N, 4, 4, 3] x) => (float[N, 3, 4, 4] y)
<float[3, 1, 1] mean = {0.485, 0.456, 0.406}, float[3, 1, 1] std = {0.229, 0.224, 0.225},
 float size = {255}> {
  f = Cast<to = 1>(x)  t = Transpose<perm = [0, 3, 1, 2]>(f)  p = Div(t, size)  c = Sub(p, mean)
  y = Div(c, std)
})",
         .expected = {"mean: scales an input of the model", "std: scales an input of the model",
                      "size: scales an input of the model"},
         .header = kFromTorch},
        {.name = "masks",
         .graph = R"(g (float[N, 2, 2] x) => (float[N, 2, 2] y)
<float[2, 2] added = {0, -10000, 0, 0}, float[2, 2] causal_mask = {1, 1, 1, 1},
 float[2, 2] lower = {1, 0, 1, 1}> {
  p = MatMul(x, x)  q = Add(p, added)  m = Mul(q, causal_mask)  y = Mul(m, lower)
})",
         .expected = {"added: a mask", "causal_mask: a mask", "lower: a mask"}},
        {.name = "formula_tables",
         .graph = R"(g (float[N, 1] x) => (float[N, 4] y)
<float[4] inv_freq = {1, 0.1, 0.01, 0.001}, float[4] knots = {-1.5, -0.92, -0.34, 0.24},
 float[2, 4] pe = {0, 1, 0, 1, 0.8414710, 0.5403023, 0.0099998, 0.9999500}> {
  r = Relu(x)  f = Mul(r, inv_freq)  k = Sub(f, knots)  s = Sin(k)  t = Concat<axis = 0>(s, pe)
  y = Cos(t)
})",
         .expected = {"inv_freq: frequencies", "knots: evenly spaced numbers",
                      "pe: sines and cosines"}},
        {.name = "gelu_written_out",
         .graph = R"(g (float[N, 2] x) => (float[N, 2] y)
<float val_1 = {3}, float val_2 = {0.044715}, float c = {0.7978846}, float val_4 = {1},
 float half = {0.5}> {
  a = Pow(x, val_1)  b = Mul(val_2, a)  d = Add(x, b)  e = Mul(c, d)  f = Tanh(e)
  h = Add(f, val_4)  i = Mul(half, h)  y = Mul(x, i)
})",
         .expected = {"val_1: one number of a formula", "val_2: one number of a formula",
                      "c: one number of a formula", "val_4: one number of a formula",
                      "half: one number of a formula"}},
        {.name = "statistics",
         .graph = R"(g (float[N, 2] x) => (float[N, 2] y)
<float[2] s = {1, 1}, float[2] b = {0, 0}, float[2] m = {0.1, 0.2}, float[2] v = {0.3, 0.4},
 float[2] running_var = {0.3, 0.4}> {
  n = BatchNormalization(x, s, b, m, v)  r = Sqrt(running_var)  y = Div(n, r)
})",
         .expected = {"s", "b", "m: running statistics", "v: running statistics",
                      "running_var: running statistics"}},
        {.name = "names_of_exporters",
         .graph = R"(g (float[N, 2] x) => (float[N, 2] y)
<float[2] val_7 = {0.1, 0.7}, float[2] val_8 = {0.3, 0.2}, float[2] Ad_Addcst = {0.1, 0.2},
 float threshold_cast = {20.0}> {
  r = Relu(x)  a = Mul(r, val_7)  b = Mul(a, val_8)  c = Add(b, Ad_Addcst)
  g = Greater(c, threshold_cast)  y = Where(g, c, r)
})",
         .expected = {"val_7: a constant by its name", "val_8: a constant by its name",
                      "Ad_Addcst: a constant by its name",
                      "threshold_cast: no gradient flows to input 1 of Greater"},
         .header = kFromTorch},
        {.name = "constant_nodes",
         .graph = R"(g (float[N, 2] x) => (float[N, 2] y) {
  r = Relu(x)  a = Constant<value = float[2] {0.1, 0.7}>()  c = Constant<value_float = 0.3>()
  b = Mul(r, a)  y = Add(b, c)
})",
         .expected = {"a: a constant by its name", "c: one number of a formula"}}}),
    [](const auto& info) { return info.param.name; });

TEST(Weights, ABiasOfOneNumberBelongsToOneColumn) {
  Draft one = train_test::linear_model();
  EXPECT_THAT(trainable_names(one), testing::Contains("b"));
}

TEST(Weights, PatternsChoose) {
  Draft draft = train_test::linear_model();
  draft.weight("unused", ones({2}));
  const auto all = find_weights(*draft.model, builtin_ops());
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
  EXPECT_THAT(names({"unused", "b"}, {}), ElementsAre("b", "unused"));
  EXPECT_THAT(names({"*"}, {}), ElementsAre("W", "b"));
  EXPECT_THROW(names({"u*"}, {}), ModelError);  // nothing reads it
  EXPECT_THROW(names({"c*"}, {}), ModelError);
  EXPECT_THROW(names({}, {"*"}), ModelError);
}

TEST(Weights, InfoNamesStorageAndReader) {
  Draft draft = train_test::linear_model();
  ir::Value* w = draft.model->graph->find("W");
  const auto infos = [&] {
    std::vector<WeightInfo> result;
    for (const Weight& weight : find_weights(*draft.model, builtin_ops())) {
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
