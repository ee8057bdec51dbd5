#include "train/heads/heads.h"

#include <gmock/gmock.h>

#include <ostream>
#include <string>
#include <vector>

#include "onnx/model_io.h"
#include "onnxgrad/error.h"
#include "train/tools/engine.h"

// Heads in ONNX's text syntax: what torch and other exporters write, and each pattern alone. Models
// that skl2onnx wrote are in heads_sklearn_test.cpp.

namespace onnxgrad::train::heads_text_test {

constexpr const char* kHeader = "<ir_version: 10, opset_import: [\"\" : 21, \"ai.onnx.ml\" : 3]>\n";
// s: [N, 3] scores, u: [N, 1] one score, t: [N, 2] two of them, all behind layers.
constexpr const char* kLayers =
    "<float[2, 3] W = {1, 2, 3, 4, 5, 6}, float[3] b = {0, 0.5, 1}, float[2, 1] w = {1, -1},\n"
    " float[2, 2] v = {1, 2, 3, 4}, float one = {1}, float minus_one = {-1}, float two = {2},\n"
    " float half = {0.5}, float tiny = {1e-9}, int64[1] axis = {1}, int64[1] last = {-1},\n"
    " int64[1] first = {0}, int64[1] second = {1}, int64[1] third = {2},\n"
    " string[3] names = {\"a\", \"b\", \"c\"}, int64[2] numbers = {7, 9}>\n"
    "{ product = MatMul(X, W)  s = Add(product, b)  u = MatMul(X, w)  t = MatMul(X, v)\n";

ir::Model load(const std::string& outputs, const std::string& nodes) {
  const std::string text =
      std::string(kHeader) + "main (float[N, 2] X) => (" + outputs + ")\n" + kLayers + nodes + " }";
  return onnx_io::to_internal(onnx_io::load_text(text), builtin_ops());
}

struct TextCase {
  std::string name;
  std::string outputs;
  std::string nodes;
  std::string line;  ///< expected line for loss="auto", without "loss: "
};

void PrintTo(const TextCase& c, std::ostream* out) { *out << c.name; }

std::string case_name(const testing::TestParamInfo<TextCase>& info) { return info.param.name; }

class HeadTest : public testing::TestWithParam<TextCase> {};

TEST_P(HeadTest, IsFound) {
  const TextCase& c = GetParam();
  const ir::Model model = load(c.outputs, c.nodes);
  EXPECT_EQ(resolve_loss(*model.graph, {}).info.line, "loss: " + c.line);
}

INSTANTIATE_TEST_SUITE_P(
    Heads, HeadTest,
    testing::ValuesIn(std::vector<TextCase>{
        {.name = "softmax",
         .outputs = "float[N, 3] Y",
         .nodes = "Y = Softmax(s)",
         .line = "softmax cross-entropy on 's' (scores before output 'Y'), 3 classes"},
        {.name = "log_softmax",
         .outputs = "float[N, 3] Y",
         .nodes = "Y = LogSoftmax <axis = 1> (s)",
         .line = "softmax cross-entropy on 's' (scores before output 'Y'), 3 classes"},
        {.name = "softmax_written_out",
         .outputs = "float[N, 3] Y",
         .nodes = "m = ReduceMax(s, last)  z = Sub(s, m)  e = Exp(z)  r = ReduceSum(e, last)  "
                  "Y = Div(e, r)",
         .line = "softmax cross-entropy on 's' (scores before output 'Y'), 3 classes"},
        {.name = "softmax_by_logarithms",
         .outputs = "float[N, 3] Y",
         .nodes = "r = ReduceLogSumExp(s, last)  z = Sub(s, r)  Y = Exp(z)",
         .line = "softmax cross-entropy on 's' (scores before output 'Y'), 3 classes"},
        {.name = "softmax_of_rows_is_none",
         .outputs = "float[N, 3] Y",
         .nodes = "Y = Softmax <axis = 0> (s)",
         .line = "squared error on 'Y'"},
        {.name = "sigmoid_of_one_score",
         .outputs = "float[N, 1] Y",
         .nodes = "Y = Sigmoid(u)",
         .line = "binary cross-entropy on 'u' (scores before output 'Y'), 2 classes"},
        {.name = "sigmoid_squeezed",
         .outputs = "float[N] Y",
         .nodes = "p = Sigmoid(u)  Y = Squeeze(p, axis)",
         .line = "binary cross-entropy on 'u' (scores before output 'Y'), 2 classes"},
        {.name = "sigmoid_per_label",
         .outputs = "float[N, 3] Y",
         .nodes = "Y = Sigmoid(s)",
         .line = "binary cross-entropy on 's' (scores before output 'Y')"},
        {.name = "sigmoid_per_label_rounded",
         .outputs = "int64[N, 3] L, float[N, 3] Y",
         .nodes = "Y = Sigmoid(s)  r = ai.onnx.ml.Binarizer <threshold = 0.5> (Y)  "
                  "L = Cast <to = 7> (r)",
         .line = "binary cross-entropy on 's' (scores before output 'Y')"},
        {.name = "sigmoid_per_class_and_label",
         .outputs = "int64[N] L, float[N, 3] Y",
         .nodes = "Y = Sigmoid(s)  L = ArgMax <axis = 1, keepdims = 0> (Y)",
         .line = "one-vs-rest log loss on 's' (scores before output 'Y'), 3 classes"},
        {.name = "sigmoid_normalised",
         .outputs = "float[N, 3] Y",
         .nodes = "p = Sigmoid(s)  r = ReduceL1(p, axis)  Y = Div(p, r)",
         .line = "one-vs-rest log loss on 's' (scores before output 'Y'), 3 classes"},
        {.name = "sigmoid_normalised_above_a_floor",
         .outputs = "float[N, 3] Y",
         .nodes = "p = Sigmoid(s)  a = Abs(p)  r = ReduceSum(a, axis)  f = Max(r, tiny)  "
                  "Y = Div(p, f)",
         .line = "one-vs-rest log loss on 's' (scores before output 'Y'), 3 classes"},
        {.name = "sigmoid_normalised_by_another_sum",
         .outputs = "float[N, 3] Y",
         .nodes = "p = Sigmoid(s)  r = ReduceSum(s, axis)  Y = Div(p, r)",
         .line = "squared error on 'Y'"},
        {.name = "sigmoid_written_out",
         .outputs = "float[N, 1] Y",
         .nodes = "n = Neg(u)  e = Exp(n)  d = Add(one, e)  Y = Reciprocal(d)",
         .line = "binary cross-entropy on 'u' (scores before output 'Y'), 2 classes"},
        {.name = "sigmoid_written_out_as_quotient",
         .outputs = "float[N, 1] Y",
         .nodes = "n = Mul(minus_one, u)  e = Exp(n)  d = Add(e, one)  Y = Div(one, d)",
         .line = "binary cross-entropy on 'u' (scores before output 'Y'), 2 classes"},
        {.name = "quotient_that_is_no_sigmoid",
         .outputs = "float[N, 1] Y",
         .nodes = "n = Mul(minus_one, u)  e = Exp(n)  d = Add(e, two)  Y = Div(one, d)",
         .line = "squared error on 'Y'"},
        {.name = "complement_columns",
         .outputs = "float[N, 2] Y",
         .nodes = "p = Sigmoid(u)  q = Sub(one, p)  Y = Concat <axis = 1> (q, p)",
         .line = "binary cross-entropy on 'u' (scores before output 'Y'), 2 classes"},
        {.name = "complement_columns_the_other_way_round",
         .outputs = "float[N, 2] Y",
         .nodes = "p = Sigmoid(u)  q = Sub(one, p)  Y = Concat <axis = 1> (p, q)",
         .line = "negative log-likelihood on 'Y' (no scores found; the logarithm is clamped), "
                 "2 classes"},
        {.name = "complement_of_no_scores",
         .outputs = "float[N, 2] Y",
         .nodes = "p = Erf(u)  q = Sub(one, p)  Y = Concat <axis = 1> (q, p)",
         .line = "negative log-likelihood on 'Y' (no scores found; the logarithm is clamped), "
                 "2 classes"},
        {.name = "complement_of_bare_scores",  // LinearClassifier with one row
         .outputs = "float[N, 2] Y",
         .nodes = "q = Sub(one, u)  Y = Concat <axis = 1> (q, u)",
         .line = "one-vs-rest hinge on 'u' (scores before output 'Y'), 2 classes"},
        {.name = "opposite_columns",
         .outputs = "float[N, 2] Y",
         .nodes = "n = Mul(u, minus_one)  Y = Concat <axis = 1> (n, u)",
         .line = "one-vs-rest hinge on 'u' (scores before output 'Y'), 2 classes"},
        {.name = "sigmoid_of_opposite_columns",
         .outputs = "float[N, 2] Y",
         .nodes = "n = Neg(u)  o = Concat <axis = -1> (n, u)  Y = Sigmoid(o)",
         .line = "binary cross-entropy on 'u' (scores before output 'Y'), 2 classes"},
        {.name = "softmax_of_opposite_columns",
         .outputs = "float[N, 2] Y",
         .nodes = "n = Neg(u)  o = Concat <axis = -1> (n, u)  Y = Softmax(o)",
         .line = "softmax cross-entropy on 'o' (scores before output 'Y'), 2 classes"},
        {.name = "modified_huber",
         .outputs = "float[N, 3] Y",
         .nodes = "k = Clip(s, minus_one, one)  d = Add(k, one)  p = Mul(half, d)  "
                  "r = ReduceSum(p, axis)  Y = Div(p, r)",
         .line = "one-vs-rest modified Huber on 's' (scores before output 'Y'), 3 classes"},
        {.name = "clip_of_other_bounds",
         .outputs = "float[N, 1] Y",
         .nodes = "k = Clip(u, minus_one, two)  d = Add(k, one)  Y = Mul(half, d)",
         .line = "squared error on 'Y'"},
        {.name = "columns_of_a_softmax",
         .outputs = "float[N, 1] P, float[N, 1] Q",
         .nodes = "p = Softmax(t)  P = Slice(p, first, second, axis, second)  "
                  "Q = Slice(p, second, third, axis, second)",
         .line = "softmax cross-entropy on 't' (scores before output 'P'), 2 classes"},
        {.name = "column_of_values",
         .outputs = "float[N, 1] Y",
         .nodes = "Y = Slice(t, first, second, axis, second)",
         .line = "squared error on 'Y'"},
        {.name = "labels_of_a_softmax",
         .outputs = "string[N] L",
         .nodes = "p = Softmax(s)  i = ArgMax <axis = 1, keepdims = 0> (p)  L = Gather(names, i)",
         .line = "softmax cross-entropy on 's' (scores before output 'L'), 3 classes from "
                 "initializer 'names'"},
        {.name = "label_and_probabilities",
         .outputs = "int64[N] L, float[N, 2] Y",
         .nodes = "Y = Softmax(t)  i = ArgMax <axis = 1, keepdims = 0> (t)  L = Gather(numbers, i)",
         .line = "softmax cross-entropy on 't' (scores before output 'Y'), 2 classes from "
                 "initializer 'numbers'"},
        {.name = "label_of_scores_without_a_list",
         .outputs = "int64[N] L",
         .nodes = "L = ArgMax <axis = 1, keepdims = 0> (s)",
         .line = "softmax cross-entropy on 's' (scores before output 'L'), 3 classes"},
        {.name = "label_of_scores_with_a_list",
         .outputs = "string[N] L",
         .nodes = "i = ArgMax <axis = 1, keepdims = 0> (s)  L = Gather(names, i)",
         .line = "one-vs-rest hinge on 's' (scores before output 'L'), 3 classes from initializer "
                 "'names'"},
        {.name = "label_of_what_is_no_layer",
         .outputs = "string[N] L",
         .nodes = "p = Add(s, product)  i = ArgMax <axis = 1, keepdims = 0> (p)  "
                  "L = Gather(names, i)",
         .line = "softmax cross-entropy on 'p' (scores before output 'L'), 3 classes from "
                 "initializer 'names'"},
        {.name = "label_of_a_mean_of_probabilities",
         .outputs = "string[N] L",
         .nodes = "each = Sigmoid(s)  all = Softmax(product)  p = Mean(each, all)  "
                  "i = ArgMax <axis = 1, keepdims = 0> (p)  L = Gather(names, i)",
         .line = "negative log-likelihood on 'p' (probabilities before output 'L', no scores "
                 "found; the logarithm is clamped), 3 classes from initializer 'names'"},
        {.name = "label_of_votes_beside_scores",
         .outputs = "string[N] L, float[N, 3] Y",
         .nodes = "wins = Greater(s, product)  counted = Cast <to = 1> (wins)  "
                  "votes = Add(counted, one)  i = ArgMax <axis = 1, keepdims = 0> (votes)  "
                  "L = Gather(names, i)  Y = Erf(product)",
         .line = "softmax cross-entropy on 'Y', 3 classes from initializer 'names'"},
        {.name = "zip_map_of_scores",
         .outputs = "seq(map(string, float)) M",
         .nodes = "M = ai.onnx.ml.ZipMap <classlabels_strings = [\"a\", \"b\", \"c\"]> (s)",
         .line = "one-vs-rest hinge on 's' (scores before output 'M'), 3 classes from ZipMap "
                 "node"},
        {.name = "regression",
         .outputs = "float[N, 3] Y",
         .nodes = "Y = Identity(s)",
         .line = "squared error on 's' (before output 'Y')"},
        {.name = "a_grown_input_beside_it",
         .outputs = "float[M, 2] present, float[N, 3] Y",
         .nodes = "before = Concat <axis = 0> (X, t)  present = Concat <axis = 0> (before, t)  "
                  "Y = Identity(s)",
         .line = "squared error on 's' (before output 'Y')"},
        {.name = "regression_behind_a_layer",
         .outputs = "float[N, 1] u",
         .nodes = "",
         .line = "squared error on 'u'"},
    }),
    case_name);

struct NamedLossCase {
  std::string name;
  std::string nodes;
  LossFunction function = AutoLoss{};
  std::string output = {};
  std::string line = {};                    ///< expected line, or
  std::vector<std::string> fragments = {};  ///< fragments of the error
};

void PrintTo(const NamedLossCase& c, std::ostream* out) { *out << c.name; }

std::string named_case_name(const testing::TestParamInfo<NamedLossCase>& info) {
  return info.param.name;
}

class NamedLossTest : public testing::TestWithParam<NamedLossCase> {};

TEST_P(NamedLossTest, IsPlacedOrRefused) {
  const NamedLossCase& c = GetParam();
  const ir::Model model = load("float Y", c.nodes);
  const Loss loss{.function = c.function, .output = c.output};
  if (c.fragments.empty()) {
    EXPECT_EQ(resolve_loss(*model.graph, loss).info.line, "loss: " + c.line);
    return;
  }
  try {
    const ResolvedLoss resolved = resolve_loss(*model.graph, loss);
    FAIL() << "no error, but " << resolved.info.line;
  } catch (const ModelError& error) {
    for (const std::string& fragment : c.fragments) {
      EXPECT_THAT(error.what(), testing::HasSubstr(fragment));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Heads, NamedLossTest,
    testing::ValuesIn(std::vector<NamedLossCase>{
        {.name = "cross_entropy_finds_scores",
         .nodes = "Y = Softmax(s)",
         .function = SoftmaxCrossEntropy{},
         .line = "softmax cross-entropy on 's' (scores before output 'Y'), 3 classes"},
        {.name = "cross_entropy_on_a_softmax",
         .nodes = "Y = Softmax(s)",
         .function = SoftmaxCrossEntropy{},
         .output = "Y",
         .fragments = {"softmax cross-entropy takes scores, but 'Y' comes after a Softmax",
                       "Apply it to 's'"}},
        {.name = "cross_entropy_on_a_renamed_softmax",
         .nodes = "p = Softmax(s)  Y = Identity(p)",
         .function = SoftmaxCrossEntropy{},
         .output = "Y",
         .fragments = {"'Y' comes after a Softmax", "Apply it to 's'"}},
        {.name = "cross_entropy_on_a_log_softmax",
         .nodes = "Y = LogSoftmax(s)",
         .function = SoftmaxCrossEntropy{},
         .output = "Y",
         .line = "softmax cross-entropy on 's' (scores before output 'Y'), 3 classes"},
        {.name = "cross_entropy_on_scores_by_name",
         .nodes = "Y = Softmax(s)",
         .function = SoftmaxCrossEntropy{},
         .output = "s",
         .line = "softmax cross-entropy on 's', 3 classes"},
        {.name = "cross_entropy_on_logits",
         .nodes = "Y = Identity(s)",
         .function = SoftmaxCrossEntropy{},
         .line = "softmax cross-entropy on 's' (scores before output 'Y'), 3 classes"},
        {.name = "cross_entropy_without_scores",
         .nodes = "p = Erf(u)  q = Sub(one, p)  Y = Concat <axis = 1> (q, p)",
         .function = SoftmaxCrossEntropy{},
         .fragments = {"takes scores", "loss='negative_log_likelihood'"}},
        {.name = "cross_entropy_on_one_score",
         .nodes = "Y = Sigmoid(u)",
         .function = SoftmaxCrossEntropy{},
         .fragments = {"one column per class", "'u' is float32[N, 1]",
                       "loss='binary_cross_entropy'"}},
        {.name = "binary_cross_entropy_on_a_sigmoid",
         .nodes = "Y = Sigmoid(u)",
         .function = BinaryCrossEntropy{},
         .output = "Y",
         .fragments = {"binary cross-entropy takes scores, but 'Y' comes after a Sigmoid",
                       "Apply it to 'u'"}},
        {.name = "binary_cross_entropy_on_classes",
         .nodes = "Y = Softmax(s)",
         .function = BinaryCrossEntropy{},
         .fragments = {"one score per row", "loss='softmax_cross_entropy'"}},
        {.name = "binary_cross_entropy_on_logits",
         .nodes = "Y = Identity(u)",
         .function = BinaryCrossEntropy{},
         .line = "binary cross-entropy on 'u' (scores before output 'Y'), 2 classes"},
        {.name = "likelihood_on_a_softmax",
         .nodes = "Y = Softmax(s)",
         .function = NegativeLogLikelihood{},
         .line = "negative log-likelihood on 'Y' (as asked; the logarithm is clamped), 3 classes"},
        {.name = "likelihood_on_a_renamed_softmax",
         .nodes = "p = Softmax(s)  q = Identity(p)  Y = Identity(q)",
         .function = NegativeLogLikelihood{},
         .line = "negative log-likelihood on 'Y' (as asked; the logarithm is clamped), 3 classes"},
        {.name = "likelihood_on_a_softmax_by_name",
         .nodes = "Y = Softmax(s)",
         .function = NegativeLogLikelihood{},
         .output = "Y",
         .line = "negative log-likelihood on 'Y' (as asked; the logarithm is clamped), 3 classes"},
        {.name = "likelihood_on_logarithms",
         .nodes = "Y = LogSoftmax(s)",
         .function = NegativeLogLikelihood{},
         .line = "softmax cross-entropy on 's' (scores before output 'Y'), 3 classes"},
        {.name = "likelihood_on_one_column",
         .nodes = "Y = Sigmoid(u)",
         .function = NegativeLogLikelihood{},
         .fragments = {"one column per class", "loss='binary_cross_entropy'"}},
        {.name = "hinge_on_a_softmax_head",
         .nodes = "Y = Softmax(s)",
         .function = OneVsRest{.kind = OneVsRest::Kind::kHinge},
         .line = "one-vs-rest hinge on 's' (scores before output 'Y'), 3 classes"},
        {.name = "squared_error_on_probabilities",
         .nodes = "Y = Softmax(s)",
         .function = SquaredError{},
         .line = "squared error on 'Y'"},
        {.name = "auto_on_a_named_output",
         .nodes = "Y = Softmax(s)",
         .output = "Y",
         .line = "softmax cross-entropy on 's' (scores before output 'Y'), 3 classes"},
        {.name = "auto_on_an_inner_value",
         .nodes = "p = Softmax(t)  Y = Softmax(s)",
         .output = "p",
         .line = "softmax cross-entropy on 't' (scores before output 'p'), 2 classes"},
        {.name = "unknown_output",
         .nodes = "scores = Identity(s)  Y = Softmax(scores)",
         .output = "score",
         .fragments = {"'score'", "Did you mean 'scores'?"}},
    }),
    named_case_name);

TEST(Heads, TheChoiceAmongBareOutputsIsTheUsers) {
  const ir::Model model = load("float[N, 3] s, float[N, 1] u", "");
  EXPECT_THROW(resolve_loss(*model.graph, {}), ModelError);
  EXPECT_EQ(resolve_loss(*model.graph, {.output = "u"}).info.scores, "u");
}

TEST(Heads, AModelOfIntegersHasNone) {
  const ir::Model model = load("int64[2] Y", "Y = Shape(s)");
  EXPECT_THROW(resolve_loss(*model.graph, {}), ModelError);
}

TEST(Heads, AListOfClassesMustFitTheColumns) {
  const ir::Model model =
      load("int64[N] L",
           "p = Softmax(s)  i = ArgMax <axis = 1, keepdims = 0> (p)  L = Gather(numbers, i)");
  try {
    resolve_loss(*model.graph, {});
    FAIL();
  } catch (const ModelError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("'numbers' lists 2 classes"));
  }
}

TEST(Heads, ClassesAreThoseOfTheModel) {
  const ir::Model model =
      load("int64[N] L, float[N, 2] Y",
           "Y = Softmax(t)  i = ArgMax <axis = 1, keepdims = 0> (Y)  L = Gather(numbers, i)");
  const ResolvedLoss resolved = resolve_loss(*model.graph, {});
  EXPECT_EQ(resolved.info.num_classes, 2);
  EXPECT_EQ(resolved.info.classes.to_int64s(), (std::vector<std::int64_t>{7, 9}));
}

}  // namespace onnxgrad::train::heads_text_test
