#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "base/packed.h"
#include "ir/builder.h"
#include "onnxgrad/error.h"
#include "opdef/kernel.h"

// Maps are inputs of whole models only: tests/python/test_ml_dictionaries.py compares with
// onnxruntime. The cases here are invalid maps.

namespace onnxgrad::ops {
namespace dictionary_cpu {
void register_dictionary_cpu(opdef::KernelRegistry& registry);
}

namespace dictionary {

std::vector<Tensor> run(std::string op_type, std::vector<ir::Attribute> attributes,
                        const std::vector<Tensor>& parts) {
  opdef::KernelRegistry registry;
  dictionary_cpu::register_dictionary_cpu(registry);
  ir::Node node;
  node.op_type = op_type;
  node.attributes = std::move(attributes);
  return registry.dynamic(ir::kFusedDomain, op_type)(
      {.node = node, .inputs = {base::pack(parts)}, .run_subgraph = nullptr});
}

const std::vector<ir::Attribute> kVocabulary = {
    {"string_vocabulary", std::vector<std::string>{"b", "a", "c"}}};

Tensor texts(std::vector<std::string> values) {
  const auto count = static_cast<std::int64_t>(values.size());
  return Tensor::from_strings(std::move(values), {count});
}

Tensor whole(const std::vector<std::int64_t>& values) {
  return Tensor::from(values, {static_cast<std::int64_t>(values.size())});
}

}  // namespace dictionary

TEST(Dictionary, IsARowInTheVocabularysOrder) {
  using namespace dictionary;  // NOLINT(google-build-using-namespace): this file's own
  const auto row = run("DictVectorizer", kVocabulary, {texts({"a", "z", "b"}), whole({1, 2, 3})});
  EXPECT_THAT(row[0].data<std::int64_t>(), testing::ElementsAre(3, 1, 0));
  EXPECT_EQ(row[0].dims(), (Dims{1, 3}));
  const auto none = run("DictVectorizer", kVocabulary, {texts({}), whole({})});
  EXPECT_THAT(none[0].data<std::int64_t>(), testing::ElementsAre(0, 0, 0));
}

TEST(Dictionary, RefusesWhatIsNoMap) {
  using namespace dictionary;  // NOLINT(google-build-using-namespace): this file's own
  EXPECT_THROW(run("DictVectorizer", kVocabulary, {texts({"a"})}), DataError);
  EXPECT_THROW(run("DictVectorizer", kVocabulary, {texts({"a"}), whole({1, 2})}), DataError);
  EXPECT_THROW(run("DictVectorizer", kVocabulary, {whole({1}), whole({1})}), DataError);
  EXPECT_THROW(run("CastMap", {{"map_form", std::string("SPARSE")}, {"max_map", std::int64_t{2}}},
                   {whole({5}), texts({"1"})}),
               DataError);
  EXPECT_THROW(run("CastMap", {}, {whole({5}), texts({"one"})}), DataError);
}

}  // namespace onnxgrad::ops
