#include "train/open_batch/open_batch.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "onnx/model_io.h"
#include "train/graphs/training_mode.h"
#include "train/session/batch_filler.h"
#include "train/tools/engine.h"

// The rows of opened models are compared with stock onnxruntime's in
// tests/python/test_open_batch.py.

namespace onnxgrad::train {
namespace {

std::shared_ptr<const ir::Model> working_copy(const std::string& text) {
  const auto file = onnx_io::load_text("<ir_version: 8, opset_import: [\"\" : 18]>\n" + text);
  return std::make_shared<const ir::Model>(to_working_copy(file));
}

struct OpenBatchCase {
  std::string name;
  std::string text;
  std::string output;    ///< type of the first output; of the fixed model if it stays
  std::string obstacle;  ///< part of it; empty: none
  std::size_t edits = 0;
};

class OpenBatchTest : public testing::TestWithParam<OpenBatchCase> {};

TEST_P(OpenBatchTest, OpensOrNamesTheNode) {
  const OpenBatchCase& test = GetParam();
  const auto working = working_copy(test.text);
  const BatchForm form = open_batch(working);
  EXPECT_EQ(form.model->graph->outputs.at(0)->type.to_string(), test.output);
  EXPECT_EQ(form.edits.size(), test.edits);
  EXPECT_EQ(ir::find_fault(*form.model->graph), "");
  if (test.obstacle.empty()) {
    EXPECT_EQ(form.obstacle, "");
  } else {
    EXPECT_NE(form.obstacle.find(test.obstacle), std::string::npos) << form.obstacle;
    EXPECT_EQ(form.model, working);
    EXPECT_EQ(form.fixed_rows(), form.rows);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, OpenBatchTest,
    testing::ValuesIn(std::vector<OpenBatchCase>{
        {.name = "open_in_the_file",
         .text = "g (float[N, 2] x) => (float[N, 2] y) { y = Relu(x) }",
         .output = "float32[N, 2]",
         .obstacle = ""},
        {.name = "a_loop_without_end",
         .text = R"(g (float[1, 2] x) => (float[1, 2] y) {
           go = Constant <value = bool {1}> ()
           y = Loop <body = b (int64 i, bool c, float[1, 2] s) => (bool d, float[1, 2] t) {
             d = Identity (c)
             t = Add (s, s)
           }> (, go, x)
         })",
         .output = "float32[1, 2]",
         .obstacle = "a Loop does not end"},
        {.name = "only_shapes",
         .text = "g (float[1, 2] x) => (float[1, 2] y) { y = Relu(x) }",
         .output = "float32[batch, 2]",
         .obstacle = ""},
        {.name = "reshape",
         .text = "g (float[2, 4] x) => (float[2, 2, 2] y) "
                 "<int64[3] s = {2, 2, 2}> { y = Reshape(x, s) }",
         .output = "float32[batch, 2, 2]",
         .obstacle = "",
         .edits = 1},
        {.name = "token",
         .text = "g (float[1, 2, 2] x) => (float[1, 3, 2] y) "
                 "<float[1, 1, 2] t = {1, 2}> { y = Concat <axis = 1> (t, x) }",
         .output = "float32[batch, 3, 2]",
         .obstacle = "",
         .edits = 1},
        {.name = "mean_of_rows",
         .text = "g (float[2, 2] x) => (float[2, 2] y) <int64[1] a = {0}> "
                 "{ [centre] m = ReduceMean(x, a)  y = Sub(x, m) }",
         .output = "float32[2, 2]",
         .obstacle = "centre"},
        {.name = "softmax_over_rows",
         .text = "g (float[2, 2] x) => (float[2, 2] y) { y = Softmax <axis = 0> (x) }",
         .output = "float32[2, 2]",
         .obstacle = "depends on others"},
    }),
    [](const auto& test) { return test.param.name; });

TEST(OpenBatch, KeptOnRequest) {
  const auto working = working_copy("g (float[3, 2] x) => (float[3, 2] y) { y = Relu(x) }");
  const BatchForm form = keep_batch(working);
  EXPECT_EQ(form.fixed_rows(), 3);
  EXPECT_FALSE(form.is_opened());
}

TEST(FilledBatches, TheLastRowIsRepeated) {
  const Tensor rows = Tensor::from(std::vector<float>{1, 2, 3, 4, 5, 6}, Dims{3, 2});
  const Tensor filled = filled_rows(rows, 2, 2);
  EXPECT_TRUE(filled.equals(Tensor::from(std::vector<float>{5, 6, 5, 6}, Dims{2, 2})));
  const std::vector<Tensor> parts{first_rows(rows, 2), filled_rows(rows, 2, 1)};
  EXPECT_TRUE(joined_rows(parts).equals(rows));
  const Tensor texts = Tensor::from_strings({"a", "b"}, Dims{2});
  EXPECT_EQ(filled_rows(texts, 1, 3).strings()[2], "b");
}

TEST(InferenceForm, LeavesTrainingMode) {
  const auto file = onnx_io::load_text(R"(<ir_version: 8, opset_import: ["" : 18]>
    g (float[N, 2] x) => (float[N, 2] y, float[2] m2)
    <float[2] s = {1, 1}, float[2] b = {0, 0}, float[2] m = {1, 2}, float[2] v = {1, 1},
     float r = {0.5}, bool on = {1}> {
      h, m2, v2 = BatchNormalization <training_mode = 1> (x, s, b, m, v)
      y = Dropout(h, r, on)
    })");
  ir::Model model = ir::clone(*file.model);
  EXPECT_TRUE(leave_training(model));
  EXPECT_EQ(ir::find_fault(*model.graph), "");
  EXPECT_EQ(model.graph->outputs[1]->producer->op_type, "Identity");
  EXPECT_EQ(model.graph->outputs[0]->producer->inputs.size(), 2U);
  EXPECT_FALSE(leave_training(model));
}

}  // namespace
}  // namespace onnxgrad::train
