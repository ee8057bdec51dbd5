#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <onnx/onnx_pb.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "onnx/exporter.h"
#include "onnx/file_edit.h"
#include "onnx/model_io.h"
#include "onnxgrad/error.h"

namespace onnxgrad::onnx_io::with_weights_test {
namespace {

namespace fs = std::filesystem;
using Weights = std::vector<std::pair<std::string, Tensor>>;
const opdef::OpRegistry kNoOperators;

fs::path models_folder() {
  const char* root = std::getenv("ONNXGRAD_SOURCE_DIR");
  return fs::path(root == nullptr ? "." : root) / "tests/data/models";
}

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The tensor with the last bit of every number changed: one byte each.
Tensor other_numbers(const Tensor& tensor) {
  Tensor changed = tensor.clone();
  const std::int64_t step = size_bits(tensor.dtype()) / 8;
  for (std::int64_t i = 0; i < changed.size_bytes(); i += step) {
    changed.mutable_raw()[i] ^= std::byte{1};
  }
  return changed;
}

std::vector<std::size_t> differing_bytes(std::string_view a, std::string_view b) {
  std::vector<std::size_t> positions;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    if (a[i] != b[i]) positions.push_back(i);
  }
  return positions;
}

TEST(WithWeights, EveryFloatOfEveryModelIsWrittenInPlace) {
  int files = 0;
  for (const auto& entry : fs::directory_iterator(models_folder())) {
    if (entry.path().extension() != ".onnx") continue;
    const std::string path = entry.path().string();
    const FileModel file = load_file(path);
    const ir::Model working = to_internal(file, kNoOperators);
    Weights weights;
    std::int64_t numbers = 0;
    for (const ir::Value* value : working.graph->initializers) {
      if (!is_floating(value->dtype()) || value->is_input) continue;
      // Initializers that upgrading has added have no place in the file.
      const bool is_of_file = value->origin != nullptr || file.model->graph->find(value->name);
      if (!is_of_file) continue;
      weights.emplace_back(value->name, other_numbers(value->initializer));
      numbers += value->initializer.num_elements();
    }
    const std::string changed = with_weights(file, working, weights);
    EXPECT_EQ(changed.size(), file.bytes->size()) << path;
    EXPECT_EQ(static_cast<std::int64_t>(differing_bytes(changed, *file.bytes->whole()).size()),
              numbers)
        << path;
    const FileModel again = load_bytes(changed);
    const ir::Model reloaded = to_internal(again, kNoOperators);
    for (const auto& [name, tensor] : weights) {
      EXPECT_TRUE(reloaded.graph->find(name)->initializer.equals(tensor)) << path << name;
    }
    // The old numbers give the old file.
    for (auto& [name, tensor] : weights) tensor = working.graph->find(name)->initializer;
    EXPECT_EQ(with_weights(again, reloaded, weights), *file.bytes->whole()) << path;
    ++files;
  }
  EXPECT_GE(files, 40);
}

TEST(WithWeights, ConstantsOfSubgraphsAndFunctionsGoBackToTheirPlaces) {
  const FileModel file = load_text(R"(
    <ir_version: 9, opset_import: ["" : 18, "f" : 1]>
    main (float[2] x, bool c) => (float[2] y) {
      p = f.Scale(x)
      q = f.Scale(p)
      y = If (c) <then_branch = t () => (float[2] r) {
                    w = Constant <value = float[2] {3.0, 4.0}> ()
                    r = Mul(q, w)
                  },
                  else_branch = e () => (float[2] r) {
                    w = Constant <value_floats = [5.0, 6.0]> ()
                    r = Mul(q, w)
                  }>
    }
    <domain: "f", opset_import: ["" : 18]>
    Scale (a) => (b) {
      w = Constant <value = float[2] {1.0, 2.0}> ()
      b = Mul(a, w)
    })");
  const ir::Model working = to_internal(file, kNoOperators);
  Weights weights;
  for (const ir::Value* value : working.graph->initializers) {
    ASSERT_NE(value->origin, nullptr) << value->name;
    Tensor tensor = value->initializer.clone();
    for (float& number : tensor.mutable_data<float>()) number *= 10;
    weights.emplace_back(value->name, tensor);
  }
  ASSERT_EQ(weights.size(), 3u);  // one for both calls of the function
  const FileModel changed = load_bytes(with_weights(file, working, weights));
  const auto tensors = [](const FileModel& model) {
    std::vector<float> numbers;
    const auto add = [&](const ir::Graph& graph, const auto& self) -> void {
      for (const ir::Node* node : graph.nodes) {
        for (const ir::Attribute& attribute : node->attributes) {
          if (const auto* t = std::get_if<Tensor>(&attribute.value)) {
            numbers.insert(numbers.end(), t->data<float>().begin(), t->data<float>().end());
          } else if (const auto* f = std::get_if<std::vector<float>>(&attribute.value)) {
            numbers.insert(numbers.end(), f->begin(), f->end());
          }
        }
        for (const ir::Graph* body : node->subgraphs()) self(*body, self);
      }
    };
    add(*model.model->graph, add);
    add(*model.model->functions[0].body, add);
    return numbers;
  };
  EXPECT_THAT(tensors(changed), testing::ElementsAre(30, 40, 50, 60, 10, 20));
}

// Weights at all positions that names of different lengths give them.
std::string bytes_of_unaligned_weights() {
  onnx::ModelProto model;
  model.set_ir_version(8);
  model.add_opset_import()->set_version(18);
  model.mutable_graph()->set_name("g");
  for (int i = 0; i < 16; ++i) {
    onnx::TensorProto& tensor = *model.mutable_graph()->add_initializer();
    tensor.set_name("w" + std::string(static_cast<std::size_t>(i % 9), 'x') + std::to_string(i));
    const bool is_double = i % 2 == 1;
    tensor.set_data_type(is_double ? onnx::TensorProto::DOUBLE : onnx::TensorProto::FLOAT);
    tensor.add_dims(i == 5 ? 3 : 2000 + i);  // one is small
    for (std::int64_t k = 0; k < tensor.dims(0); ++k) {
      const auto number = static_cast<double>(1000 * i + k);
      const auto single = static_cast<float>(number);
      const char* bytes = is_double ? reinterpret_cast<const char*>(&number)
                                    : reinterpret_cast<const char*>(&single);
      tensor.mutable_raw_data()->append(bytes, is_double ? sizeof number : sizeof single);
    }
    onnx::NodeProto& node = *model.mutable_graph()->add_node();
    node.set_op_type("Identity");
    node.add_input(tensor.name());
    node.add_output("y" + std::to_string(i));
    onnx::ValueInfoProto& output = *model.mutable_graph()->add_output();
    output.set_name(node.output(0));
    output.mutable_type()->mutable_tensor_type()->set_elem_type(tensor.data_type());
  }
  return model.SerializeAsString();
}

TEST(WithWeights, WeightsAreInMemoryOnceWhereverTheFileHasThem) {
  const std::string bytes = bytes_of_unaligned_weights();
  const FileModel file = load_bytes(bytes);
  const std::string_view memory = file.bytes->memory();
  int views = 0;
  int moved = 0;
  for (int i = 0; i < 16; ++i) {
    const ir::Value* value = file.model->graph->initializers[static_cast<std::size_t>(i)];
    const std::vector<double> numbers = value->initializer.to_doubles();
    for (std::size_t k = 0; k < numbers.size(); ++k) {
      ASSERT_EQ(numbers[k], 1000.0 * i + static_cast<double>(k)) << value->name;
    }
    const auto* data = reinterpret_cast<const char*>(value->initializer.raw());
    if (data < memory.data() || data >= memory.data() + memory.size()) continue;
    ++views;
    if (bytes.compare(static_cast<std::size_t>(data - memory.data()), 64, data, 64) != 0) ++moved;
  }
  EXPECT_GE(views, 10);
  EXPECT_GE(moved, 5);
  EXPECT_EQ(*file.bytes->whole(), bytes);
  const ir::Model working = to_internal(file, kNoOperators);
  EXPECT_EQ(with_weights(file, working, {}), bytes);
  const Tensor weight = other_numbers(working.graph->initializers[2]->initializer);
  const std::string changed =
      with_weights(file, working, Weights{{working.graph->initializers[2]->name, weight}});
  EXPECT_EQ(differing_bytes(changed, bytes).size(), 2002u);
}

onnx::ModelProto model_with(const onnx::TensorProto& tensor) {
  onnx::ModelProto model;
  model.set_ir_version(8);
  model.add_opset_import()->set_version(18);
  model.mutable_graph()->set_name("g");
  *model.mutable_graph()->add_initializer() = tensor;
  onnx::TensorProto& other = *model.mutable_graph()->add_initializer();
  other.set_name("other");
  other.set_data_type(onnx::TensorProto::INT8);
  other.set_raw_data("x");
  other.add_dims(1);
  onnx::NodeProto& node = *model.mutable_graph()->add_node();
  node.set_op_type("Identity");
  node.add_input("w");
  node.add_output("y");
  model.mutable_graph()->add_output()->set_name("y");
  return model;
}

TEST(WithWeights, EveryStorageForm) {
  const std::vector<float> old_values = {1, 2, 3, 200};
  const std::vector<float> new_values = {-1, 0, 100000, 7};
  const auto check = [&](const onnx::TensorProto& tensor, DataType dtype) {
    const FileModel file = load_bytes(model_with(tensor).SerializeAsString());
    const ir::Model working = to_internal(file, kNoOperators);
    const Tensor weight = Tensor::from(new_values, Dims{4}).cast(dtype);
    const std::string changed = with_weights(file, working, Weights{{"w", weight}});
    onnx::ModelProto proto;
    EXPECT_TRUE(proto.ParseFromString(changed));
    EXPECT_EQ(proto.graph().initializer(1).SerializeAsString(),
              model_with(tensor).graph().initializer(1).SerializeAsString());
    EXPECT_EQ(proto.graph().initializer(0).name(), "w");
    EXPECT_TRUE(load_bytes(changed).model->graph->find("w")->initializer.equals(weight));
    return changed.size() == file.bytes->size();
  };
  onnx::TensorProto tensor;
  tensor.set_name("w");
  tensor.add_dims(4);
  tensor.set_data_type(onnx::TensorProto::FLOAT);
  onnx::TensorProto typed = tensor;
  for (const float v : old_values) typed.add_float_data(v);
  EXPECT_TRUE(check(typed, DataType::kFloat32));
  onnx::TensorProto raw = tensor;
  raw.set_raw_data(old_values.data(), 16);
  EXPECT_TRUE(check(raw, DataType::kFloat32));
  onnx::TensorProto doubles = tensor;
  doubles.set_data_type(onnx::TensorProto::DOUBLE);
  for (const float v : old_values) doubles.add_double_data(v);
  EXPECT_TRUE(check(doubles, DataType::kFloat64));
  onnx::TensorProto ints = tensor;  // varints: the message grows, and all around it
  ints.set_data_type(onnx::TensorProto::INT64);
  for (const float v : old_values) ints.add_int64_data(static_cast<std::int64_t>(v));
  EXPECT_FALSE(check(ints, DataType::kInt64));
}

TEST(WithWeights, UnpackedFloatsAreWrittenInPlace) {
  std::string message;
  WireWriter out(message);
  out.int64(onnx::TensorProto::kDimsFieldNumber, 2);
  out.int64(onnx::TensorProto::kDataTypeFieldNumber, 1);
  out.float32(onnx::TensorProto::kFloatDataFieldNumber, 1.0F);
  out.bytes(onnx::TensorProto::kNameFieldNumber, "w");
  out.float32(onnx::TensorProto::kFloatDataFieldNumber, 2.0F);
  std::string model;
  WireWriter file_out(model);
  file_out.int64(onnx::ModelProto::kIrVersionFieldNumber, 8);
  file_out.message(onnx::ModelProto::kOpsetImportFieldNumber, [](WireWriter& opset) {
    opset.int64(onnx::OperatorSetIdProto::kVersionFieldNumber, 18);
  });
  file_out.message(onnx::ModelProto::kGraphFieldNumber, [&](WireWriter& graph) {
    graph.bytes(onnx::GraphProto::kInitializerFieldNumber, message);
  });
  const FileModel file = load_bytes(model);
  const Tensor weight = Tensor::from(std::vector<float>{3, 4}, Dims{2});
  const std::string changed = with_weights(file, *file.model, Weights{{"w", weight}});
  EXPECT_EQ(changed.size(), model.size());
  EXPECT_TRUE(load_bytes(changed).model->graph->find("w")->initializer.equals(weight));
}

TEST(WithWeights, NumbersInAttributesGoThroughIndexAndFactor) {
  const FileModel file = load_text(R"(
    <ir_version: 8, opset_import: ["" : 18, "ai.onnx.ml" : 3]>
    main (float[N, 2] x) => (float[N, 2] y) {
      y = ai.onnx.ml.Scaler <offset = [1.0, 2.0, 3.0, 4.0], scale = [1.0, 1.0]> (x)
    })");
  ir::Model working = ir::clone(*file.model);
  ir::Value* weight =
      working.graph->add_initializer("w", Tensor::from(std::vector<float>{1, 2}, Dims{2}));
  weight->origin = std::make_shared<const ir::WeightOrigin>(
      ir::WeightOrigin{.kind = ir::WeightOrigin::Kind::kAttribute,
                       .name = "y",
                       .attribute = "offset",
                       .index = {1, 0, -1, 0},
                       .factor = {1, -2, 1, 0.5F}});
  const Tensor numbers = Tensor::from(std::vector<float>{10, 20}, Dims{2});
  const std::string changed = with_weights(file, working, Weights{{"w", numbers}});
  EXPECT_EQ(changed.size(), file.bytes->size());
  EXPECT_THAT(load_bytes(changed).model->graph->nodes[0]->floats_attribute("offset"),
              testing::ElementsAre(20, -20, 3, 5));
}

TEST(WithWeights, NumbersInTensorsGoThroughIndexAndFactor) {
  const FileModel file = load_text(R"(
    <ir_version: 8, opset_import: ["" : 18]>
    main (double[N, 2] x) => (double[N, 2] y)
    <double[2, 2] w = {-1, 1, -2, 2}> { b = Constant <value = double[2] {3, -3}> ()
                                        z = MatMul(x, w)  y = Add(z, b) })");
  ir::Model working = ir::clone(*file.model);
  const auto narrow = [&](const std::string& name, ir::WeightOrigin origin, Tensor kept) {
    ir::Value* weight = working.graph->find(name);
    weight->producer = nullptr;
    weight->initializer = std::move(kept);
    weight->origin = std::make_shared<const ir::WeightOrigin>(std::move(origin));
  };
  narrow("w", {.name = "w", .index = {0, 0, 1, 1}, .factor = {-1, 1, -1, 1}},
         Tensor::from(std::vector<double>{1, 2}, Dims{2, 1}));
  narrow("b",
         {.kind = ir::WeightOrigin::Kind::kConstantNode,
          .name = "b",
          .attribute = "value",
          .index = {0, 0},
          .factor = {1, -1}},
         Tensor::from(std::vector<double>{3}, Dims{1}));
  const std::string changed =
      with_weights(file, working,
                   Weights{{"w", Tensor::from(std::vector<double>{0.1, 0.3}, Dims{2, 1})},
                           {"b", Tensor::from(std::vector<double>{0.7}, Dims{1})}});
  const FileModel again = load_bytes(changed);
  EXPECT_THAT(again.model->graph->find("w")->initializer.to_doubles(),
              testing::ElementsAre(-0.1, 0.1, -0.3, 0.3));
  EXPECT_THAT(std::get<Tensor>(*again.model->graph->nodes[0]->find_attribute("value")).to_doubles(),
              testing::ElementsAre(0.7, -0.7));
}

TEST(WithWeights, RefusesWhatDoesNotFit) {
  const FileModel file = load_file((models_folder() / "sk_mlp_regressor.onnx").string());
  const ir::Model working = to_internal(file, kNoOperators);
  const ir::Value* first = working.graph->find("coefficient");
  ASSERT_NE(first, nullptr);
  const auto error_of = [&](const std::string& name, const Tensor& tensor) {
    try {
      with_weights(file, working, Weights{{name, tensor}});
      return std::string("no error");
    } catch (const ModelError& error) {
      return std::string(error.what());
    }
  };
  EXPECT_EQ(error_of("coefficient", first->initializer), "no error");
  EXPECT_THAT(error_of("coeficient", first->initializer),
              testing::HasSubstr("Did you mean 'coefficient'"));
  EXPECT_THAT(error_of("coefficient", first->initializer.cast(DataType::kFloat64)),
              testing::HasSubstr("float64"));
  EXPECT_THAT(error_of("coefficient", Tensor::zeros(DataType::kFloat32, {1})),
              testing::HasSubstr("[1], expected"));
}

class ExternalWeights : public testing::Test {
 protected:
  ExternalWeights() {
    std::string pattern = (fs::temp_directory_path() / "onnxgrad-weights-XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
    fs::create_directory(folder_ / "other");
    const FileModel file = load_file((models_folder() / "vgg_small_batchnorm.onnx").string());
    save_model(*file.model, path(), /*max_inline_bytes=*/1000);
    data_ = read_file(path() + ".data");
  }
  ~ExternalWeights() override { fs::remove_all(folder_); }
  std::string path() const { return (folder_ / "model.onnx").string(); }

  // One weight with other numbers, all others as they were.
  void check(const std::string& written, const ir::Model& working, const Weights& weights) {
    const FileModel again = load_file(written);
    for (const ir::Value* value : working.graph->initializers) {
      const ir::Value* loaded = again.model->graph->find(value->name);
      if (loaded == nullptr || !loaded->is_initializer()) continue;
      const bool is_changed = value->name == weights[0].first;
      EXPECT_TRUE(loaded->initializer.equals(is_changed ? weights[0].second : value->initializer))
          << value->name;
    }
    EXPECT_EQ(read_file(path() + ".data"), data_);
  }

  fs::path folder_;
  std::string data_;
};

TEST_F(ExternalWeights, GoToANewFileAndNeverOverTheOldOne) {
  const FileModel file = load_file(path());
  const ir::Model working = to_internal(file, kNoOperators);
  const auto is_external = [](const ir::Value* value) {
    return is_floating(value->dtype()) && value->initializer.size_bytes() >= kMinExternalBytes;
  };
  const auto found = std::ranges::find_if(working.graph->initializers, is_external);
  ASSERT_NE(found, working.graph->initializers.end());
  const Weights weights = {{(*found)->name, other_numbers((*found)->initializer)}};

  const std::string beside = (folder_ / "trained.onnx").string();
  save_with_weights(file, working, weights, beside);
  check(beside, working, weights);
  EXPECT_EQ(fs::file_size(beside + ".data"), (*found)->initializer.size_bytes());

  const std::string elsewhere = (folder_ / "other" / "trained.onnx").string();
  save_with_weights(file, working, weights, elsewhere);
  check(elsewhere, working, weights);
  EXPECT_GE(fs::file_size(elsewhere + ".data"), data_.size());

  const std::string whole = with_weights(file, working, weights);
  const FileModel alone = load_bytes(whole);  // without a folder for external data
  EXPECT_FALSE(has_external_data(alone));
  EXPECT_TRUE(has_external_data(file));
  const std::string copy = (folder_ / "other" / "whole.onnx").string();
  std::ofstream(copy, std::ios::binary) << whole;
  check(copy, working, weights);
  try {
    with_weights_up_to(file, working, weights, std::ssize(*file.bytes->whole()) + 1000);
    FAIL() << "more bytes than may be";
  } catch (const ModelError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("Trainer(session).save(path)"));
  }

  save_with_weights(file, working, weights, path());  // over the model itself
  check(path(), working, weights);
  EXPECT_TRUE(fs::exists(path() + ".1.data"));
}

TEST_F(ExternalWeights, MoveIntoTheBytes) {
  const FileModel file = load_file(path());
  const ir::Model working = to_internal(file, kNoOperators);
  Weights weights;
  for (const ir::Value* value : working.graph->initializers) {
    const ir::Value* original = file.model->graph->find(value->name);
    if (original == nullptr || !original->is_initializer()) continue;
    weights.emplace_back(value->name, other_numbers(value->initializer));
  }
  const FileModel again = load_bytes(with_weights(file, working, weights));
  for (const auto& [name, tensor] : weights) {
    EXPECT_TRUE(again.model->graph->find(name)->initializer.equals(tensor)) << name;
  }
}

}  // namespace
}  // namespace onnxgrad::onnx_io::with_weights_test
