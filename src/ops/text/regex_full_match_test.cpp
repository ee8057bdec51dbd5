#include <string>

#include "ops/testing/op_case.h"

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
  add("unicode", ".\\\\p{L}[\xc3\xa0-\xc3\xbf]", R"("\xe2\x82\xac\xc3\xa4\xc3\xa4", "abc")");
  add("nested", "(a*)*b", '"' + std::string(20'000, 'a') + '"');  // takes linear time
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
           .fragments = {"filter", "(a"}},
          {.name = "too_large",
           .model = "x = Constant <value_strings = [\"a\"]> ()\n"
                    "[filter] y = RegexFullMatch <pattern = \"((a{1000}){1000}){1000}\"> (x)",
           .inputs = {},
           .error = "ModelError",
           .fragments = {"filter", "repetition"}}};
}

}  // namespace onnxgrad::ops_test
