#include "train/weights/weights.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "train/session/session.h"
#include "train/testing/draft.h"

namespace onnxgrad::train::master_weights_test {

using train_test::Draft;

// y = x W + b in 16 bits.
Draft f16_model(DataType half) {
  Draft draft;
  ir::Value* x = draft.input("x", half, {ir::Dim::named("N"), 2});
  ir::Value* w = draft.weight("W", Tensor::from<float>({1, 1}, Dims{2, 1}).cast(half));
  ir::Value* b = draft.weight("b", Tensor::from<float>({0}, Dims{1}).cast(half));
  draft.output(draft.g.add(draft.g.matmul(x, w), b), "y");
  return draft;
}

TEST(MasterWeights, ACastIsPutAfterTheWeight) {
  Draft draft = f16_model(DataType::kFloat16);
  ir::Graph& graph = *draft.model->graph;
  ir::Value* w = graph.find("W");
  widen_weight(graph, w);
  EXPECT_EQ(w->dtype(), DataType::kFloat32);
  EXPECT_EQ(w->initializer.dtype(), DataType::kFloat32);
  EXPECT_EQ(w->initializer.to_doubles(), (std::vector<double>{1, 1}));
  EXPECT_EQ(ir::find_fault(graph), "");
  const auto product = std::ranges::find(graph.nodes, "MatMul", &ir::Node::op_type);
  ASSERT_NE(product, graph.nodes.end());
  EXPECT_EQ((*product)->inputs[1]->producer->op_type, "Cast");
  EXPECT_EQ((*product)->inputs[1]->dtype(), DataType::kFloat16);
  const std::size_t nodes = graph.nodes.size();
  widen_weight(graph, w);  // a float32 one stays
  EXPECT_EQ(graph.nodes.size(), nodes);
}

// The numbers are exact in both types: so are all sums, and the step is the one in float32.
TEST(MasterWeights, AStepIsTheOneInFloat32) {
  for (const DataType half : {DataType::kFloat16, DataType::kBfloat16}) {
    const Tensor x = Tensor::from<float>({1, 0, 0, 1, 1, 1, 2, -1}, Dims{4, 2});
    const Tensor label = Tensor::from<float>({2.5F, -0.5F, 1.5F, 5.5F}, Dims{4, 1});
    Draft draft = f16_model(half);
    Session session({.file = {}, .working = draft.model}, {.function = SquaredError{}},
                    Sgd{.learning_rate = 0.125}, {.engine = {.threads = 1}});
    const NamedTensors feeds{{.name = "x", .tensor = x.cast(half)},
                             {.name = "label", .tensor = label}};
    // Errors -1.5, 1.5, 0.5, -4.5; their squares' mean; gradient 2 / 4 * sum of error * row.
    EXPECT_EQ(session.step(feeds).loss, (2.25 + 2.25 + 0.25 + 20.25) / 4);
    const NamedTensors state = session.state();
    ASSERT_EQ(state[0].name, "W");
    EXPECT_EQ(state[0].tensor.dtype(), DataType::kFloat32);
    EXPECT_EQ(state[0].tensor.to_doubles(),
              (std::vector<double>{1 + 0.125 * 0.5 * 10, 1 - 0.125 * 0.5 * 6.5}));
    EXPECT_EQ(state[1].tensor.to_doubles(), (std::vector<double>{0.125 * 0.5 * 4}));
    const Tensor y = session.predict({feeds[0]}, {}).front();
    EXPECT_EQ(y.dtype(), half);
    EXPECT_GT(session.evaluate(feeds).loss, 0);
  }
}

}  // namespace onnxgrad::train::master_weights_test
