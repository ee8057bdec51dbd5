#include "train/checkpoints/checkpoint.h"

#include <gmock/gmock.h>

#include "base/philox.h"
#include "train/session/session_checkpoint.h"
#include "train/testing/draft.h"
#include "train/testing/temporary_folder.h"

namespace onnxgrad::train::checkpoint_test {

using testing::AllOf;
using testing::HasSubstr;
using train_test::Draft;
using train_test::read_bytes;
using train_test::TemporaryFolder;
using train_test::write_bytes;

/// x [N, 2] -> MatMul 'W1' [2, hidden] -> Relu or Tanh -> MatMul 'W2' [hidden, 1] -> 'y', float32.
Draft network(std::int64_t hidden = 3, const char* activation = "Relu", float first = 0.5F) {
  Draft draft;
  ir::Value* x = draft.input("x", DataType::kFloat32, {ir::Dim::named("N"), 2});
  std::vector<float> w1(static_cast<std::size_t>(2 * hidden), first);
  std::vector<float> w2(static_cast<std::size_t>(hidden), -0.25F);
  for (std::size_t i = 0; i < w1.size(); ++i) w1[i] += 0.1F * static_cast<float>(i);
  ir::Value* h = draft.g.matmul(x, draft.weight("W1", Tensor::from(w1, Dims{2, hidden})));
  ir::Value* a = draft.g.op(activation, {h});
  draft.output(draft.g.matmul(a, draft.weight("W2", Tensor::from(w2, Dims{hidden, 1}))), "y");
  return draft;
}

Session session_of(const Draft& draft, const Optimizer& optimizer = Adam{.learning_rate = 0.1},
                   const Loss& loss = {}, std::uint64_t seed = 0) {
  return {{.file = {}, .working = draft.model},
          loss,
          optimizer,
          {.engine = {.threads = 1, .seed = seed}}};
}

NamedTensors batch() {
  return {
      {.name = "x",
       .tensor = Tensor::from(std::vector<float>{1, 0, 0, 1, 1, 1, 2, -1}, Dims{4, 2})},
      {.name = "label", .tensor = Tensor::from(std::vector{2.5F, -0.5F, 1.5F, 5.5F}, Dims{4, 1})}};
}

void expect_equal_state(const Session& a, const Session& b) {
  const NamedTensors of_a = a.state();
  const NamedTensors of_b = b.state();
  ASSERT_EQ(of_a.size(), of_b.size());
  for (std::size_t i = 0; i < of_a.size(); ++i) {
    EXPECT_TRUE(of_a[i].tensor.equals(of_b[i].tensor)) << of_a[i].name;
  }
  EXPECT_EQ(a.runner().steps(), b.runner().steps());
}

void save(const Session& session, const std::string& path) {
  Checkpoint checkpoint = checkpoint_of(session);
  write_checkpoint(path, checkpoint);
}

void load(Session& session, const std::string& path) {
  restore_session(session, read_checkpoint(path));
}

/// The message of loading the file into the session, which must stay as it was.
std::string refusal(Session& session, const std::string& path) {
  const NamedTensors before = session.state();
  const std::int64_t steps = session.runner().steps();
  try {
    load(session, path);
    return "accepted";
  } catch (const CheckpointError& error) {
    const NamedTensors after = session.state();
    for (std::size_t i = 0; i < before.size(); ++i) {
      EXPECT_TRUE(before[i].tensor.equals(after[i].tensor)) << before[i].name;
    }
    EXPECT_EQ(session.runner().steps(), steps);
    EXPECT_EQ(error.place().file, path);
    return error.what();
  }
}

TEST(Checkpoint, GoesOnBitForBit) {
  const TemporaryFolder folder;
  for (const Optimizer& optimizer :
       {Optimizer(Adam{.learning_rate = 0.1}), Optimizer(Sgd{.learning_rate = 0.01}),
        Optimizer(Sgd{.learning_rate = 0.01, .momentum = 0.9, .nesterov = true})}) {
    Session first = session_of(network(), optimizer);
    for (int i = 0; i < 5; ++i) first.step(batch());
    first.runner().set_learning_rate(0.02);
    save(first, folder.path("file"));
    for (int i = 0; i < 5; ++i) first.step(batch());
    Session second = session_of(network(3, "Relu", 9.0F), optimizer);  // with other first weights
    load(second, folder.path("file"));
    EXPECT_EQ(second.runner().steps(), 5);
    EXPECT_EQ(second.runner().learning_rate(), 0.02);
    for (int i = 0; i < 5; ++i) second.step(batch());
    expect_equal_state(first, second);
  }
}

TEST(Checkpoint, RestoresTheRandomStream) {
  const TemporaryFolder folder;
  Session first = session_of(network(), Sgd{}, {}, 17);
  first.step(batch());
  save(first, folder.path("file"));
  Session second = session_of(network(), Sgd{}, {}, 4);
  load(second, folder.path("file"));
  EXPECT_EQ(second.runner().seed(), 17U);
  EXPECT_EQ(second.runner().executor().cells().seed, 17U);
  EXPECT_EQ(second.runner().executor().cells().step, 1U);
}

TEST(Checkpoint, SameStateSameBytes) {
  const TemporaryFolder folder;
  Session session = session_of(network());
  session.step(batch());
  save(session, folder.path("a"));
  save(session, folder.path("b"));
  EXPECT_EQ(read_bytes(folder.path("a")), read_bytes(folder.path("b")));
}

TEST(Checkpoint, EveryFlippedBitAndEveryCutIsSeen) {
  const TemporaryFolder folder;
  Session session = session_of(network());
  session.step(batch());
  save(session, folder.path("file"));
  const std::string whole = read_bytes(folder.path("file"));
  base::PhiloxStream random(1, base::RandomUse::kOperator, 0);
  for (std::size_t at = 0; at < whole.size(); ++at) {
    std::string changed = whole;
    changed[at] = static_cast<char>(changed[at] ^ (1 << random.below(8)));
    write_bytes(folder.path("file"), changed);
    ASSERT_THROW((void)read_checkpoint(folder.path("file")), CheckpointError) << "byte " << at;
  }
  for (std::size_t size = 0; size < whole.size(); size += 1 + random.below(40)) {
    write_bytes(folder.path("file"), whole.substr(0, size));
    ASSERT_NE(refusal(session, folder.path("file")), "accepted") << size << " bytes";
  }
  write_bytes(folder.path("file"), whole + std::string(1, '\0'));
  EXPECT_NE(refusal(session, folder.path("file")), "accepted");
  write_bytes(folder.path("file"), whole);
  EXPECT_EQ(refusal(session, folder.path("file")), "accepted");
}

TEST(Checkpoint, NamesTheTensorThatHasChanged) {
  const TemporaryFolder folder;
  Session session = session_of(network());
  save(session, folder.path("file"));
  const SafetensorsFile file = SafetensorsFile::open(folder.path("file"));
  std::string bytes = read_bytes(folder.path("file"));
  for (const SafetensorsEntry& entry : file.entries()) {
    if (entry.name == "W2") bytes[static_cast<std::size_t>(entry.offset)] ^= 1;
  }
  write_bytes(folder.path("file"), bytes);
  EXPECT_THAT(refusal(session, folder.path("file")), HasSubstr("the numbers of 'W2' have changed"));
}

TEST(Checkpoint, OfAnotherModelNamesTheFirstDifference) {
  const TemporaryFolder folder;
  Session session = session_of(network());
  save(session, folder.path("file"));
  Session wider = session_of(network(4));
  EXPECT_THAT(refusal(wider, folder.path("file")),
              HasSubstr("weight 'W1' is float32[2, 3] in the checkpoint, float32[2, 4] in this"));
  Session other = session_of(network(3, "Tanh"));
  EXPECT_THAT(refusal(other, folder.path("file")),
              AllOf(HasSubstr("of another model"), HasSubstr("= Relu"), HasSubstr("= Tanh")));
  Session linear = session_of(train_test::linear_model());
  EXPECT_THAT(refusal(linear, folder.path("file")), HasSubstr("lacks the weight 'W'"));
  Session momentum = session_of(network(), Sgd{.momentum = 0.9});
  EXPECT_THAT(refusal(momentum, folder.path("file")),
              HasSubstr("lacks the optimizer state 'momentum/W1'"));
  Session plain = session_of(network(), Sgd{});
  EXPECT_THAT(refusal(plain, folder.path("file")),
              AllOf(HasSubstr("the checkpoint has 'adam_m/W1'"), HasSubstr("does not have")));
  Session beta = session_of(network(), Adam{.beta1 = 0.8});
  EXPECT_THAT(refusal(beta, folder.path("file")), HasSubstr("different options"));
  Session loss = session_of(network(), Adam{}, {.reduction = Reduction::kSum});
  EXPECT_THAT(refusal(loss, folder.path("file")), HasSubstr("different options"));
  Session decay = session_of(network(), Adam{.learning_rate = 7});  // the rate is state
  EXPECT_EQ(refusal(decay, folder.path("file")), "accepted");
}

TEST(Checkpoint, FurtherOutputsMakeNoDifference) {
  const TemporaryFolder folder;
  Session session({.file = {}, .working = network().model}, {}, Adam{},
                  {.outputs = {"gradient_norm", "W1_grad", "y"}, .engine = {.threads = 1}});
  session.step(batch());
  save(session, folder.path("file"));
  Session plain = session_of(network(), Adam{});
  EXPECT_EQ(refusal(plain, folder.path("file")), "accepted");
  expect_equal_state(session, plain);
}

TEST(Checkpoint, OfAnotherFormatOrANewerVersionIsRefused) {
  const TemporaryFolder folder;
  Session session = session_of(network());
  const NamedTensors weights = session.weights();
  write_safetensors(folder.path("file"), safetensors_head(weights, {}), weights);
  EXPECT_THAT(refusal(session, folder.path("file")), HasSubstr("is not a checkpoint of onnxgrad"));
  const SafetensorsMetadata newer{{"format", "onnxgrad-checkpoint"}, {"min_reader", "2"}};
  write_safetensors(folder.path("file"), safetensors_head(weights, newer), weights);
  EXPECT_THAT(refusal(session, folder.path("file")), HasSubstr("format version 2"));
  const SafetensorsMetadata odd{{"format", "onnxgrad-checkpoint"}, {"min_reader", "1x"}};
  write_safetensors(folder.path("file"), safetensors_head(weights, odd), weights);
  EXPECT_THAT(refusal(session, folder.path("file")), HasSubstr("'1x'"));
}

TEST(Checkpoint, WeightsHaveTheirOwnNames) {
  const TemporaryFolder folder;
  Draft draft;
  ir::Value* x = draft.input("x", DataType::kFloat32, {ir::Dim::named("N"), 2});
  ir::Value* odd =
      draft.weight("onnxgrad:state/W", Tensor::from(std::vector{1.F, 2.F}, Dims{2, 1}));
  draft.output(draft.g.matmul(x, odd), "y");
  Session session = session_of(draft);
  session.step(batch());
  save(session, folder.path("file"));
  const NamedTensors weights = read_weights(folder.path("file"));
  ASSERT_EQ(weights.size(), 1U);
  EXPECT_EQ(weights[0].name, "onnxgrad:state/W");
  EXPECT_TRUE(weights[0].tensor.equals(session.weights()[0].tensor));
  session.step(batch());
  Session again = session_of(draft);
  load(again, folder.path("file"));
  again.step(batch());
  expect_equal_state(session, again);
}

}  // namespace onnxgrad::train::checkpoint_test
