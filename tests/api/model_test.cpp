#include "onnxgrad/model.h"

#include <gmock/gmock.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "onnxgrad/weights.h"

namespace onnxgrad::model_test {

using testing::ElementsAre;
using testing::HasSubstr;

std::string data_path(const std::string& name) {
  const char* root = std::getenv("ONNXGRAD_SOURCE_DIR");
  return std::string(root == nullptr ? "." : root) + "/tests/data/" + name;
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string temporary_path(const std::string& name) {
  return (std::filesystem::path(testing::TempDir()) / name).string();
}

constexpr const char* kLinear = R"(
<ir_version: 8, opset_import: ["" : 17], producer_name: "by hand">
linear (float[N, 2] x) => (float[N, 1] y)
<float[2, 1] w = {1, 2}, float[1] b = {3}, float[1] unused = {4}>
{
  m = MatMul(x, w)
  y = Add(m, b)
}
)";

TEST(Model, SaysWhatTheFileSays) {
  const Model model = Model::from_text(kLinear);
  EXPECT_EQ(model.opset(), 17);
  EXPECT_EQ(model.opset("ai.onnx.ml"), 0);
  EXPECT_EQ(model.ir_version(), 8);
  EXPECT_EQ(model.producer_name(), "by hand");
  ASSERT_EQ(model.inputs().size(), 1U);
  const ValueInfo& x = model.inputs()[0];
  EXPECT_EQ(x.name, "x");
  EXPECT_EQ(x.dtype, DataType::kFloat32);
  EXPECT_EQ(x.type, "float32[N, 2]");
  ASSERT_TRUE(x.shape.has_value());
  EXPECT_EQ((*x.shape)[0].symbol, "N");
  EXPECT_EQ((*x.shape)[1].value, 2);
  EXPECT_EQ(model.outputs().at(0).name, "y");
  EXPECT_THAT(model.to_text(), HasSubstr("MatMul"));
}

TEST(Model, ListsWeights) {
  const Model model = Model::from_text(kLinear);
  const auto& weights = model.weights();
  ASSERT_GE(weights.size(), 2U);
  EXPECT_EQ(weights[0].name, "w");
  EXPECT_TRUE(weights[0].trainable);
  EXPECT_EQ(weights[0].dims, Dims({2, 1}));
  EXPECT_EQ(weights[1].name, "b");
  EXPECT_TRUE(weights[1].trainable);
  EXPECT_THAT(model.weight("w").to_doubles(), ElementsAre(1, 2));
  try {
    model.weight("v");
    FAIL();
  } catch (const ModelError& error) {
    EXPECT_THAT(error.what(), HasSubstr("no weight 'v'"));
  }
}

TEST(Model, BytesOfAFileStayAsTheyAre) {
  const std::string path = data_path("sklearn_mlps/three_classes.onnx");
  const Model model = Model::load(path);
  EXPECT_EQ(model.path(), path);
  EXPECT_EQ(model.to_bytes(), read_file(path));
  const std::string copy = temporary_path("copy.onnx");
  model.save(copy);
  EXPECT_EQ(read_file(copy), read_file(path));
  EXPECT_EQ(Model::from_bytes(model.to_bytes()).outputs().size(), 2U);
  EXPECT_FALSE(model.outputs()[1].is_tensor);
  EXPECT_THAT(model.outputs()[1].type, HasSubstr("seq"));
}

TEST(Model, SavingToNoFolderIsACheckpointError) {
  const Model model = Model::from_text(kLinear);
  EXPECT_THROW(model.save("/no/such/folder/model.onnx"), CheckpointError);
}

TEST(Model, BadFilesAreModelErrors) {
  EXPECT_THROW(Model::load("/no/such/file.onnx"), ModelError);
  EXPECT_THROW(Model::from_bytes("not a model"), ModelError);
  EXPECT_THROW(Model::from_text("agraph ("), ModelError);
  const std::string bytes = read_file(data_path("sklearn_mlps/three_classes.onnx"));
  EXPECT_THROW(Model::from_bytes(bytes.substr(0, bytes.size() / 2)), ModelError);
}

Tensor column(const std::vector<float>& values) {
  return Tensor::from(values, Dims{static_cast<std::int64_t>(values.size()), 1});
}

TEST(SetWeights, ChangesNothingElse) {
  const Model model = Model::load(data_path("sklearn_mlps/one_target.onnx"));
  const auto name = model.weights().at(0).name;
  Tensor value = model.weight(name).clone();
  const Model same = set_weights(model, {{.name = name, .tensor = value}});
  EXPECT_EQ(same.to_bytes(), model.to_bytes());
  for (float& number : value.mutable_data<float>()) number += 1;
  const Model changed = set_weights(model, {{.name = name, .tensor = value}});
  EXPECT_EQ(changed.to_bytes().size(), model.to_bytes().size());
  EXPECT_NE(changed.to_bytes(), model.to_bytes());
  EXPECT_TRUE(changed.weight(name).equals(value));
  EXPECT_FALSE(model.weight(name).equals(value));
  EXPECT_TRUE(Model::from_bytes(changed.to_bytes()).weight(name).equals(value));
  const std::string path = temporary_path("changed.onnx");
  changed.save(path);
  EXPECT_EQ(read_file(path), changed.to_bytes());
  // A second change keeps the first.
  const auto other = model.weights().at(1).name;
  const Tensor zeros = Tensor::zeros(DataType::kFloat32, model.weight(other).dims());
  const Model twice = set_weights(changed, {{.name = other, .tensor = zeros}});
  const Model again = Model::from_bytes(twice.to_bytes());
  EXPECT_TRUE(again.weight(name).equals(value));
  EXPECT_TRUE(again.weight(other).equals(zeros));
}

TEST(SetWeights, RefusesOtherShapesTypesAndNames) {
  const Model model = Model::from_text(kLinear);
  EXPECT_THROW(set_weights(model, {{.name = "w", .tensor = column({1, 2, 3})}}), ModelError);
  EXPECT_THROW(
      set_weights(model, {{.name = "w", .tensor = column({1, 2}).cast(DataType::kFloat64)}}),
      ModelError);
  EXPECT_THROW(set_weights(model, {{.name = "W", .tensor = column({1, 2})}}), ModelError);
}

TEST(SetWeights, CopiesWhatItIsGiven) {
  const Model model = Model::from_text(kLinear);
  Tensor value = column({5, 6});
  const Model changed = set_weights(model, {{.name = "w", .tensor = value}});
  value.mutable_data<float>()[0] = 7;
  EXPECT_THAT(changed.weight("w").to_doubles(), ElementsAre(5, 6));
}

TEST(InitializeModel, DrawsTrainableWeightsOnly) {
  const Model model = Model::load(data_path("sklearn_mlps/two_classes.onnx"));
  const Model fresh = initialize(model, {.seed = 1});
  int changed = 0;
  for (const WeightInfo& weight : model.weights()) {
    const bool same = fresh.weight(weight.name).equals(model.weight(weight.name));
    EXPECT_EQ(same, !weight.trainable) << weight.name;
    changed += same ? 0 : 1;
  }
  EXPECT_EQ(changed, 4);
  EXPECT_EQ(initialize(model, {.seed = 1}).to_bytes(), fresh.to_bytes());
  EXPECT_NE(initialize(model, {.seed = 2}).to_bytes(), fresh.to_bytes());
}

TEST(InitializeModel, SchemesHaveNames) {
  EXPECT_EQ(init_scheme_from_name("he_normal"), InitScheme::kHeNormal);
  try {
    init_scheme_from_name("he_norml");
    FAIL();
  } catch (const ModelError& error) {
    EXPECT_THAT(error.what(), HasSubstr("Did you mean 'he_normal'?"));
  }
}

}  // namespace onnxgrad::model_test
