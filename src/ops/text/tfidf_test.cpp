#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {
namespace tfidf {

// Pool of the unigrams 2, 3, 5, 4 and the bigrams 5 6, 7 8, 6 7.
std::string model(const std::string& mode, int least, int most, int skip, bool has_weights) {
  return "y = TfIdfVectorizer <mode = \"" + mode +
         "\", min_gram_length = " + std::to_string(least) +
         ", max_gram_length = " + std::to_string(most) +
         ", max_skip_count = " + std::to_string(skip) +
         ", ngram_counts = [0, 4], ngram_indexes = [0, 1, 2, 3, 4, 5, 6], "
         "pool_int64s = [2, 3, 5, 4, 5, 6, 7, 8, 6, 7]" +
         (has_weights ? ", weights = [0.5, 2.0, 3.0, 1.0, 0.25, 4.0, 8.0]" : "") + "> (x)";
}

}  // namespace tfidf

std::vector<OpCase> tfidf_cases() {
  std::vector<OpCase> cases;
  const CaseInput words = values({1, 1, 3, 3, 3, 7, 8, 6, 7, 5, 6, 8}, {12}, DataType::kInt64);
  const CaseInput rows = values({1, 1, 3, 3, 3, 7, 8, 6, 7, 5, 6, 8}, {2, 6}, DataType::kInt32);
  const auto add = [&](std::string name, std::string model, CaseInput x) {
    cases.push_back({.name = std::move(name),
                     .model = std::move(model),
                     .inputs = {std::move(x)},
                     .no_gradient = "words"});
  };
  for (const std::string mode : {"TF", "IDF", "TFIDF"}) {
    add(mode, tfidf::model(mode, 1, 2, 2, mode != "TF"), words);
    add(mode + "_rows", tfidf::model(mode, 1, 2, 0, mode != "TF"), rows);
  }
  add("pairs", tfidf::model("TF", 2, 2, 5, false), words);
  add("single_words", tfidf::model("TF", 1, 1, 3, false), words);
  add("one_word", tfidf::model("TF", 1, 2, 0, false), values({3}, {1}, DataType::kInt64));
  add("no_words", tfidf::model("TF", 1, 2, 0, false), values({}, {0}, DataType::kInt64));
  cases.push_back({.name = "texts",
                   .model = "x = Constant <value_strings = [\"b\", \"a\", \"c\", \"a\"]> ()\n"
                            "y = TfIdfVectorizer <mode = \"TF\", min_gram_length = 1, "
                            "max_gram_length = 2, max_skip_count = 1, ngram_counts = [0, 2], "
                            "ngram_indexes = [1, 0, 3], pool_strings = [\"a\", \"b\", \"a\", "
                            "\"a\"]> (x)",
                   .inputs = {},
                   .no_gradient = "texts"});
  return cases;
}

std::vector<ErrorCase> tfidf_error_cases() {
  return {{.name = "pool",
           .model = "[grams] y = TfIdfVectorizer <mode = \"TF\", min_gram_length = 1, "
                    "max_gram_length = 1, max_skip_count = 0, ngram_counts = [0, 7], "
                    "ngram_indexes = [0], pool_int64s = [1]> (x)",
           .inputs = {values({1, 2}, {2}, DataType::kInt64)},
           .error = "ModelError",
           .fragments = {"grams", "ngram_counts"}},
          {.name = "mode",
           .model = "[grams] y = TfIdfVectorizer <mode = \"COUNT\", min_gram_length = 1, "
                    "max_gram_length = 1, max_skip_count = 0, ngram_counts = [0], "
                    "ngram_indexes = [0], pool_int64s = [1]> (x)",
           .inputs = {values({1, 2}, {2}, DataType::kInt64)},
           .error = "ModelError",
           .fragments = {"grams", "mode"}}};
}

}  // namespace onnxgrad::ops_test
