#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <onnx/onnx_pb.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "onnx/exporter.h"
#include "onnx/model_io.h"
#include "onnx/tensor_message.h"

namespace onnxgrad::onnx_io::round_trip_test {
namespace {

namespace fs = std::filesystem;

fs::path models_folder() {
  const char* root = std::getenv("ONNXGRAD_SOURCE_DIR");
  return fs::path(root == nullptr ? "." : root) / "tests/data/models";
}

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(models_folder())) {
    if (entry.path().extension() == ".onnx") names.push_back(entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// protobuf's own view of a model, with all tensor data raw value infos in the order of names: what
// may differ between two files that mean the same.
class Normaliser {
 public:
  static std::string run(const std::string& bytes) {
    onnx::ModelProto proto;
    EXPECT_TRUE(proto.ParseFromString(bytes));
    graph(*proto.mutable_graph());
    for (onnx::FunctionProto& function : *proto.mutable_functions())
      nodes(*function.mutable_node());
    if (proto.doc_string().empty()) proto.clear_doc_string();
    if (proto.domain().empty()) proto.clear_domain();
    for (onnx::OperatorSetIdProto& opset : *proto.mutable_opset_import()) {
      if (opset.domain().empty()) opset.clear_domain();
    }
    if (proto.model_version() == 0) proto.clear_model_version();
    return proto.SerializeAsString();
  }

 private:
  // A string that is there but empty means the same as an absent one.
  template <class Message>
  static void clear_empty_strings(Message& message) {
    if (message.name().empty()) message.clear_name();
    if (message.doc_string().empty()) message.clear_doc_string();
    if constexpr (requires { message.domain(); }) {
      if (message.domain().empty()) message.clear_domain();
    }
  }
  static void tensor(onnx::TensorProto& proto) {
    clear_empty_strings(proto);
    const std::string bytes = proto.SerializeAsString();
    const Tensor decoded = TensorDecoder(nullptr, "").decode(read_tensor_message(bytes));
    if (decoded.dtype() == DataType::kString) return;
    const std::string raw(reinterpret_cast<const char*>(decoded.raw()),
                          static_cast<std::size_t>(decoded.size_bytes()));
    proto.clear_float_data();
    proto.clear_int32_data();
    proto.clear_int64_data();
    proto.clear_double_data();
    proto.clear_uint64_data();
    proto.set_raw_data(raw);
  }
  template <class Nodes>
  static void nodes(Nodes& list) {
    for (onnx::NodeProto& node : list) {
      clear_empty_strings(node);
      for (onnx::AttributeProto& attribute : *node.mutable_attribute()) {
        clear_empty_strings(attribute);
        if (attribute.has_t()) {
          tensor(*attribute.mutable_t());
          attribute.mutable_t()->clear_name();  // means nothing there
        }
        if (attribute.has_g()) graph(*attribute.mutable_g());
      }
    }
  }
  static void graph(onnx::GraphProto& proto) {
    nodes(*proto.mutable_node());
    for (onnx::TensorProto& initializer : *proto.mutable_initializer()) tensor(initializer);
    clear_empty_strings(proto);
    for (auto* values :
         {proto.mutable_input(), proto.mutable_output(), proto.mutable_value_info()}) {
      for (onnx::ValueInfoProto& value : *values) clear_empty_strings(value);
    }
    // Declarations of values that do not exist say nothing.
    std::set<std::string> defined;
    for (const onnx::NodeProto& node : proto.node()) {
      defined.insert(node.output().begin(), node.output().end());
    }
    for (const onnx::TensorProto& value : proto.initializer()) defined.insert(value.name());
    auto& infos = *proto.mutable_value_info();
    for (int i = infos.size(); i-- > 0;) {
      if (!defined.contains(infos[i].name())) infos.DeleteSubrange(i, 1);
    }
    std::sort(infos.begin(), infos.end(),
              [](const auto& a, const auto& b) { return a.name() < b.name(); });
  }
};

TEST(RoundTrip, EveryModelOfTheDataFolderIsTheSameAfterImportAndExport) {
  const std::vector<std::string> names = model_names();
  ASSERT_GE(names.size(), 40u);
  for (const std::string& name : names) {
    const fs::path path = models_folder() / (name + ".onnx");
    const FileModel file = load_file(path.string());
    const std::string original = read_file(path);
    EXPECT_EQ(*file.bytes->whole(), original) << name;
    EXPECT_EQ(Normaliser::run(to_bytes(*file.model)), Normaliser::run(original)) << name;
    // Bytes that we write are unchanged by reading and writing them again.
    const std::string written = to_bytes(*file.model);
    EXPECT_EQ(to_bytes(*load_bytes(written).model), written) << name;
  }
}

TEST(RoundTrip, BigTensorsGoToAFileOfTheirOwnThatIsNeverOverwritten) {
  std::string pattern = (fs::temp_directory_path() / "onnxgrad-save-XXXXXX").string();
  const fs::path folder = ::mkdtemp(pattern.data());
  const FileModel file = load_file((models_folder() / "vgg_small_batchnorm.onnx").string());
  const std::string path = (folder / "model.onnx").string();
  save_model(*file.model, path, /*max_inline_bytes=*/1000);
  const std::string first_data = read_file(path + ".data");
  EXPECT_GT(first_data.size(), 40000u);
  EXPECT_LT(fs::file_size(path), 15000u);
  save_model(*load_file(path).model, path, /*max_inline_bytes=*/1000);
  EXPECT_TRUE(fs::exists(path + ".1.data"));
  EXPECT_EQ(read_file(path + ".data"), first_data);
  // Back in one file it is the model that it was.
  EXPECT_EQ(to_bytes(*load_file(path).model), to_bytes(*file.model));
  save_file(*file.model, path);
  EXPECT_EQ(read_file(path), to_bytes(*file.model));
  fs::remove_all(folder);
}

}  // namespace
}  // namespace onnxgrad::onnx_io::round_trip_test
