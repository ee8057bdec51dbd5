#include <gmock/gmock.h>

#include <atomic>
#include <fstream>

#include "train/fit/evaluator.h"
#include "train/fit/fit_loop.h"
#include "train/testing/draft.h"

// Files as skl2onnx writes them, with scikit-learn's own loss as the truth: what a user has on the
// first day. tests/data/make_sklearn_mlps.py writes files and values.

namespace onnxgrad::train::sklearn_test {

using nlohmann::json;

const json& values() {
  static const json parsed = [] {
    std::ifstream file(train_test::source_dir() + "/tests/data/sklearn_mlps/values.json");
    return json::parse(file);
  }();
  return parsed;
}

const json& row(const std::string& name) { return values()["models"][name]; }

Source load(const std::string& name) {
  Source source;
  source.file =
      onnx_io::load_file(train_test::source_dir() + "/tests/data/sklearn_mlps/" + name + ".onnx");
  source.working =
      std::make_shared<const ir::Model>(onnx_io::to_internal(source.file, builtin_ops()));
  return source;
}

Tensor features(const std::string& name) {
  const Dims dims = train_test::dims_of(values()["x_shape"]);
  const Tensor all = train_test::tensor_of(values()["x"], DataType::kFloat32, dims);
  const std::int64_t columns = row(name).value("columns", dims[1]);
  Tensor chosen = Tensor::empty(DataType::kFloat32, Dims{dims[0], columns});
  for (std::int64_t i = 0; i < dims[0]; ++i) {
    for (std::int64_t j = 0; j < columns; ++j) {
      chosen.mutable_data<float>()[static_cast<std::size_t>(i * columns + j)] =
          all.data<float>()[static_cast<std::size_t>(i * dims[1] + j)];
    }
  }
  return chosen;
}

Tensor target(const std::string& name) {
  const json& labels = row(name)["target"];
  const auto count = static_cast<std::int64_t>(labels.size());
  if (labels[0].is_string()) {
    return Tensor::from_strings(labels.get<std::vector<std::string>>(), Dims{count});
  }
  if (labels[0].is_number_integer()) {
    return Tensor::from(labels.get<std::vector<std::int64_t>>(), Dims{count});
  }
  const std::int64_t columns = row(name)["targets"];
  return Tensor::from(labels.get<std::vector<double>>(),
                      columns == 1 ? Dims{count} : Dims{count / columns, columns});
}

Dataset data_of(const std::string& name) {
  return {.inputs = {{.name = "", .tensor = features(name)}}, .target = target(name)};
}

/// Expected line of the loss and number of trained weights.
struct Expected {
  std::string name;
  std::string line;
  std::size_t weights = 4;
};

const std::vector<Expected>& cases() {
  static const std::string softmax = "loss: softmax cross-entropy on 'add_result1' (scores before ";
  static const std::string binary = "loss: binary cross-entropy on 'add_result1' (scores before ";
  static const std::string squares = "loss: squared error on 'add_result1' (before ";
  static const std::vector<Expected> all{
      {"three_classes", softmax + "output 'output_probability'), 3 classes"},
      {"shifted_classes", softmax + "output 'output_probability'), 3 classes"},
      {"string_classes", softmax + "output 'output_probability'), 3 classes"},
      {"two_classes", binary + "output 'output_probability'), 2 classes"},
      {"two_string_classes", binary + "output 'output_probability'), 2 classes"},
      {"scaled_three_classes", softmax + "output 'output_probability'), 3 classes"},
      {"one_target", squares + "output 'variable')"},
      {"two_targets", squares + "output 'variable')"},
      {"scaled_one_target", squares + "output 'variable')"},
  };
  return all;
}

class SklearnMlp : public testing::TestWithParam<Expected> {};

TEST_P(SklearnMlp, StartsFromScikitLearnsLossAndTrains) {
  const std::string& name = GetParam().name;
  Session session(load(name), {}, Adam{.learning_rate = 0.01}, {.engine = {.threads = 1}});
  EXPECT_THAT(session.loss().line, testing::StartsWith(GetParam().line));
  EXPECT_EQ(session.graph().weights.size(), GetParam().weights);
  const Dataset data = data_of(name);
  const double loss = row(name)["loss"];
  const auto evaluation = session.evaluation();
  Evaluator evaluator(evaluation, session.loss(), {}, session.workers());
  const PreparedData rows =
      prepare_data(session.schema(), evaluation->data_ports(), data, /*allow_nan=*/false);
  const EvaluationResult before = evaluator.run(rows, 64);
  EXPECT_NEAR(before.loss, loss, 1e-6 * std::max(1.0, loss));
  if (row(name).contains("accuracy")) {
    EXPECT_NEAR(before.accuracy.value(), row(name)["accuracy"].get<double>(), 1e-9);
  }
  train::StopFlag stop;
  History history;
  FitLoop(session, data, {.epochs = 40, .batch_size = 10}, stop, history).run();
  const EvaluationResult after = evaluator.run(rows, 64);
  EXPECT_LT(after.loss, 0.6 * before.loss);
  EXPECT_NEAR(history.epochs.back().train_loss, after.loss, 0.5 * after.loss);
}

TEST_P(SklearnMlp, PredictsWhatScikitLearnPredicts) {
  const std::string& name = GetParam().name;
  Session session(load(name), {}, Sgd{}, {.engine = {.threads = 1}});
  const bool is_classifier = session.loss().is_classifier;
  const auto outputs =
      session.predict({{.name = session.inputs().at(0).name, .tensor = features(name)}}, {});
  const auto expected = row(name)[is_classifier ? "probabilities" : "predictions"];
  const auto given = outputs.back().to_doubles();
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(given.at(i), expected[i].get<double>(), 1e-5);
  }
  if (!is_classifier) return;
  ASSERT_EQ(outputs.size(), 2U);
  // The labels that the file gives are those of the likelier class.
  const Tensor classes = session.loss().classes;
  EXPECT_EQ(outputs[0].dtype(), classes.dtype());
  EXPECT_EQ(outputs[0].num_elements(), 150);
  const double right = row(name)["accuracy"].get<double>() * 150;
  const Tensor numbers = session.encode_target(outputs[0]);
  const Tensor truth = session.encode_target(target(name));
  double hits = 0;
  for (std::size_t i = 0; i < 150; ++i) {
    hits += numbers.data<std::int64_t>()[i] == truth.data<std::int64_t>()[i] ? 1 : 0;
  }
  EXPECT_NEAR(hits, right, 1e-6);
}

INSTANTIATE_TEST_SUITE_P(Files, SklearnMlp, testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace onnxgrad::train::sklearn_test
