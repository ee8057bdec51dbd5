#ifndef ONNXGRAD_OPS_TESTING_ABSENT_CASES_H_
#define ONNXGRAD_OPS_TESTING_ABSENT_CASES_H_

#include <vector>

#include "ops/testing/op_case.h"

// Cases with absent inputs and outputs for every operator, derived from its other cases and ONNX's
// schemas: only inputs that an operator needs are listed by hand.

namespace onnxgrad::ops_test {

/// Returns cases with one optional input named "", with names "" for all optional inputs (outputs)
/// that a case does not list, and with one optional output named "": one for each operator and
/// position. They are tested like all other cases.
std::vector<OpCase> absent_cases(const std::vector<OpCase>& cases);

/// Returns one error case for each operator and each required input and output, including elements
/// of variadic inputs. The message names the node and the schema's name of the missing input.
std::vector<ErrorCase> absent_error_cases(const std::vector<OpCase>& cases);

}  // namespace onnxgrad::ops_test

#endif  // ONNXGRAD_OPS_TESTING_ABSENT_CASES_H_
