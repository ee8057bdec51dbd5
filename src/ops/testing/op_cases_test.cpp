#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

#include "onnxgrad/error.h"
#include "ops/testing/case_runner.h"

// Properties that every sample case is tested for; see op_case.h.

namespace onnxgrad::ops_test {
namespace properties {

constexpr double kSameArithmetic = 1e-12;  // float64, another order of operations
constexpr double kSameFloat32 = 1e-6;      // float32, another order of operations

template <class Case>
std::string test_name(const ::testing::TestParamInfo<Case>& info) {
  std::string name = info.param.name;
  for (char& c : name) {
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  }
  return name;
}

std::vector<OpCase> select(bool (*wanted)(const OpCase&)) {
  std::vector<OpCase> cases = all_op_cases();
  std::erase_if(cases, [wanted](const OpCase& one) { return !wanted(one); });
  return cases;
}

CaseResult run(const OpCase& op_case, const CaseVariant& variant, bool fuse = true) {
  return run_case(op_case, build_case(op_case, variant), {.fuse = fuse});
}

void expect_same(const CaseResult& given, const CaseResult& expected, double tolerance) {
  ASSERT_EQ(given.outputs.size(), expected.outputs.size());
  ASSERT_EQ(given.gradients.size(), expected.gradients.size());
  // Operators of ai.onnx.ml and their gradients compute in float32 for any input type.
  if (std::ranges::any_of(given.outputs,
                          [](const Tensor& t) { return t.dtype() == DataType::kFloat32; })) {
    tolerance = std::max(tolerance, kSameFloat32);
  }
  for (std::size_t i = 0; i < given.outputs.size(); ++i) {
    EXPECT_EQ(compare(given.outputs[i], expected.outputs[i], tolerance), "") << "output " << i;
  }
  for (std::size_t i = 0; i < given.gradients.size(); ++i) {
    EXPECT_EQ(compare(given.gradients[i], expected.gradients[i], tolerance), "")
        << "gradient " << i;
  }
}

}  // namespace properties

class GradientTest : public ::testing::TestWithParam<OpCase> {};

TEST_P(GradientTest, EqualsFiniteDifferences) {
  const OpCase& op_case = GetParam();
  const BuiltCase built = build_case(op_case, {});
  ASSERT_FALSE(built.wrt.empty()) << "nothing to differentiate by: say why in no_gradient";
  ASSERT_FALSE(built.seeded_outputs.empty()) << "no floating output: say why in no_gradient";
  for (const Difference& difference : check_case_gradient(op_case)) {
    ADD_FAILURE() << difference.to_string() << "\n" << model_text(op_case, {});
  }
}

INSTANTIATE_TEST_SUITE_P(All, GradientTest,
                         ::testing::ValuesIn(properties::select([](const OpCase& one) {
                           return one.no_gradient.empty();
                         })),
                         properties::test_name<OpCase>);

class CaseTest : public ::testing::TestWithParam<OpCase> {};

TEST_P(CaseTest, FusedEqualsUnfused) {
  const CaseVariant variant{.dtype = DataType::kFloat64};
  properties::expect_same(properties::run(GetParam(), variant, true),
                          properties::run(GetParam(), variant, false), properties::kSameArithmetic);
}

TEST_P(CaseTest, Float32EqualsFloat64) {
  properties::expect_same(properties::run(GetParam(), {.dtype = DataType::kFloat32}),
                          properties::run(GetParam(), {.dtype = DataType::kFloat64}),
                          GetParam().tolerance_float32);
}

TEST_P(CaseTest, HasTheExpectedValues) {
  const OpCase& op_case = GetParam();
  EXPECT_TRUE(op_case.tolerance == 1e-6 || !op_case.tolerance_reason.empty());
  for (const DataType dtype : {DataType::kFloat64, DataType::kFloat32}) {
    const CaseResult result = properties::run(op_case, {.dtype = dtype});
    for (std::size_t i = 0; i < op_case.expected.size(); ++i) {
      const Tensor expected = Tensor::from(op_case.expected[i], result.outputs.at(i).dims());
      const double tolerance =
          dtype == DataType::kFloat64 ? properties::kSameArithmetic : op_case.tolerance_float32;
      EXPECT_EQ(compare(result.outputs[i], expected, tolerance), "") << "output " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, CaseTest, ::testing::ValuesIn(all_op_cases()),
                         properties::test_name<OpCase>);

class SymbolicTest : public ::testing::TestWithParam<OpCase> {};

TEST_P(SymbolicTest, SymbolicDimensionsGiveTheSame) {
  const OpCase& op_case = GetParam();
  properties::expect_same(properties::run(op_case, {.dtype = DataType::kFloat64, .symbolic = true}),
                          properties::run(op_case, {.dtype = DataType::kFloat64}),
                          properties::kSameArithmetic);
}

INSTANTIATE_TEST_SUITE_P(All, SymbolicTest,
                         ::testing::ValuesIn(properties::select([](const OpCase& one) {
                           return one.static_only.empty();
                         })),
                         properties::test_name<OpCase>);

class ErrorCaseTest : public ::testing::TestWithParam<ErrorCase> {};

TEST_P(ErrorCaseTest, IsRefused) {
  const ErrorCase& error_case = GetParam();
  const OpCase op_case = as_op_case(error_case);
  try {
    run_case(op_case, build_case(op_case, {}));
    ADD_FAILURE() << "not refused:\n" << model_text(op_case, {});
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), error_case.error) << error.what();
    for (const std::string& fragment : error_case.fragments) {
      EXPECT_NE(std::string(error.what()).find(fragment), std::string::npos)
          << "'" << fragment << "' is not in: " << error.what();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, ErrorCaseTest, ::testing::ValuesIn(all_error_cases()),
                         properties::test_name<ErrorCase>);

TEST(OpCases, NamesAreUnique) {
  std::set<std::string> names;
  for (const OpCase& op_case : all_op_cases()) {
    EXPECT_TRUE(names.insert(op_case.name).second) << op_case.name;
  }
  names.clear();
  for (const ErrorCase& error_case : all_error_cases()) {
    EXPECT_TRUE(names.insert(error_case.name).second) << error_case.name;
  }
}

}  // namespace onnxgrad::ops_test
