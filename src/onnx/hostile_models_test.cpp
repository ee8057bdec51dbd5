#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <onnx/onnx_pb.h>

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "base/memory_budget.h"
#include "onnx/model_io.h"
#include "opdef/registry.h"

// Models that ONNX's own code would never end on or read past an end for, and others that are to be
// refused early and by name.

namespace onnxgrad::onnx_io::hostile_models_test {
namespace {

using testing::HasSubstr;

constexpr const char* kHeader = "<ir_version: 8, opset_import: [\"\" : 18, \"f\" : 1]>\n";

// The message that loading and upgrading end with.
std::string error_of(const std::string& text) {
  const opdef::OpRegistry none;
  try {
    to_internal(load_text(kHeader + text), none);
  } catch (const InternalError& error) {
    ADD_FAILURE() << error.what();
  } catch (const Error& error) {
    return std::string(error.kind()) + ": " + error.what();
  }
  return "no error";
}

std::string einsum(const std::string& equation, const std::string& inputs = "x") {
  return "y = Einsum <equation = \"" + equation + "\"> (" + inputs + ")";
}

TEST(HostileModels, EquationsAreReadBeforeOnnxReadsThem) {
  const auto main_error = [](const std::string& body) {
    return error_of("g (float[3, 3] x) => (float[?, ?] y) { [node] " + body + " }");
  };
  for (const char* wrong : {"ii>", "ij-", "i.j", "i..j", "ij.", "i1", "ij->i>", "ij->i-", "ij->.i",
                            "......", "...i...", "i(", "ij->ik", "ij->ii", "ij->->i"}) {
    const std::string error = main_error(einsum(wrong));
    EXPECT_THAT(error, HasSubstr("ModelError")) << wrong;
    EXPECT_THAT(error, HasSubstr("equation")) << wrong;
    EXPECT_THAT(error, HasSubstr("node")) << wrong;
  }
  for (const char* right : {"ij->ji", "ij", "ii->i", "ii", " i j -> j ", "...->...", "...ij->...",
                            "i...->...i", "ij->", "aB->Ba", ""}) {
    EXPECT_THAT(error_of("g (float[3, 3] x) => (y) { " + einsum(right) + " }"),
                testing::AnyOf("no error", HasSubstr("no type")))
        << right;
  }
  EXPECT_THAT(main_error(einsum("ij,jk->ik")), HasSubstr("2 terms"));
  EXPECT_EQ(main_error(einsum("ij,jk->ik", "x, x")), "no error");
}

TEST(HostileModels, EquationsInFunctionsAndBranchesAreReadToo) {
  EXPECT_THAT(error_of("g (float[3, 3] x) => (float[3] y) { y = f.F(x) }\n"
                       "<domain: \"f\", opset_import: [\"\" : 18]> F (x) => (y) { " +
                       einsum("ii>") + " }"),
              HasSubstr("equation"));
  EXPECT_THAT(error_of("g (float[3, 3] x) => (float[3] y) { y = f.F <equation = \"ii>\"> (x) }\n"
                       "<domain: \"f\", opset_import: [\"\" : 18]> F <equation> (x) => (y) "
                       "{ y = Einsum <equation: string = @equation> (x) }"),
              HasSubstr("equation"));
  EXPECT_THAT(error_of("g (float[3, 3] x, bool c) => (float[3] y) { y = If (c) "
                       "<then_branch = t () => (a) { a = Einsum <equation = \"ij-\"> (x) }, "
                       "else_branch = e () => (b) { b = Einsum <equation = \"ii->i\"> (x) }> }"),
              HasSubstr("equation"));
}

TEST(HostileModels, ASliceOfAShapeWithAHugeStepEnds) {
  const auto slice = [](const std::string& step) {
    return error_of(
        "g (float[3, 4, 5] x) => (float[?] y) <int64[1] a = {0}, int64[1] b = {3}, "
        "int64[1] axes = {0}, int64[1] step = {" +
        step + "}> { s = Shape(x) t = Slice(s, a, b, axes, step) y = ConstantOfShape(t) }");
  };
  for (const char* step :
       {"4294967296", "2147483647", "-4294967296", "-9223372036854775808", "2"}) {
    EXPECT_EQ(slice(step), "no error") << step;
  }
}

TEST(HostileModels, ListsAndNumbersHaveTheirRank) {
  const auto with_list = [](const std::string& type, const std::string& call) {
    return error_of("g (float[2, 3] x) => (float[?, ?] y) <int64" + type +
                    "> { [node] y = " + call + " }");
  };
  EXPECT_THAT(with_list("[1, 2] s = {3, 2}", "Reshape(x, s)"), HasSubstr("'s' is int64[1, 2]"));
  EXPECT_THAT(with_list("[1, 2] s = {2, 3}", "Expand(x, s)"), HasSubstr("expected a list"));
  EXPECT_THAT(with_list("[1, 2] s = {2, 3}", "Tile(x, s)"), HasSubstr("ShapeError"));
  EXPECT_THAT(with_list("[1, 1] s = {1}", "ReduceSum(x, s)"), HasSubstr("expected a list or"));
  EXPECT_THAT(with_list("[2] s = {1, 1}", "CumSum(x, s)"), HasSubstr("expected one number"));
  EXPECT_EQ(with_list("[2] s = {3, 2}", "Reshape(x, s)"), "no error");
  EXPECT_EQ(with_list("[1] s = {1}", "CumSum(x, s)"), "no error");
}

TEST(HostileModels, UpdatesFitTheirIndices) {
  const auto elements = [](const std::string& updates) {
    return error_of("g (float[3, 4] x, int64[2, 4] i, float[" + updates +
                    "] u) => (float[3, 4] y) { [node] y = ScatterElements(x, i, u) }");
  };
  EXPECT_EQ(elements("2, 4"), "no error");
  EXPECT_THAT(elements("2, 3"), HasSubstr("ShapeError"));
  EXPECT_THAT(elements("2, 4, 1"), HasSubstr("expected rank 2"));
  const auto blocks = [](const std::string& updates) {
    return error_of("g (float[3, 4] x, int64[2, 1] i, float[" + updates +
                    "] u) => (float[3, 4] y) { [node] y = ScatterND(x, i, u) }");
  };
  EXPECT_EQ(blocks("2, 4"), "no error");
  EXPECT_THAT(blocks("2, 3"), HasSubstr("'u'"));
  EXPECT_THAT(blocks("3, 4"), HasSubstr("'u'"));
  EXPECT_THAT(blocks("2"), HasSubstr("expected rank 2"));
}

TEST(HostileModels, AbsentOperandsAreNamed) {
  EXPECT_THAT(error_of("g (float[2] x) => (float[?] y) { [node] y = Concat <axis = 0> (x, \"\") }"),
              testing::AllOf(HasSubstr("ModelError"), HasSubstr("'node'"), HasSubstr("inputs")));
  // An input that a call of a function omits is absent inside.
  EXPECT_THAT(error_of("g (float[2] x) => (float[2] y) { [call] y = f.F(x, \"\") }\n"
                       "<domain: \"f\", opset_import: [\"\" : 18]> F (a, b) => (c) "
                       "{ [inside] c = Sum(a, b) }"),
              testing::AllOf(HasSubstr("inside"), HasSubstr("data_0")));
  EXPECT_THAT(error_of("g (float[2] x) => (int64[1] i) <int64[1] k = {1}> "
                       "{ [node] \"\", i = TopK(x, k) }"),
              HasSubstr("output Values has no name"));
}

TEST(HostileModels, BytesThatAreHandedOnUnreadAreMessages) {
  onnx::ModelProto model;
  model.set_ir_version(8);
  model.add_opset_import()->set_version(18);
  model.mutable_graph()->set_name("g");
  std::string bytes = model.SerializeAsString();
  const auto loads = [](const std::string& content) {
    try {
      load_bytes(content);
    } catch (const ModelError&) {
      return false;
    }
    return true;
  };
  EXPECT_TRUE(loads(bytes));
  // Field 20, training_info, with one byte that is not a message.
  EXPECT_FALSE(loads(bytes + std::string("\xa2\x01\x01\xff", 4)));
  EXPECT_TRUE(loads(bytes + std::string("\xa2\x01\x00", 3)));
  // A tag of six bytes: protobuf reads five at most.
  EXPECT_FALSE(loads(bytes + std::string("\x88\x80\x80\x80\x80\x00\x08", 7)));
}

TEST(HostileModels, AFileAboveTheLimitIsRefusedUnread) {
  const auto path = std::filesystem::temp_directory_path() /
                    ("onnxgrad_large_" + std::to_string(::getpid()) + ".onnx");
  std::ofstream(path) << "x";
  std::filesystem::resize_file(path, std::uintmax_t{1} << 31);  // sparse
  const base::MemoryBudgetScope scope(std::make_shared<base::MemoryBudget>(1 << 20));
  try {
    load_file(path);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), "ModelError");
    EXPECT_THAT(error.what(), HasSubstr("2147483648 bytes"));
    EXPECT_THAT(error.what(), HasSubstr("external data"));
  }
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace onnxgrad::onnx_io::hostile_models_test
