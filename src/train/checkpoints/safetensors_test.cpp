#include "train/checkpoints/safetensors.h"

#include <gmock/gmock.h>

#include <cstring>

#include "train/testing/temporary_folder.h"

// The safetensors package reads what is written here, and the other way round, in
// tests/python/test_checkpoints.py.

namespace onnxgrad::train::safetensors_test {

using testing::HasSubstr;
using train_test::read_bytes;
using train_test::TemporaryFolder;
using train_test::write_bytes;

std::string file_of(const std::string& header, const std::string& data) {
  const std::uint64_t length = header.size();
  std::string head(8, '\0');
  std::memcpy(head.data(), &length, 8);
  return head + header + data;
}

std::string message_of(const TemporaryFolder& folder, const std::string& bytes) {
  write_bytes(folder.path("file"), bytes);
  try {
    (void)SafetensorsFile::open(folder.path("file"));
  } catch (const CheckpointError& error) {
    EXPECT_EQ(error.place().file, folder.path("file"));
    return error.what();
  }
  return "accepted";
}

TEST(Safetensors, RoundTripOfAllTypes) {
  const TemporaryFolder folder;
  NamedTensors tensors;
  for (const DataType dtype :
       {DataType::kBool, DataType::kUint8, DataType::kInt8, DataType::kUint16, DataType::kInt16,
        DataType::kFloat16, DataType::kBfloat16, DataType::kUint32, DataType::kInt32,
        DataType::kFloat32, DataType::kUint64, DataType::kInt64, DataType::kFloat64,
        DataType::kFloat8E4M3FN, DataType::kFloat8E5M2}) {
    Tensor tensor = Tensor::zeros(dtype, Dims{2, 3});
    for (std::int64_t i = 0; i < tensor.size_bytes(); ++i) {
      tensor.mutable_raw()[i] = static_cast<std::byte>(dtype == DataType::kBool ? i % 2 : i + 1);
    }
    tensors.push_back({.name = "\"" + std::string(dtype_name(dtype)) +
                               std::to_string(static_cast<int>(dtype)) + " \xc3\xa9",
                       .tensor = tensor});
  }
  tensors.push_back({.name = "", .tensor = Tensor::scalar(1.5)});
  tensors.push_back({.name = "none", .tensor = Tensor::zeros(DataType::kInt64, Dims{0, 7})});
  sort_for_safetensors(tensors);
  const SafetensorsMetadata metadata{{"a", "1"}, {"b", "\n\""}};
  write_safetensors(folder.path("file"), safetensors_head(tensors, metadata), tensors);
  const SafetensorsFile file = SafetensorsFile::open(folder.path("file"));
  EXPECT_EQ(file.metadata(), metadata);
  ASSERT_EQ(file.entries().size(), tensors.size());
  std::size_t found = 0;
  for (const SafetensorsEntry& entry : file.entries()) {
    EXPECT_EQ(entry.offset * 8 % size_bits(entry.dtype), 0);
    for (const NamedTensor& tensor : tensors) {
      if (tensor.name != entry.name) continue;
      ++found;
      EXPECT_TRUE(file.read(entry).equals(tensor.tensor)) << entry.name;
    }
  }
  EXPECT_EQ(found, tensors.size());
}

TEST(Safetensors, RefusesWhatItCannotWrite) {
  const auto head_of = [](const std::string& name, const Tensor& tensor) {
    return safetensors_head({{.name = name, .tensor = tensor}}, {});
  };
  EXPECT_THROW(head_of("x", Tensor::from_strings({"a"}, Dims{1})), CheckpointError);
  EXPECT_THROW(head_of("\xff", Tensor::scalar(1.0)), CheckpointError);
  EXPECT_THROW(head_of("__metadata__", Tensor::scalar(1.0)), CheckpointError);
  const NamedTensors twice{{.name = "x", .tensor = Tensor::scalar(1.0)},
                           {.name = "x", .tensor = Tensor::scalar(2.0)}};
  EXPECT_THROW(safetensors_head(twice, {}), CheckpointError);
  EXPECT_THROW(write_safetensors("/no/such/folder/file", "", {}), CheckpointError);
}

TEST(Safetensors, AcceptsWhatTheFormatAllows) {
  const TemporaryFolder folder;
  EXPECT_EQ(message_of(folder, file_of("{}", "")), "accepted");
  EXPECT_EQ(message_of(folder, file_of(R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}} )",
                                       std::string(8, 'x'))),
            "accepted");
  // Any order of the entries, spaces, empty tensors.
  EXPECT_EQ(message_of(folder, file_of(R"({ "b": {"data_offsets": [8, 10], "shape": [2],
      "dtype": "U8"}, "e": {"dtype": "I64", "shape": [0, 4], "data_offsets": [8, 8]},
      "a": {"dtype": "F32", "shape": [1, 2], "data_offsets": [0, 8]}, "__metadata__": {"k": "v"}})",
                                       std::string(10, 'x'))),
            "accepted");
}

struct Refusal {
  const char* header;
  std::size_t data_bytes;
  const char* says;
};

TEST(Safetensors, RefusesMalformedHeaders) {
  const TemporaryFolder folder;
  for (const Refusal& refusal : std::vector<Refusal>{
           {"", 0, "invalid JSON"},
           {"[]", 0, "a list where none belongs"},
           {"1", 0, "a number where none belongs"},
           {"\"x\"", 0, "a string where none belongs"},
           {"{", 0, "invalid JSON"},
           {"{}x", 0, "invalid JSON"},
           {"{\"\xff\":1}", 0, "invalid JSON"},
           {R"({"x":null})", 0, "a null"},
           {R"({"x":true})", 0, "a true or false"},
           {R"({"x":[]})", 0, "a list where none belongs"},
           {R"({"x":{}})", 0, "lacks dtype"},
           {R"({"x":{"dtype":"F32","shape":[]}})", 0, "lacks dtype"},
           {R"({"x":{"dtype":"F32","shape":[],"shape":[],"data_offsets":[0,4]}})", 4,
            "'shape' twice"},
           {R"({"x":{"dtype":"F32","dtype":"F32","shape":[],"data_offsets":[0,4]}})", 4,
            "a string"},
           {R"({"x":{"dtype":"C64","shape":[],"data_offsets":[0,8]}})", 8, "unknown type 'C64'"},
           {R"({"x":{"dtype":"F32","shape":[],"data_offsets":[0,4],"y":[]}})", 4,
            "unknown list 'y'"},
           {R"({"x":{"dtype":"F32","shape":[],"data_offsets":[0,4],"y":{}}})", 4, "an object"},
           {R"({"x":{"dtype":"F32","shape":[[1]],"data_offsets":[0,4]}})", 4, "a list where none"},
           {R"({"x":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4, "a negative number"},
           {R"({"x":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}})", 4, "not an integer"},
           {R"({"x":{"dtype":"F32","shape":[99999999999999999999],"data_offsets":[0,4]}})", 4,
            "not an integer"},
           {R"({"x":{"dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,4]}})", 4,
            "above 2^63"},
           {R"({"x":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0,
            "tensor 'x'"},
           {R"({"x":{"dtype":"F64","shape":[2305843009213693952],"data_offsets":[0,0]}})", 0,
            "tensor 'x'"},
           {R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4,
            "does not have the 8 bytes"},
           {R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", 4,
            "does not have the 4 bytes"},
           {R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0]}})", 4,
            "does not have the 4 bytes"},
           {R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4,4]}})", 4, "does not have"},
           {R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 3, "past the end"},
           {R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 5, "has 67 bytes"},
           {R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8, "gap or an overlap"},
           {R"({"x":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
            R"("y":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
            3, "gap or an overlap"},
           {R"({"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
            R"("x":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
            2, "'x' occurs twice"},
           {R"({"__metadata__":{"k":"1","k":"2"}})", 0, "'k' occur twice"},
           {R"({"__metadata__":{},"__metadata__":{}})", 0, "occurs twice"},
           {R"({"__metadata__":{"k":1}})", 0, "a number"},
           {R"({"__metadata__":{"k":{}}})", 0, "an object where none belongs"},
           {R"({"__metadata__":"k"})", 0, "a string where none belongs"},
       }) {
    EXPECT_THAT(message_of(folder, file_of(refusal.header, std::string(refusal.data_bytes, '\0'))),
                HasSubstr(refusal.says))
        << refusal.header;
  }
}

TEST(Safetensors, RefusesWrongLengthsBeforeAllocating) {
  const TemporaryFolder folder;
  EXPECT_THAT(message_of(folder, ""), HasSubstr("less than 8 bytes"));
  EXPECT_THAT(message_of(folder, "1234567"), HasSubstr("less than 8 bytes"));
  EXPECT_THAT(message_of(folder, std::string(8, '\xff') + "{}"),
              HasSubstr("its header has 184467"));
  EXPECT_THAT(message_of(folder, std::string("\3\0\0\0\0\0\0\0{}", 10)), HasSubstr("has 3 bytes"));
  // Ten thousand brackets do not use up the stack, 65 dimensions are too many.
  EXPECT_THAT(message_of(folder, file_of(std::string(10000, '['), "")), HasSubstr("a list"));
  std::string ones = "1";
  for (int i = 0; i < 64; ++i) ones += ",1";
  EXPECT_THAT(message_of(folder, file_of(R"({"x":{"dtype":"U8","shape":[)" + ones +
                                             R"(],"data_offsets":[0,1]}})",
                                         "x")),
              HasSubstr("64 dimensions"));
  EXPECT_THROW(SafetensorsFile::open(folder.path("none")), CheckpointError);
  EXPECT_THROW(SafetensorsFile::open(folder.path()), CheckpointError);
}

TEST(Safetensors, RefusesBoolsThatAreNone) {
  const TemporaryFolder folder;
  write_bytes(folder.path("file"),
              file_of(R"({"x":{"dtype":"BOOL","shape":[2],"data_offsets":[0,2]}})", "\1\2"));
  const SafetensorsFile file = SafetensorsFile::open(folder.path("file"));
  EXPECT_THROW(file.read(file.entries()[0]), CheckpointError);
}

}  // namespace onnxgrad::train::safetensors_test
