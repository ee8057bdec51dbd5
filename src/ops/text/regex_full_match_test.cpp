#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

#include "ops/testing/op_case.h"
#include "ops/text/regex_program.h"
#include "ops/text/utf8.h"

namespace onnxgrad::ops_test {

std::vector<OpCase> regex_full_match_cases() {
  std::vector<OpCase> cases;
  const auto add = [&](std::string name, const std::string& pattern, const std::string& texts) {
    cases.push_back({.name = std::move(name),
                     .model = "x = Constant <value_strings = [" + texts +
                              "]> ()\ny = RegexFullMatch <pattern = \"" + pattern + "\"> (x)",
                     .inputs = {},
                     .no_gradient = "texts"});
  };
  add("literal", "abc", R"("abc", "abcd", "ab", "", "xabc")");
  add("classes", "[a-c]+[^0-9]?x{2,3}", R"("axx", "abc.xxx", "a7xx", "xxx", "bxxxx")");
  add("alternatives", "(cat|dog)s?|", R"("cat", "dogs", "", "catdog", "cats ")");
  add("flags", "(?i)straSSe.*", R"("STRASSE 7", "strasse", "stra")");
  for (const std::string size : {"0", "1"}) {
    cases.push_back({.name = "size_" + size,
                     .model = "x = Constant <value = string[" + size + "] {" +
                              (size == "1" ? "\"a\"" : "") +
                              "}> ()\ny = RegexFullMatch <pattern = \"a\"> (x)",
                     .inputs = {},
                     .no_gradient = "texts"});
  }
  return cases;
}

std::vector<ErrorCase> regex_full_match_error_cases() {
  return {{.name = "pattern",
           .model = "x = Constant <value_strings = [\"a\"]> ()\n"
                    "[filter] y = RegexFullMatch <pattern = \"(a\"> (x)",
           .inputs = {},
           .error = "ModelError",
           .fragments = {"filter", "(a"}}};
}

namespace regex_full_match {

using ops::RegexProgram;

bool matches(const std::string& pattern, const std::string& text) {
  return RegexProgram(pattern).matches(text);
}

TEST(RegexProgram, RepetitionsAreExact) {
  EXPECT_TRUE(matches("a{2}", "aa"));
  EXPECT_FALSE(matches("a{2}", "aaa"));
  EXPECT_TRUE(matches("(ab){1,2}c*?", "abab"));
  EXPECT_TRUE(matches("a{2,}", "aaaaa"));
  EXPECT_FALSE(matches("a{2,}", "a"));
  EXPECT_TRUE(matches("a{,2}", "a{,2}"));  // no repetition
  EXPECT_TRUE(matches("(a|b)*c+d?", "abbacc"));
  EXPECT_TRUE(matches("(a*)*", "aaa"));
  EXPECT_TRUE(matches("x(a|)+y", "xy"));
}

TEST(RegexProgram, AssertionsLookAtBothSides) {
  EXPECT_TRUE(matches(R"(\bab\b)", "ab"));
  EXPECT_FALSE(matches(R"(a\bb)", "ab"));
  EXPECT_TRUE(matches(R"(a\Bb)", "ab"));
  EXPECT_TRUE(matches("^a$", "a"));
  EXPECT_FALSE(matches("a\n^b", "a\nb"));
  EXPECT_TRUE(matches("(?m)a$\n^b", "a\nb"));
}

TEST(RegexProgram, ClassesTakeWhatRe2Takes) {
  EXPECT_TRUE(matches(R"([\d\-x[:upper:]]+)", "7-xQ"));
  EXPECT_TRUE(matches("[]a]+", "]a"));
  EXPECT_TRUE(matches("[^[:^digit:]]", "7"));
  EXPECT_FALSE(matches(".", "\n"));
  EXPECT_TRUE(matches("(?s).", "\n"));
  EXPECT_TRUE(matches(R"(\x41\x{e4}\t)", "A\xc3\xa4\t"));
  EXPECT_TRUE(matches(R"(\Qa.b|\E*)", "a.b||"));
  EXPECT_TRUE(matches("(?i:A)b", "ab"));
  EXPECT_FALSE(matches("(?i:a)b", "AB"));
  EXPECT_TRUE(matches("(?P<name>a)(?<other>b)", "ab"));
}

TEST(RegexProgram, CharactersAreThoseOfUtf8) {
  EXPECT_TRUE(matches("...", "\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80"));
  EXPECT_TRUE(matches("[\xc3\xa0-\xc3\xbf]", "\xc3\xa4"));
  EXPECT_TRUE(matches(".", "\xff"));
  EXPECT_EQ(ops::decode_utf8("\xe0\x80\x80").size(), 3U);  // too long a form
  const std::string text = "a\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80";
  EXPECT_EQ(ops::encode_utf8(ops::decode_utf8(text)), text);
}

TEST(RegexProgram, TimeIsLinearInTheText) {
  EXPECT_FALSE(matches("(a*)*b", std::string(20'000, 'a')));
  EXPECT_FALSE(matches("(a|aa)+$b", std::string(20'000, 'a')));
  std::string nested = "a";
  for (int i = 0; i < 100; ++i) nested = "(" + nested + ")*";
  EXPECT_TRUE(matches(nested, "aaaa"));
}

TEST(RegexProgram, WrongPatternsAreRefused) {
  for (const char* pattern : {"(",
                              ")",
                              "a)",
                              "[a",
                              "*a",
                              "a**",
                              "a{3,2}",
                              "a{1001}",
                              "[z-a]",
                              "\\",
                              R"(\p{L})",
                              R"(\C)",
                              "(?=a)",
                              "(?z)",
                              "[[:word]",
                              "[[:letter:]]",
                              R"(\x{110000})",
                              R"(\xg)",
                              "((a{1000}){1000}){1000}",
                              "(?P<a"}) {
    EXPECT_THROW(RegexProgram{pattern}, std::invalid_argument) << pattern;
  }
  EXPECT_THROW(RegexProgram(std::string(1000, '(')), std::invalid_argument);
}

}  // namespace regex_full_match
}  // namespace onnxgrad::ops_test
