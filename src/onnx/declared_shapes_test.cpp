#include "onnx/declared_shapes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "onnx/model_io.h"

namespace onnxgrad::onnx_io::declared_shapes_test {
namespace {

struct Case {
  std::string name;
  std::string text;  // from the inputs on
  std::string expected;
  std::string value = "y";
};

class DeclaredShapesTest : public testing::TestWithParam<Case> {};

TEST_P(DeclaredShapesTest, CompleteTypesWhereTheyHoldForAllFeeds) {
  opdef::OpRegistry registry;  // the only operator that matters: its result follows from types
  registry.add({.op_type = "Shape",
                .fold_types = [](const ir::Node& /*node*/) { return std::optional<Tensor>(); }});
  const ir::Model model = to_internal(
      load_text("<ir_version: 8, opset_import: [\"\" : 17, \"mine\" : 1]> g " + GetParam().text),
      registry);
  EXPECT_EQ(model.graph->find(GetParam().value)->type.to_string(), GetParam().expected);
}

INSTANTIATE_TEST_SUITE_P(
    All, DeclaredShapesTest,
    testing::Values(
        Case{.name = "fed_shape",
             .text = "(float[2, 6] x, int64[2] r) => (float[3, 4] y) { y = Reshape(x, r) }",
             .expected = "float32[?, ?]"},
        Case{.name = "rank_of_a_fed_shape",
             .text = "(float[2, 6] x, int64[K] r) => (float[3, 4] y) { y = Reshape(x, r) }",
             .expected = "float32[?, ?]"},
        Case{.name = "shape_with_a_default",
             .text = "(float[2, 6] x, int64[2] r) => (float[3, 4] y) <int64[2] r = {3, 4}> "
                     "{ y = Reshape(x, r) }",
             .expected = "float32[?, ?]"},
        Case{.name = "condition",
             .text = "(float[2, 6] x, bool[2] c) => (float[1, 6] y) "
                     "{ y = Compress <axis = 0> (x, c) }",
             .expected = "float32[?, 6]"},
        Case{.name = "number_of_hits",
             .text = "(float[3] x) => (int64[1, 2] y) { y = NonZero(x) }",
             .expected = "int64[1, ?]"},
        Case{.name = "computed_from_fixed_sizes",
             .text = "(float[2, 6] x) => (float[2, 6] y) { s = Shape(x) f = Cast <to = 1> (s) "
                     "e = Sqrt(f) r = Cast <to = 7> (e) y = Reshape(x, r) }",
             .expected = "float32[2, 6]"},
        Case{.name = "computed_from_open_sizes",
             .text = "(float[N, 6] x) => (float[2, 6] y) { s = Shape(x) f = Cast <to = 1> (s) "
                     "e = Sqrt(f) r = Cast <to = 7> (e) y = Reshape(x, r) }",
             .expected = "float32[?, ?]"},
        Case{.name = "name_of_an_input",
             .text = "(float[N, 6] x, int64[2] r) => (float[N, 4] y) { y = Reshape(x, r) }",
             .expected = "float32[N, ?]"},
        Case{.name = "expression_of_one",
             .text = "(float[N, 6] x, int64[2] r) => (y) <float[\"2*N\", 4] y> "
                     "{ y = Reshape(x, r) }",
             .expected = "float32[2*N, ?]"},
        Case{.name = "first_use_of_a_name",
             .text = "(float[6] x, int64[1] r, int64[1] s) => (float[M] y, float[M] z) "
                     "{ y = Reshape(x, r) z = Reshape(x, s) }",
             .expected = "float32[M]"},
        Case{.name = "second_use_of_a_name",
             .text = "(float[6] x, int64[1] r, int64[1] s) => (float[M] y, float[M] z) "
                     "{ y = Reshape(x, r) z = Reshape(x, s) }",
             .expected = "float32[?]",
             .value = "z"},
        Case{.name = "example_of_the_batch",
             .text = "(float[N, 2, 4] x) => (float[1, 8] y) <int64[2] r = {-1, 8}> "
                     "{ y = Reshape(x, r) }",
             .expected = "float32[N, 8]"},
        Case{.name = "example_of_twice_the_batch",
             .text = "(float[N, 2, 4] x) => (float[2, 4] y) <int64[2] r = {-1, 4}> "
                     "{ y = Reshape(x, r) }",
             .expected = "float32[?, 4]"},
        Case{.name = "foreign_operator",
             .text = "(float[N, 4] x) => (float[1, 4] y) { y = mine.Mystery(x) }",
             .expected = "float32[1, 4]"},
        Case{.name = "state_of_a_loop",
             .text = "(float[N, 4] x, int64 n) => (y) <bool c = {1}> { y = Loop <body = b ("
                     "int64 i, bool k, float[1, 4] s) => (bool l, float[1, 4] t) "
                     "{ l = Identity(k) t = Neg(s) }> (n, c, x) }",
             .expected = "float32[N, 4]"}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace onnxgrad::onnx_io::declared_shapes_test
