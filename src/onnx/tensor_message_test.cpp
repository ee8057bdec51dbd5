#include "onnx/tensor_message.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <onnx/onnx_pb.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "onnxgrad/error.h"

namespace onnxgrad::onnx_io::tensor_message_test {
namespace {

namespace fs = std::filesystem;
constexpr std::int64_t kElements = 5;  // odd, so that packed types end inside a byte

std::vector<DataType> all_types() {
  std::vector<DataType> types;
  for (int i = 1; i <= 26; ++i) types.push_back(static_cast<DataType>(i));
  return types;
}

onnx::TensorProto make_tensor(DataType dtype) {
  onnx::TensorProto proto;
  proto.set_name("w");
  proto.set_data_type(static_cast<int>(dtype));
  proto.add_dims(kElements);
  return proto;
}

// Bytes 0, 1, 0, 1, ...: legal for every type, bool included.
std::string bytes_for(DataType dtype) {
  std::string bytes(static_cast<std::size_t>(Dims{kElements}.size_bytes(dtype)), '\0');
  for (std::size_t i = 1; i < bytes.size(); i += 2) bytes[i] = 1;
  return bytes;
}

Tensor decode(const onnx::TensorProto& proto, const std::string& root = "") {
  const auto bytes = std::make_shared<const std::string>(proto.SerializeAsString());
  return TensorDecoder(bytes, root).decode(read_tensor_message(*bytes));
}

// "-1", "exact" or "+1" bytes or elements.
bool is_accepted(const onnx::TensorProto& proto, const std::string& root = "") {
  try {
    decode(proto, root);
    return true;
  } catch (const ModelError&) {
    return false;
  }
}

TEST(TensorMessage, RawDataOfEveryType) {
  for (const DataType dtype : all_types()) {
    if (dtype == DataType::kString) continue;
    onnx::TensorProto proto = make_tensor(dtype);
    const std::string bytes = bytes_for(dtype);
    proto.set_raw_data(bytes);
    const Tensor tensor = decode(proto);
    EXPECT_EQ(tensor.dtype(), dtype);
    EXPECT_EQ(std::memcmp(tensor.raw(), bytes.data(), bytes.size()), 0) << dtype_name(dtype);
    proto.set_raw_data(bytes.substr(1));
    EXPECT_FALSE(is_accepted(proto)) << dtype_name(dtype);
    proto.set_raw_data(bytes + "x");
    EXPECT_FALSE(is_accepted(proto)) << dtype_name(dtype);
    proto.set_raw_data("");
    EXPECT_FALSE(is_accepted(proto)) << dtype_name(dtype);
    proto.clear_raw_data();
    EXPECT_FALSE(is_accepted(proto)) << dtype_name(dtype);
  }
}

// Adds one stored element to the typed field that the specification assigns to the type.
void add_stored(onnx::TensorProto& proto, int value) {
  switch (static_cast<DataType>(proto.data_type())) {
    case DataType::kFloat32:
    case DataType::kComplex64:
      return proto.add_float_data(static_cast<float>(value));
    case DataType::kFloat64:
    case DataType::kComplex128:
      return proto.add_double_data(value);
    case DataType::kInt64:
      return proto.add_int64_data(value);
    case DataType::kUint32:
    case DataType::kUint64:
      return proto.add_uint64_data(static_cast<std::uint64_t>(value));
    case DataType::kString:
      return proto.add_string_data(std::to_string(value));
    default:
      return proto.add_int32_data(value);
  }
}

TEST(TensorMessage, TypedDataOfEveryType) {
  for (const DataType dtype : all_types()) {
    const bool is_complex = dtype == DataType::kComplex64 || dtype == DataType::kComplex128;
    const bool is_packed = size_bits(dtype) > 0 && size_bits(dtype) < 8;
    const std::int64_t stored = is_complex  ? 2 * kElements
                                : is_packed ? Dims{kElements}.size_bytes(dtype)
                                            : kElements;
    onnx::TensorProto proto = make_tensor(dtype);
    for (std::int64_t i = 0; i + 1 < stored; ++i) add_stored(proto, 1);
    EXPECT_FALSE(is_accepted(proto)) << dtype_name(dtype);
    add_stored(proto, 1);
    EXPECT_TRUE(is_accepted(proto)) << dtype_name(dtype);
    add_stored(proto, 1);
    EXPECT_FALSE(is_accepted(proto)) << dtype_name(dtype);
    // Data in a second form, and in a field of another type.
    onnx::TensorProto both = make_tensor(dtype);
    for (std::int64_t i = 0; i < stored; ++i) add_stored(both, 1);
    both.set_raw_data("x");
    EXPECT_FALSE(is_accepted(both)) << dtype_name(dtype);
    onnx::TensorProto wrong = make_tensor(dtype);
    for (std::int64_t i = 0; i < stored; ++i) {
      dtype == DataType::kInt64 ? wrong.add_int32_data(1) : wrong.add_int64_data(1);
    }
    EXPECT_FALSE(is_accepted(wrong)) << dtype_name(dtype);
  }
}

TEST(TensorMessage, TypedValuesAreWhatTheyWere) {
  onnx::TensorProto proto = make_tensor(DataType::kInt8);
  for (const int value : {-128, -1, 0, 1, 127}) proto.add_int32_data(value);
  const Tensor tensor = decode(proto);
  EXPECT_THAT(tensor.to_int64s(), testing::ElementsAre(-128, -1, 0, 1, 127));
  proto.set_int32_data(0, 1000);
  EXPECT_FALSE(is_accepted(proto));
  onnx::TensorProto wide = make_tensor(DataType::kUint32);
  for (const std::uint64_t value : {0ULL, 1ULL, 2ULL, 3ULL, 4294967295ULL})
    wide.add_uint64_data(value);
  EXPECT_EQ(decode(wide).to_int64s().back(), 4294967295);
  wide.set_uint64_data(0, 1ULL << 32);
  EXPECT_FALSE(is_accepted(wide));
}

TEST(TensorMessage, BoolsAreZeroOrOneInMemory) {
  onnx::TensorProto proto = make_tensor(DataType::kBool);
  proto.set_raw_data(std::string("\0\1\2\xff\0", 5));
  EXPECT_THAT(decode(proto).to_int64s(), testing::ElementsAre(0, 1, 1, 1, 0));
}

TEST(TensorMessage, AlignedDataIsNotCopied) {
  onnx::TensorProto proto = make_tensor(DataType::kInt8);
  proto.set_raw_data("12345");
  const auto bytes = std::make_shared<const std::string>(proto.SerializeAsString());
  const Tensor tensor = TensorDecoder(bytes, "").decode(read_tensor_message(*bytes));
  const char* data = reinterpret_cast<const char*>(tensor.raw());
  EXPECT_TRUE(data >= bytes->data() && data < bytes->data() + bytes->size());
}

TEST(TensorMessage, RefusesUnknownTypesAndSegments) {
  onnx::TensorProto proto = make_tensor(DataType::kInt8);
  proto.set_raw_data("12345");
  for (const int dtype : {-1, 0, 27, 1000}) {
    proto.set_data_type(dtype);
    EXPECT_FALSE(is_accepted(proto)) << dtype;
  }
  proto.set_data_type(onnx::TensorProto::INT8);
  proto.mutable_segment()->set_begin(0);
  EXPECT_FALSE(is_accepted(proto));
}

class ExternalDataTest : public testing::Test {
 protected:
  ExternalDataTest() {
    std::string pattern = (fs::temp_directory_path() / "onnxgrad-external-XXXXXX").string();
    root_ = ::mkdtemp(pattern.data());
    std::ofstream(root_ / "data.bin", std::ios::binary) << std::string(64, '\1');
  }
  ~ExternalDataTest() override { fs::remove_all(root_); }

  onnx::TensorProto tensor(DataType dtype,
                           std::vector<std::pair<std::string, std::string>> entries) {
    onnx::TensorProto proto = make_tensor(dtype);
    proto.set_data_location(onnx::TensorProto::EXTERNAL);
    for (const auto& [key, value] : entries) {
      auto& entry = *proto.add_external_data();
      entry.set_key(key);
      entry.set_value(value);
    }
    return proto;
  }
  bool accepts(std::vector<std::pair<std::string, std::string>> entries) {
    return is_accepted(tensor(DataType::kFloat32, std::move(entries)), root_.string());
  }

  fs::path root_;
};

TEST_F(ExternalDataTest, ReadsEveryType) {
  for (const DataType dtype : all_types()) {
    if (dtype == DataType::kString) continue;
    const std::int64_t size = Dims{kElements}.size_bytes(dtype);
    const std::string bytes = bytes_for(dtype);
    std::ofstream(root_ / "typed.bin", std::ios::binary) << "......" << bytes;
    const auto with_length = [&](std::int64_t length) {
      return tensor(
          dtype, {{"location", "typed.bin"}, {"offset", "6"}, {"length", std::to_string(length)}});
    };
    const Tensor decoded = decode(with_length(size), root_.string());
    EXPECT_EQ(std::memcmp(decoded.raw(), bytes.data(), bytes.size()), 0) << dtype_name(dtype);
    EXPECT_FALSE(is_accepted(with_length(size - 1), root_.string())) << dtype_name(dtype);
    EXPECT_FALSE(is_accepted(with_length(size + 1), root_.string())) << dtype_name(dtype);
    const onnx::TensorProto late = tensor(dtype, {{"location", "typed.bin"}, {"offset", "7"}});
    EXPECT_FALSE(is_accepted(late, root_.string())) << dtype_name(dtype);
  }
}

TEST_F(ExternalDataTest, RefusesMalformedEntries) {
  EXPECT_TRUE(accepts({{"location", "data.bin"}}));
  EXPECT_TRUE(accepts({{"location", "data.bin"}, {"offset", "44"}, {"checksum", "?"}}));
  EXPECT_FALSE(accepts({}));
  EXPECT_FALSE(accepts({{"location", ""}}));
  EXPECT_FALSE(accepts({{"location", "data.bin"}, {"location", "data.bin"}}));
  EXPECT_FALSE(accepts({{"location", "data.bin"}, {"basepath", "/"}}));
  for (const char* number : {"-1", "+1", " 1", "1e3", "0x1", "99999999999999999999", "1 ", "a"}) {
    EXPECT_FALSE(accepts({{"location", "data.bin"}, {"offset", number}})) << number;
    EXPECT_FALSE(accepts({{"location", "data.bin"}, {"length", number}})) << number;
  }
  EXPECT_FALSE(accepts({{"location", "data.bin"}, {"offset", "45"}}));
  EXPECT_FALSE(accepts({{"location", "data.bin"}, {"offset", "9223372036854775807"}}));
}

TEST_F(ExternalDataTest, StaysInItsFolder) {
  std::ofstream(root_.string() + "-outside") << std::string(64, 'x');
  const std::string outside = "../" + root_.filename().string() + "-outside";
  EXPECT_FALSE(accepts({{"location", outside}}));
  EXPECT_FALSE(accepts({{"location", root_.string() + "-outside"}}));
  fs::remove(root_.string() + "-outside");
  // From bytes there is no folder.
  EXPECT_FALSE(is_accepted(tensor(DataType::kFloat32, {{"location", "data.bin"}})));
}

}  // namespace
}  // namespace onnxgrad::onnx_io::tensor_message_test
