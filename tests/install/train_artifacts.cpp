// A program for onnxruntime 1.19 whose include was changed. The artifacts and `values`, what
// onnxruntime computed with them, are of tests/data/training_api/make_artifacts.py; those in
// `own` are onnxgrad's, of make_own.py there.
//
//   program <folder of artifacts> <folder to write to>

#include <onnxgrad/compat/onnxruntime_training_cxx_api.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

namespace {

int failures = 0;

void expect(bool holds, const std::string& what) {
  if (holds) return;
  ++failures;
  std::cerr << "failed: " << what << '\n';
}

void expect_near(float found, float expected, const std::string& what) {
  expect(std::abs(found - expected) <= 1e-4F * (std::abs(expected) + 0.1F),
         what + ": " + std::to_string(found) + ", expected " + std::to_string(expected));
}

void expect_near(const Ort::Value& found, const Ort::Value& expected, const std::string& what) {
  const auto count = expected.GetTensorTypeAndShapeInfo().GetElementCount();
  expect(found.GetTensorTypeAndShapeInfo().GetElementCount() == count, what + ": size");
  for (std::size_t i = 0; i < count && failures == 0; ++i) {
    expect_near(found.GetTensorData<float>()[i], expected.GetTensorData<float>()[i], what);
  }
}

struct Paths {
  std::string training, eval, optimizer;
};

std::vector<Ort::Value> batch(Ort::Value& x, Ort::Value& y) {
  const auto memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
  std::vector<Ort::Value> inputs;
  const auto shape = x.GetTensorTypeAndShapeInfo().GetShape();
  const auto target = y.GetTensorTypeAndShapeInfo().GetShape();
  const auto count = y.GetTensorTypeAndShapeInfo().GetElementCount();
  inputs.push_back(Ort::Value::CreateTensor<float>(memory, x.GetTensorMutableData<float>(),
                                                   x.GetTensorTypeAndShapeInfo().GetElementCount(),
                                                   shape.data(), shape.size()));
  if (y.GetTensorTypeAndShapeInfo().GetElementType() == ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64) {
    inputs.push_back(Ort::Value::CreateTensor(memory, y.GetTensorMutableRawData(),
                                              count * sizeof(std::int64_t), target.data(),
                                              target.size(), ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64));
  } else {
    inputs.push_back(Ort::Value::CreateTensor<float>(memory, y.GetTensorMutableData<float>(), count,
                                                     target.data(), target.size()));
  }
  return inputs;
}

// As onnxruntime, step by step; from the middle again with a checkpoint that was written here.
void train(const std::string& folder, const std::string& work) {
  const Ort::Env env(ORT_LOGGING_LEVEL_WARNING, "train");
  const Ort::SessionOptions options;
  auto values = Ort::CheckpointState::LoadCheckpoint(folder + "/values");
  Ort::Value x = values.GetParameter("X");
  Ort::Value y = values.GetParameter("y");
  const Ort::Value losses = values.GetParameter("losses");
  const Paths paths{folder + "/training_model.onnx", folder + "/eval_model.onnx",
                    folder + "/optimizer_model.onnx"};
  auto state = Ort::CheckpointState::LoadCheckpoint(folder + "/checkpoint");
  Ort::TrainingSession session(env, options, state, paths.training, paths.eval, paths.optimizer);
  expect_near(session.GetLearningRate(), 1e-3F, "initial rate");
  session.SetLearningRate(0.05F);
  const std::vector<Ort::Value> inputs = batch(x, y);
  expect(session.InputNames(true).size() == inputs.size(), "number of inputs");
  for (std::size_t step = 0; step < 3; ++step) {
    const auto outputs = session.TrainStep(inputs);
    expect_near(*outputs[0].GetTensorData<float>(), losses.GetTensorData<float>()[step], "loss");
    session.OptimizerStep();
    session.LazyResetGrad();
  }
  state.AddProperty("epoch", std::int64_t{3});
  state.AddProperty("name", std::string("again"));
  const std::string path = work + "/later";
  Ort::CheckpointState::SaveCheckpoint(state, path, /*include_optimizer_state=*/true);

  auto later = Ort::CheckpointState::LoadCheckpoint(path);
  expect(std::get<std::int64_t>(later.GetProperty("epoch")) == 3, "property");
  Ort::TrainingSession again(env, options, later, paths.training, std::nullopt, paths.optimizer);
  expect_near(again.GetLearningRate(), 0.05F, "stored rate");
  for (std::size_t step = 3; step < 6; ++step) {
    const auto outputs = again.TrainStep(inputs);
    expect_near(*outputs[0].GetTensorData<float>(), losses.GetTensorData<float>()[step], "loss");
    again.OptimizerStep();
    again.LazyResetGrad();
  }
  const std::string name = folder.ends_with("mlp") ? "w1" : "coef";
  expect_near(later.GetParameter(name), values.GetParameter("weight/" + name), name);
  const auto evaluated = again.EvalStep(inputs);
  expect(*evaluated[0].GetTensorData<float>() < losses.GetTensorData<float>()[5], "evaluation");

  again.RegisterLinearLRScheduler(10, 16, 0.1F);  // six steps are done
  expect_near(again.GetLearningRate(), 0.06F, "scheduled rate");
  again.ExportModelForInferencing(work + "/trained.onnx", {"Y"});
  const auto model = onnxgrad::Model::load(work + "/trained.onnx");
  expect(model.inputs().size() == 1 && model.outputs().size() == 1, "exported model");
  expect(model.outputs()[0].dtype == onnxgrad::DataType::kFloat32, "type of the exported output");
  onnxgrad::InferenceSession exported(model);
  const auto scores = exported.run({}, {{model.inputs()[0].name, x.tensor()}});
  expect(scores[0].dims().rank() == 2, "scores");

  Ort::Value buffer = again.ToBuffer(/*only_trainable=*/false);
  auto nominal = Ort::CheckpointState::LoadCheckpoint(folder + "/nominal_checkpoint");
  Ort::TrainingSession copy(env, options, nominal, paths.training, paths.eval, paths.optimizer);
  try {
    copy.EvalStep(inputs);
    expect(false, "a nominal state is refused");
  } catch (const Ort::Exception& error) {
    expect(std::string(error.what()).find("nominal") != std::string::npos, error.what());
  }
  copy.FromBuffer(buffer);
  expect_near(copy.EvalStep(inputs)[0], evaluated[0], "values of the buffer");
}

// Gradients add up until they are reset: two steps give twice the update of SGD.
void accumulate(const std::string& folder) {
  std::array<float, 2> moved = {};
  for (const int steps : {1, 2}) {
    auto state = Ort::CheckpointState::LoadCheckpoint(folder + "/checkpoint");
    auto values = Ort::CheckpointState::LoadCheckpoint(folder + "/values");
    Ort::Value x = values.GetParameter("X");
    Ort::Value y = values.GetParameter("y");
    // Small, so that the norm of the gradients is not clipped.
    const auto count = x.GetTensorTypeAndShapeInfo().GetElementCount();
    for (std::size_t i = 0; i < count; ++i) x.GetTensorMutableData<float>()[i] *= 1e-3F;
    const auto inputs = batch(x, y);
    Ort::TrainingSession session(Ort::SessionOptions(), state, folder + "/training_model.onnx",
                                 folder + "/eval_model.onnx", folder + "/optimizer_model.onnx");
    const float before = *state.GetParameter("coef").GetTensorData<float>();
    session.SetLearningRate(100);
    for (int i = 0; i < steps; ++i) session.TrainStep(inputs);
    session.OptimizerStep();
    moved.at(static_cast<std::size_t>(steps) - 1) =
        *state.GetParameter("coef").GetTensorData<float>() - before;
  }
  expect_near(moved[1], 2 * moved[0], "accumulated update");
}

void check_errors(const std::string& folder) {
  for (const std::string& path : {folder + "/nowhere", folder + "/eval_model.onnx"}) {
    try {
      Ort::CheckpointState::LoadCheckpoint(path);
      expect(false, "a file that is no checkpoint is refused");
    } catch (const Ort::Exception& error) {
      expect(std::string(error.what()).find(path) != std::string::npos, error.what());
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  Ort::SetSeed(8);
  const std::string artifacts = argv[1];
  train(artifacts + "/linear", argv[2]);
  train(artifacts + "/mlp", argv[2]);
  train(artifacts + "/../own", argv[2]);
  accumulate(artifacts + "/linear");
  check_errors(artifacts + "/linear");
  return failures == 0 ? 0 : 1;
}
