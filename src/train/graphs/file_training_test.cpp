#include "train/graphs/file_training.h"

#include <gmock/gmock.h>

#include "onnx/model_io.h"
#include "onnxgrad/option_error.h"
#include "onnxgrad/training_session.h"
#include "train/graphs/write_training_info.h"
#include "train/session/session.h"
#include "train/tools/engine.h"

namespace onnxgrad::train::file_training_test {

using testing::HasSubstr;

constexpr const char* kModel = R"(
<ir_version: 8, opset_import: ["" : 17]>
line (float[N, 2] x) => (float[N, 1] y) <float[2, 1] w = {1, 1}, float[1] b = {0}> {
  p = MatMul (x, w)
  t = Tanh (p)
  y = Add (t, b)
})";

NamedTensors batch() {
  return {{.name = "x", .tensor = Tensor::from(std::vector<float>{1, 0, 0, 1, 1, 1}, Dims{3, 2})},
          {.name = "label", .tensor = Tensor::from(std::vector<float>{1, 2, 3}, Dims{3, 1})}};
}

// A file that has its training by momentum, and the same training of ours.
struct Written {
  Written() {
    step = build_step(*working, builtin_ops(), {.function = SquaredError{}}, optimizer, {});
    const ir::Model model = write_training_info({.file = *plain.model,
                                                 .working = *working,
                                                 .step = step,
                                                 .state = {},
                                                 .learning_rate = 0.1},
                                                {});
    file = onnx_io::load_bytes(onnx_io::to_bytes(model));
  }

  onnx_io::FileModel plain = onnx_io::load_text(kModel);
  std::shared_ptr<const ir::Model> working =
      std::make_shared<const ir::Model>(to_working_copy(plain));
  Optimizer optimizer = Sgd{.learning_rate = 0.1, .momentum = 0.9};
  StepGraph step;
  onnx_io::FileModel file;
};

const TrainingOptions kOneThread{.engine = {.threads = 1}};

TEST(FileTraining, IsTheTrainingThatWasWritten) {
  const Written written;
  ASSERT_TRUE(onnx_io::has_training_info(written.file));
  EXPECT_FALSE(onnx_io::has_training_info(written.plain));
  Session direct({.file = {}, .working = written.working}, {.function = SquaredError{}},
                 written.optimizer, kOneThread);
  Session ours(written.file, std::make_shared<const FileTraining>(written.file, 0), kOneThread);
  EXPECT_EQ(ours.loss().target.name, "label");
  EXPECT_NEAR(ours.runner().learning_rate(), 0.1, 1e-7);
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(ours.step(batch()).loss, direct.step(batch()).loss);
  }
  EXPECT_EQ(ours.evaluate(batch()).loss, direct.evaluate(batch()).loss);
  const NamedTensors expected = direct.state();
  const NamedTensors state = ours.state();
  ASSERT_EQ(state.size(), expected.size());
  for (std::size_t i = 0; i < state.size(); ++i) {
    EXPECT_EQ(state[i].name, expected[i].name);
    EXPECT_EQ(state[i].tensor.to_doubles(), expected[i].tensor.to_doubles());
  }
}

TEST(FileTraining, StatesHaveTheirPlacesInTheFile) {
  const Written written;
  const FileTraining training(written.file, 0);
  const StepGraph step = training.build(false);
  std::vector<std::pair<std::string, Tensor>> values;
  for (const ir::StateBinding& binding : step.model->state) {
    const Tensor& first = binding.input->initializer;
    const std::vector<double> sevens(static_cast<std::size_t>(first.num_elements()), 7);
    values.emplace_back(binding.input->name,
                        Tensor::from(sevens, first.dims()).cast(first.dtype()));
  }
  const std::string bytes =
      onnx_io::with_weights(written.file, *step.model, values, onnx_io::initialized_note());
  const onnx_io::FileModel changed = onnx_io::load_bytes(bytes);
  EXPECT_TRUE(onnx_io::is_initialized(changed));
  const StepGraph again = FileTraining(changed, 0).build(false);
  for (const ir::StateBinding& binding : again.model->state) {
    EXPECT_THAT(binding.input->initializer.to_doubles(), testing::Each(7)) << binding.input->name;
  }
}

TEST(FileTraining, RefusesWhatTheFileDecides) {
  const Written written;
  const auto training = std::make_shared<const FileTraining>(written.file, 0);
  TrainingOptions options = kOneThread;
  options.frozen = {"w"};
  try {
    const Session session(written.file, training, options);
    FAIL();
  } catch (const OptionError& error) {
    EXPECT_THAT(error.what(), HasSubstr("frozen="));
  }
  Session session(written.file, training, kOneThread);
  const std::vector<std::string> patterns{"w"};
  EXPECT_THROW(session.freeze(patterns), OptionError);
}

}  // namespace onnxgrad::train::file_training_test
