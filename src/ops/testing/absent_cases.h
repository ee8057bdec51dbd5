#ifndef ONNXGRAD_OPS_TESTING_ABSENT_CASES_H_
#define ONNXGRAD_OPS_TESTING_ABSENT_CASES_H_

#include <vector>

#include "ops/testing/op_case.h"

// Absent inputs and outputs of every operator that has cases, derived from these cases and from
// ONNX's schemas: only what an operator cannot do without is listed by hand.

namespace onnxgrad::ops_test {

/// Cases with one optional input named "", with names "" for all optional inputs (outputs) that a
/// case does not list, and with one optional output named "": one for each operator
/// and position. They are tested like all other cases.
std::vector<OpCase> absent_cases(const std::vector<OpCase>& cases);

/// One for each operator and each required input and output, including elements of lists of
/// inputs. The message names the node and the schema's name of what is missing.
std::vector<ErrorCase> absent_error_cases(const std::vector<OpCase>& cases);

}  // namespace onnxgrad::ops_test

#endif  // ONNXGRAD_OPS_TESTING_ABSENT_CASES_H_
