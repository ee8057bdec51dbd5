#include <string>

#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {
namespace tokenizer {

// Returns a case that outputs the positions of known tokens, which all runtimes support, instead of
// strings.
OpCase call(std::string name, const std::string& texts, const std::string& attributes,
            const std::string& wanted) {
  return {.name = std::move(name),
          .model = "last = Constant <value_ints = [-1]> ()\nx = Constant <value = string" + texts +
                   "> ()\nwanted = Constant <value_strings = [" + wanted +
                   "]> ()\ntokens = com.microsoft.Tokenizer <" + attributes +
                   "> (x)\nshape = Shape (tokens)\n"
                   "column = Unsqueeze (tokens, last)\n"
                   "y = Equal (column, wanted)",
          .inputs = {},
          .outputs = {"shape", "y"},
          .no_gradient = "texts",
          .domains = {{"com.microsoft", 1}}};
}

}  // namespace tokenizer

std::vector<OpCase> tokenizer_cases() {
  using tokenizer::call;
  const std::string plain = "mark = 0, mincharnum = 1, pad_value = \"#\", ";
  const std::string marked = "mark = 1, mincharnum = 1, pad_value = \"\", ";
  const std::string long_ones = "mark = 0, mincharnum = 3, pad_value = \"#\", ";
  const std::string sentence = R"([3] {"the cat, and dogs", "", "a 12 bcd"})";
  OpCase no_texts = call("no_texts", "[0] {}", plain + "tokenexp = \"[a-z]\"", R"("a")");
  no_texts.no_oracle = "onnxruntime's result has one axis less than its schema declares";
  no_texts.expected = {{0, 0}, {}};
  return {
      no_texts,
      call("expression", sentence, plain + "tokenexp = \"[a-z]+\"", R"("cat", "#", "bcd")"),
      call("marks", sentence, marked + "tokenexp = \"[a-z]+\"", R"("cat", "", "\x02", "\x03")"),
      call("long_tokens", sentence, long_ones + "tokenexp = \"[a-z]+\"", R"("dogs", "cat", "bcd")"),
      call("after_a_short_match", R"([1] {"abcd"})", long_ones + "tokenexp = \"ab|bcd\"",
           R"("bcd", "ab")"),
      call("longest_match", R"([2] {"foobar", "foo bar"})", plain + "tokenexp = \"foo|foobar|o+?\"",
           R"("foobar", "foo", "o")"),
      call("empty_matches", R"([2] {"baab", "b"})", plain + "tokenexp = \"a*\"", R"("aa", "#")"),
      call("anchors", R"([2] {"abab", "b ab"})", plain + "tokenexp = \"\\\\bab|^b\"",
           R"("ab", "b")"),
      call("characters_of_utf8", "[2] {\"\xc3\xa4\xc3\xb6\xc3\xbc\", \"\xe2\x82\xac x\"}",
           long_ones + "tokenexp = \"[^ ]+\"", "\"\xc3\xa4\xc3\xb6\xc3\xbc\", \"\xe2\x82\xac\""),
      call("matrix", R"([2, 2] {"a b", "c", "d e f", ""})", marked + "separators = [\" \"]",
           R"("a", "f", "")"),
      call("separators", R"([2] {"a1bc,2d", "1b"})", plain + "separators = [\"[0-9]b\", \"[0-9]\"]",
           R"("a", "c,", "d", "#")"),
      call("parts_by_themselves", R"([2] {"aXaXc", "aaXc"})",
           plain + "separators = [\"X\", \"^a\"]", R"("a", "c", "#")"),
      call("empty_separations", R"([2] {"foo bar", "a b"})", plain + "separators = [\"\\\\b\"]",
           R"("oo", "ar", "#")"),
      call("longest_separator", R"([1] {"axab"})", plain + "separators = [\"x|xa\"]",
           R"("a", "b", "ab")"),
      call("separators_first", R"([1] {"a b"})", plain + "separators = [\" \"], tokenexp = \"b\"",
           R"("a", "b")"),
      call("characters",
           "[2] {\"\xc3\xa4"
           "b\", \"\"}",
           marked + "separators = [\"\"]", "\"\xc3\xa4\", \"b\", \"\""),
      call("no_tokens", R"([2] {"...", "?"})", marked + "tokenexp = \"[a-z]\"", R"("a")"),
  };
}

std::vector<ErrorCase> tokenizer_error_cases() {
  const auto refused = [](std::string name, const std::string& attributes, std::string fragment) {
    return ErrorCase{.name = std::move(name),
                     .model =
                         "x = Constant <value_strings = [\"a\"]> ()\n"
                         "[words] y = com.microsoft.Tokenizer <" +
                         attributes + "> (x)",
                     .inputs = {},
                     .error = "ModelError",
                     .fragments = {"words", std::move(fragment)},
                     .domains = {{"com.microsoft", 1}}};
  };
  const std::string rest = "mark = 0, pad_value = \"#\", mincharnum = ";
  return {refused("pattern", rest + "1, tokenexp = \"(a\"", "(a"),
          refused("separator", rest + "1, separators = [\"a\", \"[\"]", "["),
          refused("neither", rest + "1", "tokenexp"),
          refused("long_characters", rest + "2, separators = [\"\"]", "mincharnum"),
          refused("least", rest + "0, tokenexp = \"a\"", "mincharnum"),
          refused("no_mark", "mincharnum = 1, pad_value = \"#\", tokenexp = \"a\"", "mark"),
          {.name = "rank",
           .model = "x = Constant <value = string[1, 1, 1] {\"a\"}> ()\n"
                    "[words] y = com.microsoft.Tokenizer <" +
                    rest + "1, tokenexp = \"a\"> (x)",
           .inputs = {},
           .error = "ShapeError",
           .fragments = {"words"},
           .domains = {{"com.microsoft", 1}}}};
}

}  // namespace onnxgrad::ops_test
