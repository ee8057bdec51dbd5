#include <gmock/gmock.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <ostream>

#include "train/fit/evaluator.h"
#include "train/fit/fit_loop.h"
#include "train/heads/tie_columns.h"
#include "train/testing/draft.h"

// Heads in files as skl2onnx writes them, with scikit-learn's own loss as the truth.
// tests/data/heads/make_heads.py writes the files and index.json.

namespace onnxgrad::train::heads_sklearn_test {

using nlohmann::json;

std::string folder() { return train_test::source_dir() + "/tests/data/heads/"; }

const json& models() {
  static const json parsed = [] {
    std::ifstream file(folder() + "index.json");
    return json::parse(file)["models"];
  }();
  return parsed;
}

Source load(const json& row) {
  Source source;
  source.file = onnx_io::load_file(folder() + row["file"].get<std::string>());
  source.working = tie_opposite_columns(
      std::make_shared<const ir::Model>(onnx_io::to_internal(source.file, builtin_ops())));
  return source;
}

/// Labels [N] or numbers [N, K].
Tensor column(const json& rows) {
  const auto count = static_cast<std::int64_t>(rows.size());
  if (rows[0].is_string()) {
    return Tensor::from_strings(rows.get<std::vector<std::string>>(), Dims{count});
  }
  if (rows[0].is_number_integer()) {
    return Tensor::from(rows.get<std::vector<std::int64_t>>(), Dims{count});
  }
  std::vector<double> numbers;
  for (const json& row : rows) {
    for (const json& number : row) numbers.push_back(number.get<double>());
  }
  return Tensor::from(numbers, Dims{count, static_cast<std::int64_t>(numbers.size()) / count});
}

class SklearnHead : public testing::TestWithParam<std::size_t> {
 protected:
  const json& row() const { return models()[GetParam()]; }
};

TEST_P(SklearnHead, IsFoundAndStartsFromScikitLearnsLoss) {
  SCOPED_TRACE(row()["file"].get<std::string>());
  Session session(load(row()), {}, Sgd{}, {.engine = {.threads = 1}});
  const std::string start = "loss: " + row()["loss"].get<std::string>() + " on '";
  EXPECT_THAT(session.loss().line, testing::StartsWith(start));
  const json& classes = row()["classes"];
  EXPECT_EQ(session.loss().is_classifier, !classes.empty());
  if (!classes.empty()) {
    EXPECT_TRUE(session.loss().classes.equals(column(classes)));
  }

  const Dataset data{.inputs = {{.name = "", .tensor = column(row()["x"])}},
                     .target = column(row()["y"])};
  const auto evaluation = session.evaluation();
  Evaluator evaluator(evaluation, session.loss(), {}, session.workers());
  const double expected = row()["expected"];
  const PreparedData rows =
      prepare_data(session.schema(), evaluation->data_ports(), data, /*allow_nan=*/false);
  EXPECT_NEAR(evaluator.run(rows, 8).loss, expected, 1e-6 * std::max(1.0, expected));
}

TEST_P(SklearnHead, GetsTrainedWeightsBack) {
  SCOPED_TRACE(row()["file"].get<std::string>());
  const Source source = load(row());
  Session session(source, {}, Sgd{.learning_rate = 0.01}, {.engine = {.threads = 1}});
  const Dataset data{.inputs = {{.name = "", .tensor = column(row()["x"])}},
                     .target = column(row()["y"])};
  StopFlag stop;
  History history;
  FitLoop(session, data, {.epochs = 2, .batch_size = 4}, stop, history).run();
  std::vector<std::pair<std::string, Tensor>> weights;
  for (const NamedTensor& weight : session.weights()) {
    weights.emplace_back(weight.name, weight.tensor);
  }
  const std::string bytes = onnx_io::with_weights(source.file, *source.working, weights);
  EXPECT_EQ(bytes.size(), source.file.bytes->size());
  // The file's own reading of its weights is the session's.
  const onnx_io::FileModel file = onnx_io::load_bytes(bytes);
  const auto again = tie_opposite_columns(
      std::make_shared<const ir::Model>(onnx_io::to_internal(file, builtin_ops())));
  for (const auto& [name, tensor] : weights) {
    const ir::Value* weight = again->graph->find(name);
    ASSERT_NE(weight, nullptr) << name;
    EXPECT_TRUE(weight->initializer.equals(tensor)) << name;
    EXPECT_FALSE(weight->initializer.equals(source.working->graph->find(name)->initializer))
        << name;
  }
}

std::string test_name(const testing::TestParamInfo<std::size_t>& info) {
  std::string name = models()[info.param]["file"];
  name.resize(name.size() - std::string(".onnx").size());
  return name;
}

INSTANTIATE_TEST_SUITE_P(Files, SklearnHead, testing::Range<std::size_t>(0, models().size()),
                         test_name);

}  // namespace onnxgrad::train::heads_sklearn_test
