#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {
namespace impute {

OpCase ml(std::string name, const std::string& call, std::vector<CaseInput> inputs,
          std::string no_gradient = "a lookup is constant almost everywhere") {
  return ml_call(std::move(name), call, std::move(inputs), std::move(no_gradient));
}

}  // namespace impute

std::vector<OpCase> impute_cases() {
  using impute::ml;
  const std::string none;
  const CaseInput x = uniform({4, 3}, -2, 2);
  OpCase vectors = ml("vectors", "FeatureVectorizer <inputdimensions = [3, 1]> (a, b)",
                      {x, uniform({4, 1}, -1, 1)}, none);
  vectors.tolerance = 0.05;
  vectors.tolerance_reason = "differences of float32 results carry their rounding";
  return {
      ml("number",
         "Imputer <imputed_value_floats = [1.0, 2.0, 3.0], replaced_value_float = 0.5> (x)",
         {values({0.5, 1, 2, 3, 0.5, 4}, {2, 3})}, "it jumps at what is replaced"),
      ml("one", "Imputer <imputed_value_floats = [1.0]> (x)", {uniform({1, 3}, 1, 2)}, none),
      ml("ints", "Imputer <imputed_value_int64s = [7], replaced_value_int64 = 2> (x)",
         {integers({3, 2}, 0, 4)}),
      ml("no_rows", "Imputer <imputed_value_floats = [1.0]> (x)", {uniform({0, 3}, -1, 1)}, none),
      ml("binarizer", "Binarizer <threshold = 0.25> (x)", {x}, none),
      ml("binarizer_ints", "Binarizer (x)", {integers({3, 1}, -2, 2)}),
      ml("binarizer_no_rows", "Binarizer (x)", {uniform({0, 3}, -1, 1)}, none),
      vectors,
      ml("vectors_no_rows", "FeatureVectorizer (a)",
         {uniform({0, 3}, -1, 1).as(DataType::kFloat32)}, "float32 only"),
  };
}

std::vector<ErrorCase> impute_error_cases() {
  const CaseInput x = uniform({4, 3}, -2, 2);
  return {
      ml_refused("count", "Imputer <imputed_value_floats = [1.0, 2.0]> (x)", {x}, "ModelError",
                 "imputed_value_floats"),
      ml_refused("threshold", "Binarizer <threshold = 1> (x)", {x}, "ModelError", "threshold"),
      ml_refused("dimensions", "FeatureVectorizer <inputdimensions = [2]> (x)", {x}, "ShapeError",
                 "3 columns"),
  };
}

}  // namespace onnxgrad::ops_test
