#include <gtest/gtest.h>

#include <string>
#include <type_traits>
#include <vector>

#include "base/check.h"
#include "onnxgrad/error.h"

namespace onnxgrad {
namespace {

// A Problem without a hint does not compile.
template <class P>
concept HasNoHint = requires { P{.what = "what"}; };
template <class P>
concept HasHint = requires { P{.what = "what", .hint = "Fix it."}; };
static_assert(!HasNoHint<Problem> && HasHint<Problem>);
static_assert(!std::is_default_constructible_v<Problem>);
static_assert(!std::is_default_constructible_v<Hint>);
static_assert(!std::is_constructible_v<Error, std::string>);

TEST(Error, OffersTheNearestName) {
  const std::vector<std::string> names{"coefficient", "intercept"};
  EXPECT_EQ(base::nearest_or("coeficient", names), "Did you mean 'coefficient'?");
  EXPECT_EQ(base::nearest_or("zzz", names, "Take one."), "Take one.");
  EXPECT_EQ(base::nearest_or(std::string(1000, 'c'), names, "Take one."), "Take one.");
  EXPECT_EQ(base::quote_list(names, 1), "'coefficient', ... (2 in total)");
}

TEST(Error, NamesCannotBreakLinesOrControlATerminal) {
  const std::string name = "a\nb\x1b[2J\x7f\xc2\x9b\t\\";
  const std::string shown = "a\\nb\\x1b[2J\\x7f\\x9b\\x09\\";
  EXPECT_EQ(base::printable(name), shown);
  EXPECT_EQ(base::printable(shown), shown);
  EXPECT_EQ(base::printable("gr\xc3\xbc\xc3\x9f"), "gr\xc3\xbc\xc3\x9f");
  const ModelError error({.what = "bad '" + name + "'",
                          .where = {.file = name, .graph = name, .node = name, .value = name},
                          .detail = "one\ntwo\x1b",
                          .hint = "Rename '\x1b'."});
  EXPECT_EQ(std::string(error.what()), "node '" + shown + "': bad '" + shown +
                                           "'\n  one\ntwo\\x1b\n  In graph '" + shown +
                                           "' of file '" + shown + "'.\n  Rename '\\x1b'.");
  EXPECT_EQ(error.place().value, name);  // for programs
}

TEST(Error, HasAtMostSixLinesAndThePlace) {
  const ShapeError error(
      {.what = "shape [2], expected [3]",
       .where = {.file = "m.onnx", .graph = "main", .node = "n", .op_type = "Add"},
       .detail = "because",
       .hint = "Do this."});
  EXPECT_STREQ(error.what(),
               "Add node 'n': shape [2], expected [3]\n  because\n"
               "  In graph 'main' of file 'm.onnx'.\n  Do this.");
  EXPECT_EQ(error.kind(), "ShapeError");
}

}  // namespace
}  // namespace onnxgrad
