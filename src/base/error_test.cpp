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
