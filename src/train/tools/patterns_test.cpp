#include "train/tools/patterns.h"

#include <gmock/gmock.h>

#include "onnxgrad/error.h"

namespace onnxgrad::train::patterns_test {

TEST(Patterns, MatchWholeNames) {
  EXPECT_TRUE(glob_match("fc1.weight", "fc1.weight"));
  EXPECT_FALSE(glob_match("fc1", "fc1.weight"));
  EXPECT_TRUE(glob_match("fc*", "fc1.weight"));
  EXPECT_TRUE(glob_match("*.weight", "fc1.weight"));
  EXPECT_TRUE(glob_match("*1*t", "fc1.weight"));
  EXPECT_TRUE(glob_match("fc?.weight", "fc1.weight"));
  EXPECT_FALSE(glob_match("fc?.weight", "fc12.weight"));
  EXPECT_TRUE(glob_match("*", ""));
  EXPECT_TRUE(glob_match("**", "a"));
  EXPECT_FALSE(glob_match("", "a"));
  EXPECT_FALSE(glob_match("?", ""));
}

TEST(Patterns, DoNotTakeExponentialTime) {
  EXPECT_FALSE(glob_match("*a*a*a*a*a*a*a*a*a*a*b", std::string(5000, 'a')));
}

TEST(Patterns, OneThatMatchesNothingIsAnError) {
  const std::vector<WeightNames> names{{.name = "coefficient"}, {.name = "intercept"}};
  EXPECT_THAT(match_patterns(std::vector<std::string>{"inter*"}, names, "weight"),
              testing::ElementsAre(false, true));
  try {
    match_patterns(std::vector<std::string>{"coeficient"}, names, "weight");
    FAIL();
  } catch (const ModelError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("Did you mean 'coefficient'?"));
  }
}

TEST(Patterns, MatchAliasesToo) {
  const std::vector<WeightNames> weights{{.name = "fc.bias"},
                                         {.name = "val_7", .aliases = {"fc.weight"}}};
  const auto match = [&](const std::string& pattern) {
    return match_patterns(std::vector<std::string>{pattern}, weights, "weight");
  };
  EXPECT_THAT(match("fc*"), testing::ElementsAre(true, true));
  EXPECT_THAT(match("*weight"), testing::ElementsAre(false, true));
  EXPECT_THAT(match("val_7"), testing::ElementsAre(false, true));
  try {
    match("fc.wieght");
    FAIL();
  } catch (const ModelError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("Did you mean 'fc.weight'?"));
  }
}

}  // namespace onnxgrad::train::patterns_test
