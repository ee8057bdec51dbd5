#include <gtest/gtest.h>

#include "ops/testing/op_case.h"
#include "ops/text/utf8.h"

namespace onnxgrad::ops_test {
namespace strings {

std::string texts(const std::string& name, const std::string& list) {
  return name + " = Constant <value_strings = [" + list + "]> ()\n";
}

}  // namespace strings

// Strings are compared by Equal, whose output other runtimes support too.
std::vector<OpCase> strings_cases() {
  using strings::texts;
  std::vector<OpCase> cases;
  const auto add = [&](std::string name, std::string model, std::vector<std::string> outputs = {}) {
    cases.push_back({.name = std::move(name),
                     .model = std::move(model),
                     .inputs = {},
                     .outputs = std::move(outputs),
                     .no_gradient = "texts"});
  };
  add("concat", texts("a", R"("x", "", "yz")") + texts("b", R"("1", "2", "")") +
                    texts("wanted", R"("x1", "2", "z")") +
                    "joined = StringConcat (a, b)\ny = Equal (joined, wanted)");
  add("concat_one", texts("a", R"("x", "y")") + texts("b", R"("!")") +
                        texts("wanted", R"("x!", "y?")") +
                        "joined = StringConcat (a, b)\ny = Equal (joined, wanted)");
  const std::string split_texts = texts("x", R"("a-b--c", "-", "d", " e  f-")");
  add("split",
      split_texts + texts("wanted", R"("", "a", "b", "d")") +
          "parts, counts = StringSplit <delimiter = \"-\"> (x)\n"
          "y = Equal (parts, wanted)",
      {"counts", "y"});
  add("split_most",
      split_texts + texts("wanted", R"("b--c")") +
          "parts, counts = StringSplit <delimiter = \"-\", maxsplit = 1> (x)\n"
          "y = Equal (parts, wanted)",
      {"counts", "y"});
  add("split_space",
      split_texts + texts("wanted", R"("e", "f-")") +
          "parts, counts = StringSplit (x)\ny = Equal (parts, wanted)",
      {"counts", "y"});
  const std::string words = texts("x", R"("Monday", "monday", "Tuesday")");
  for (const std::string action : {"NONE", "LOWER", "UPPER"}) {
    for (const std::string sensitive : {"0", "1"}) {
      add("normalizer_" + action + "_" + sensitive,
          words + texts("wanted", R"("TUESDAY", "tuesday", "Monday", "MONDAY")") +
              "kept = StringNormalizer <case_change_action = \"" + action +
              "\", is_case_sensitive = " + sensitive +
              ", locale = \"C\", "
              "stopwords = [\"monday\"]> (x)\n" +
              "column = Unsqueeze (wanted, last)\ny = Equal (column, kept)");
      cases.back().inputs = {ints({1}).named("last")};
    }
  }
  add("normalizer_nothing_left",
      words + texts("empty", R"("")") +
          "kept = StringNormalizer <locale = \"C\", stopwords = [\"monday\", \"tuesday\"]> (x)\n"
          "y = Equal (kept, empty)");
  const std::string one_text = texts("one", R"("a b")");
  const std::string none = "x = Constant <value = string[0] {}> ()\n";
  const std::string one = texts("x", R"("a b")");
  add("concat_empty", none + one_text + "joined = StringConcat (x, one)\ny = Equal (joined, one)");
  add("split_empty", none + "parts, counts = StringSplit (x)", {"counts"});
  add("split_one", one + "parts, counts = StringSplit (x)", {"counts"});
  for (const std::string& given : {none, one}) {
    add(given == one ? "normalizer_one" : "normalizer_empty",
        given + one_text + "kept = StringNormalizer (x)\ny = Equal (kept, one)");
    if (given == none) {
      cases.back().expected = {std::vector<double>{}};
      cases.back().no_oracle = "onnxruntime wants a text";
    }
  }
  return cases;
}

std::vector<ErrorCase> strings_error_cases() {
  using strings::texts;
  return {{.name = "maxsplit",
           .model = texts("x", R"("a")") + "[parts] y, n = StringSplit <maxsplit = -1> (x)",
           .inputs = {},
           .error = "ModelError",
           .fragments = {"parts", "maxsplit"}},
          {.name = "concat_shapes",
           .model = texts("a", R"("a", "b")") + texts("b", R"("a", "b", "c")") +
                    "[joined] y = StringConcat (a, b)",
           .inputs = {},
           .error = "ShapeError",
           .fragments = {"joined"}},
          {.name = "case_change",
           .model = texts("x", R"("a")") +
                    "[kept] y = StringNormalizer <case_change_action = \"TITLE\"> (x)",
           .inputs = {},
           .error = "ModelError",
           .fragments = {"kept", "case_change_action"}}};
}

TEST(Utf8, CharactersGoThereAndBack) {
  const std::string text = "a\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80";
  EXPECT_EQ(ops::decode_utf8(text), U"a\u00e4\u20ac\U0001f600");
  EXPECT_EQ(ops::encode_utf8(ops::decode_utf8(text)), text);
}

TEST(Utf8, OtherBytesAreReplaced) {
  EXPECT_EQ(ops::decode_utf8("\xff"), U"\ufffd");
  EXPECT_EQ(ops::decode_utf8("\xe0\x80\x80").size(), 3U);  // overlong encoding
}

}  // namespace onnxgrad::ops_test
