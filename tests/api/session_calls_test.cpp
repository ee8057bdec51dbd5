#include <gmock/gmock.h>

#include <atomic>
#include <functional>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "onnxgrad/onnxgrad.h"

// Who may call a session when, and what it says of time and memory.

namespace onnxgrad::api_session_calls_test {

using testing::HasSubstr;

constexpr const char* kTwoLayers = R"(
<ir_version: 8, opset_import: ["" : 17]>
two_layers (float[N, 2] x) => (float[N, 1] y)
<float[2, 2] w = {1, 2, 3, 4}, float[2] b = {0, 1}, float[2, 1] v = {0.5, -0.5}>
{
  m = MatMul(x, w)
  a = Add(m, b)
  h = Tanh(a)
  y = MatMul(h, v)
}
)";

NamedTensors batch(std::int64_t rows) {
  Tensor x = Tensor::empty(DataType::kFloat32, Dims{rows, 2});
  Tensor y = Tensor::empty(DataType::kFloat32, Dims{rows, 1});
  float value = 0.1F;
  for (float& element : x.mutable_data<float>()) element = value += 0.3F;
  for (float& element : y.mutable_data<float>()) element = value -= 0.2F;
  return {{.name = "x", .tensor = x}, {.name = "label", .tensor = y}};
}

TrainingSession make_session(const Optimizer& optimizer = Adam{}) {
  return TrainingSession(Model::from_text(kTwoLayers), {}, optimizer, {.engine = {.threads = 1}});
}

Dataset dataset(std::int64_t rows) {
  NamedTensors feeds = batch(rows);
  return {.inputs = {feeds[0]}, .target = feeds[1].tensor};
}

// Eight threads at once have the result of the calls that were let in, one after the other.
TEST(SessionCalls, EightThreadsNeverCorrupt) {
  TrainingSession session = make_session();
  std::atomic<std::int64_t> done{0};
  std::atomic<std::int64_t> other_errors{0};
  const auto work = [&](int thread) {
    for (int i = 0; i < 200; ++i) {
      try {
        if ((i + thread) % 4 == 0) {
          session.evaluate(batch(3));
        } else if ((i + thread) % 4 == 1) {
          session.predict({batch(5)[0]});
        } else {
          session.step(batch(4));
          ++done;
        }
      } catch (const Error& error) {
        if (std::string(error.what()).find("busy") == std::string::npos) ++other_errors;
      }
    }
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) threads.emplace_back(work, t);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(other_errors, 0);
  EXPECT_EQ(session.steps(), done);
  TrainingSession alone = make_session();
  for (std::int64_t i = 0; i < done; ++i) alone.step(batch(4));
  const NamedTensors found = session.state();
  const NamedTensors expected = alone.state();
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(found[i].tensor.equals(expected[i].tensor)) << expected[i].name;
  }
}

TEST(SessionCalls, OtherThreadsAreRefusedWhileFitRuns) {
  Trainer trainer(make_session());
  TrainingSession& session = trainer.session();
  std::atomic<bool> begun{false};
  std::atomic<int> refused{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      while (!begun) std::this_thread::yield();
      try {
        if (t % 4 == 0) session.step(batch(4));
        if (t % 4 == 1) session.state();
        if (t % 4 == 2) session.set_learning_rate(100);
        if (t % 4 == 3) session.predict({batch(1)[0]});
      } catch (const Error& error) {
        EXPECT_THAT(error.what(), HasSubstr("busy"));
        ++refused;
      }
      if (refused == 8) trainer.stop();
    });
  }
  FitOptions options{.epochs = 100'000'000, .batch_size = 4};
  options.on_epoch_end = [&](const EpochLog&) {
    begun = true;
    return false;
  };
  trainer.fit(dataset(8), options);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(refused, 8);
  EXPECT_LT(session.learning_rate(), 1);
}

TEST(SessionCalls, CallbacksMayReadAndNothingElse) {
  Trainer trainer(make_session());
  TrainingSession& session = trainer.session();
  const Dataset data = dataset(8);
  int checks = 0;
  const auto expect_refused = [&](const std::function<void()>& call) {
    try {
      call();
      ADD_FAILURE() << "not refused";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("callbacks cannot"));
      ++checks;
    }
  };
  FitOptions options{.epochs = 2, .batch_size = 4};
  options.on_epoch_end = [&](const EpochLog&) {
    session.evaluate(batch(3));
    session.predict({batch(2)[0]});
    trainer.evaluate(data);
    session.trained_model();
    session.save(testing::TempDir() + "/session_calls.safetensors");
    session.set_learning_rate(1e-4);
    const NamedTensors state = session.state();
    expect_refused([&] { session.step(batch(4)); });
    expect_refused([&] { session.load_state(state); });
    expect_refused([&] { session.reset(); });
    expect_refused([&] { trainer.fit(data); });
    expect_refused([&] { trainer.reset(); });
    return false;
  };
  trainer.fit(data, options);
  EXPECT_EQ(checks, 10);
  EXPECT_EQ(session.steps(), 4);
  EXPECT_EQ(session.learning_rate(), 1e-4);
  EXPECT_NO_THROW(session.step(batch(4)));
}

TEST(SessionCalls, AnErrorInACallbackLeavesTheSessionFree) {
  Trainer trainer(make_session());
  FitOptions options{.epochs = 2};
  options.on_epoch_end = [](const EpochLog&) -> bool { throw std::runtime_error("mine"); };
  EXPECT_THROW(trainer.fit(dataset(8), options), std::runtime_error);
  EXPECT_NO_THROW(trainer.session().step(batch(4)));
}

TEST(SessionCalls, AnyNumberOfShapesIsCompiledOnce) {
  TrainingSession session = make_session();
  for (int round = 0; round < 3; ++round) {
    for (const std::int64_t rows : {4, 1, 7}) session.step(batch(rows));
  }
  EXPECT_EQ(session.num_compiled(), 3);
  Trainer trainer(std::move(session));
  trainer.fit(dataset(11), {.epochs = 3, .batch_size = 4});  // 4, 4, 3
  EXPECT_EQ(trainer.session().num_compiled(), 4);
  trainer.fit(dataset(7), {.epochs = 2, .batch_size = 4});  // 4, 3
  EXPECT_EQ(trainer.session().num_compiled(), 4);
}

TEST(SessionCalls, MemoryByPurpose) {
  TrainingSession session = make_session();
  const std::int64_t weights = (4 + 2 + 2) * 4;
  EXPECT_EQ(session.memory().weights, weights);
  // Two moments of each weight and the step count.
  EXPECT_GE(session.memory().optimizer_state, 2 * weights + 1);
  EXPECT_LE(session.memory().optimizer_state, 2 * weights + 8);
  EXPECT_EQ(session.memory().evaluation, 0);
  session.step(batch(100));
  const std::int64_t activations = session.memory().activations;
  EXPECT_GE(activations, 100 * 2 * 4);  // h at least
  session.step(batch(1));
  EXPECT_EQ(session.memory().activations, activations);  // one arena for all plans
  session.evaluate(batch(10));
  EXPECT_GT(session.memory().evaluation, 0);
  EXPECT_EQ(session.memory().snapshots, 0);
  EXPECT_THAT(session.memory().to_text(), HasSubstr("activations"));

  Trainer trainer(std::move(session));
  FitOptions options{.epochs = 1, .batch_size = 4};
  options.early_stopping = EarlyStopping{};
  std::int64_t during = 0;
  options.on_epoch_end = [&](const EpochLog&) {
    during = trainer.session().memory().snapshots;
    return false;
  };
  trainer.fit(dataset(8), options);
  // The epoch's start and the best epoch.
  const MemoryReport after = trainer.session().memory();
  EXPECT_EQ(during, 2 * (after.weights + after.optimizer_state));
  EXPECT_EQ(after.snapshots, 0);
}

TEST(SessionCalls, ProfileCountsCalls) {
  TrainingSession session = make_session();
  session.step(batch(4));
  EXPECT_TRUE(session.profile().kernels.empty());
  session.set_profiling(true);
  for (int i = 0; i < 5; ++i) session.step(batch(4));
  session.set_profiling(false);
  session.step(batch(4));
  const Profile profile = session.profile();
  ASSERT_FALSE(profile.kernels.empty());
  double last = profile.kernels.front().total_s;
  for (const KernelTime& kernel : profile.kernels) {
    EXPECT_EQ(kernel.calls, 5) << kernel.node;
    EXPECT_LE(kernel.total_s, last);
    last = kernel.total_s;
    EXPECT_THAT(profile.to_text(), HasSubstr(kernel.op_type));
  }
  const auto trace = nlohmann::json::parse(profile.trace_json);
  EXPECT_EQ(trace["traceEvents"].size(), 5 * profile.kernels.size());
  EXPECT_EQ(trace["traceEvents"][0]["ph"], "X");
}

}  // namespace onnxgrad::api_session_calls_test
