#include <limits>

#include "opdef/registry.h"
#include "ops/rules.h"

namespace onnxgrad::ops::tfidf_op {

// TfIdfVectorizer: counts the n-grams of a pool in each row of strings or integers.
void register_tfidf(opdef::OpRegistry& registry) {
  const auto number = [](std::string_view name, std::int64_t min) {
    return AttributeSpec{.name = name,
                         .type = AttributeType::kInt,
                         .required = true,
                         .min = min,
                         .max = std::numeric_limits<std::int32_t>::max()};
  };
  const auto list = [](std::string_view name, AttributeType type, bool is_required) {
    return AttributeSpec{
        .name = name, .type = type, .required = is_required, .max_count = std::size_t{1} << 31};
  };
  auto indexes = list("ngram_indexes", AttributeType::kInts, true);
  indexes.min = 0;
  indexes.max = std::numeric_limits<std::int32_t>::max();
  auto weights = list("weights", AttributeType::kFloats, false);
  weights.min_count = 1;
  registry.add({.op_type = "TfIdfVectorizer",
                .since_version = 9,
                .attributes = {number("max_gram_length", 1),
                               number("max_skip_count", 0),
                               number("min_gram_length", 1),
                               {.name = "mode",
                                .type = AttributeType::kString,
                                .required = true,
                                .choices = {"TF", "IDF", "TFIDF"}},
                               list("ngram_counts", AttributeType::kInts, true),
                               indexes,
                               list("pool_int64s", AttributeType::kInts, false),
                               list("pool_strings", AttributeType::kStrings, false),
                               weights},
                .zero_gradient = true});
}

}  // namespace onnxgrad::ops::tfidf_op
