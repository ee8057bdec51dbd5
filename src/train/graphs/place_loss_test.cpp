#include "train/graphs/place_loss.h"

#include <gmock/gmock.h>

#include <string>

#include "onnx/model_io.h"
#include "runtime/executor.h"
#include "train/testing/draft.h"

namespace onnxgrad::train::place_loss_test {

using testing::ElementsAre;
using testing::HasSubstr;
using train_test::Draft;
using train_test::linear_model;

// x = (1, 1) gives y = 3 - 2 + 0.5 = 1.5.
const std::vector<float> kWeights{3, -2};
constexpr float kBias = 0.5F;

std::vector<std::string> names_of(const std::vector<ir::Value*>& values) {
  std::vector<std::string> names;
  for (const ir::Value* value : values) names.push_back(value->name);
  return names;
}

// Loss, numerator and denominator for two rows (1, 1) with target 0.
std::vector<double> compute(Draft& draft, const Loss& loss) {
  const PlacedLoss placed = place_loss(draft.g, builtin_ops(), loss);
  draft.model->graph->outputs.clear();
  for (ir::Value* value :
       {placed.written.loss, placed.written.numerator, placed.written.denominator}) {
    draft.output(draft.g.identity(value));
  }
  runtime::Executor executor(draft.model, cpu_engine());
  std::vector<Tensor> inputs{Tensor::from(std::vector<float>{1, 1, 1, 1}, Dims{2, 2})};
  for (std::size_t i = 0; i <= placed.others.size(); ++i) {
    inputs.push_back(Tensor::from(std::vector<float>{0, 0}, Dims{2, 1}));
  }
  std::vector<double> numbers;
  for (const Tensor& output : executor.run(inputs)) numbers.push_back(output.to_doubles().front());
  return numbers;
}

std::string message_of(const Loss& loss) {
  Draft draft = linear_model(kWeights, kBias);
  try {
    place_loss(draft.g, builtin_ops(), loss);
  } catch (const ModelError& error) {
    return error.what();
  }
  return "";
}

TEST(PlaceLoss, PenaltiesAreInLossAndNumerator) {
  Draft draft = linear_model(kWeights, kBias);
  const Loss loss{.function = SquaredError{}, .penalties = {{.l1 = 0.5}, {.l2 = 0.25}}};
  // 2.25 + 0.5 * 5 + 0.25 * 13
  EXPECT_THAT(compute(draft, loss), ElementsAre(8, 16, 2));
}

TEST(PlaceLoss, SumsHaveThePenaltyOnce) {
  Draft draft = linear_model(kWeights, kBias);
  const Loss loss{.function = SquaredError{},
                  .reduction = Reduction::kSum,
                  .penalties = {{.l2 = 1, .weights = {"b"}}}};
  EXPECT_THAT(compute(draft, loss), ElementsAre(4.75, 4.75, 2));
}

TEST(PlaceLoss, SeveralLossesAreAddedWithTheirFactors) {
  Draft draft = linear_model(kWeights, kBias);
  const Loss loss{.function = SquaredError{},
                  .factor = 2,
                  .others = {{.function = AbsoluteError{}, .output = "y", .factor = 0.5}}};
  EXPECT_THAT(compute(draft, loss), ElementsAre(5.25, 10.5, 2));
}

TEST(PlaceLoss, SaysWhatItDid) {
  Draft draft = linear_model(kWeights, kBias);
  const Loss loss{.function = SquaredError{},
                  .penalties = {{.l1 = 1, .weights = {"*"}}},
                  .others = {{.function = Huber{}, .output = "y", .target = "t", .factor = 0.5}}};
  const PlacedLoss placed = place_loss(draft.g, builtin_ops(), loss);
  EXPECT_EQ(placed.resolved.info.line,
            "loss: squared error on 'y', plus 0.5 times Huber loss on 'y'; penalty on 'W', 'b'");
  EXPECT_THAT(names_of(placed.penalized), ElementsAre("W", "b"));
  EXPECT_EQ(placed.resolved.info.others.front().target.name, "t");
}

TEST(PlaceLoss, APenaltyWithoutNamesLeavesBiasesOut) {
  Draft draft = linear_model(kWeights, kBias);
  const PlacedLoss placed =
      place_loss(draft.g, builtin_ops(), {.penalties = {{.l2 = 1, .weights = {}}}});
  EXPECT_THAT(names_of(placed.penalized), ElementsAre("W"));
}

TEST(PlaceLoss, APenaltyWithoutNamesIsOnWhatIsTrained) {
  Draft draft = linear_model(kWeights, kBias);
  const std::vector<std::string> trained{"b"};
  draft.weight("K", Tensor::from(kWeights, Dims{1, 2}));  // nothing reads it
  const Loss loss{.penalties = {{.l2 = 1, .weights = {}}}};
  EXPECT_THROW(place_loss(draft.g, builtin_ops(), loss, &trained), ModelError);
  const std::vector<std::string> matrices{"W", "K"};
  EXPECT_THAT(names_of(place_loss(draft.g, builtin_ops(), loss, &matrices).penalized),
              ElementsAre("W"));
}

TEST(PlaceLoss, MistakesAreNamed) {
  EXPECT_THAT(message_of({.penalties = {{.l1 = -1}}}), HasSubstr("penalty: l1 is -1"));
  EXPECT_THAT(message_of({.penalties = {{.l2 = 1, .weights = {"V"}}}}), HasSubstr("matches 'V'"));
  EXPECT_THAT(message_of({.factor = -2}), HasSubstr("the factor of a loss is -2"));
  const Loss nested{.output = "y", .penalties = {{.l2 = 1}}};
  EXPECT_THAT(message_of({.others = {nested}}), HasSubstr("has its own penalties"));
  EXPECT_THAT(message_of({.function = UserLoss{}}), HasSubstr("user loss: there is no model"));
}

TEST(PlaceLoss, NodesOfAUserLossTakeTheTypesThatTheyFind) {
  // Symbols of its own file say nothing here: its K is one column.
  const auto file = onnx_io::load_text(R"(<ir_version: 8, opset_import: ["" : 17]>
    loss (float[N, K] s, float[N, K] t) => (float[N, K] e) { d = Sub(s, t)  e = Abs(d) })");
  Draft draft = linear_model(kWeights, kBias);
  const Loss loss{.function =
                      UserLoss{.model = std::make_shared<const std::string>(*file.bytes->whole())}};
  EXPECT_THAT(compute(draft, loss), ElementsAre(1.5, 3, 2));
}

}  // namespace onnxgrad::train::place_loss_test
