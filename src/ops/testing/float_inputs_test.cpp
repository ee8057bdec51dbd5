#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "onnxgrad/error.h"
#include "ops/testing/case_runner.h"

// Perturbs every floating-point input of every case, including inputs that the case holds constant
// and inputs that no rule lists: where finite differences find a derivative, the rule must give it
// or refuse the gradient. This finds rules that return zero for a nonzero gradient.

namespace onnxgrad::ops_test {
namespace float_inputs {

bool is_floating_input(const CaseInput& input) {
  return input.dtype == DataType::kUndefined || is_floating(input.dtype);
}

bool is_checked_anyway(const OpCase& op_case, std::size_t input) {
  const CaseInput& one = op_case.inputs[input];
  return op_case.no_gradient.empty() && op_case.wrt.empty() && !one.is_constant &&
         one.dtype == DataType::kUndefined;
}

// Returns the cases with one more input fed and differentiated, one at a time.
std::vector<OpCase> all() {
  std::vector<OpCase> variants;
  for (const OpCase& op_case : all_op_cases()) {
    const std::vector<std::string> names = input_names(op_case);
    for (std::size_t i = 0; i < op_case.inputs.size(); ++i) {
      if (!is_floating_input(op_case.inputs[i]) || is_checked_anyway(op_case, i)) continue;
      OpCase variant = op_case;
      variant.name += "." + names[i];
      variant.no_gradient.clear();
      variant.wrt = {names[i]};
      variant.inputs[i].is_constant = false;
      variant.inputs[i].dtype = DataType::kUndefined;  // float64
      // Operators of ai.onnx.ml compute in float32.
      if (!variant.domains.empty()) variant.tolerance = 5e-2;
      variants.push_back(std::move(variant));
    }
  }
  return variants;
}

// The scales of Resize and of quantized tensors are float32 for any type of data. ONNX's node tests
// check those gradients, in float32; here the case builds, or the gradient is refused.
bool is_float32_alone(const OpCase& variant) {
  OpCase narrow = variant;
  const std::vector<std::string> names = input_names(variant);
  const auto moved =
      static_cast<std::size_t>(std::ranges::find(names, variant.wrt[0]) - names.begin());
  try {
    build_case(variant, {});
    return false;
  } catch (const ModelError& error) {
    if (error.problem().what.find("a type that the operator does not accept") ==
        std::string::npos) {
      return false;
    }
  } catch (const Error&) {
    return false;
  }
  narrow.inputs[moved].dtype = DataType::kFloat32;
  try {
    build_case(narrow, {});
  } catch (const GradientError&) {
    return true;
  }
  return true;
}

}  // namespace float_inputs

TEST(FloatInputs, HaveTheirGradientOrAreRefused) {
  for (const OpCase& variant : float_inputs::all()) {
    SCOPED_TRACE(variant.name);
    if (float_inputs::is_float32_alone(variant)) continue;
    // By definition, its gradient is not the derivative of its output.
    if (variant.name.starts_with("linear_quantization.straight_through")) continue;
    try {
      for (const Difference& difference :
           check_case_gradient(variant, builtin_ops(), /*only_where_smooth=*/true)) {
        ADD_FAILURE() << difference.to_string() << "\n" << model_text(variant, {});
      }
    } catch (const GradientError& error) {
      const std::string text = error.what();
      EXPECT_FALSE(error.problem().where.op_type.empty()) << text;
      EXPECT_NE(text.find("'" + variant.wrt[0] + "'"), std::string::npos) << text;
    } catch (const DataError&) {
      // At the edge of the allowed range, such as a probability of 1, it cannot be perturbed.
    } catch (const ShapeError& error) {
      // Some operators accept no float64 there; their gradients are tested in Python.
      EXPECT_NE(std::string(error.what()).find("float64"), std::string::npos) << error.what();
    } catch (const ModelError& error) {
      EXPECT_NE(std::string(error.what()).find("float64"), std::string::npos) << error.what();
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
  }
}

}  // namespace onnxgrad::ops_test
