#ifndef ONNXGRAD_OPS_TESTING_ABSENT_CASES_H_
#define ONNXGRAD_OPS_TESTING_ABSENT_CASES_H_

#include <vector>

#include "ops/testing/op_case.h"

// Absent inputs and outputs of every operator that has cases, derived from these cases and from
// ONNX's schemas: nothing is listed by hand but what an operator cannot do without.

namespace onnxgrad::ops_test {

/// Cases with one optional input named "", with names "" for all optional inputs (outputs) that a
/// case does not list, and with one output named "" that need not be there: one for each operator
/// and position. They go through everything that other cases go through.
std::vector<OpCase> absent_cases(const std::vector<OpCase>& cases);

/// One for each operator and each input and output that must be there, elements of lists of inputs
/// among them. The message names the node and the schema's name of what is missing.
std::vector<ErrorCase> absent_error_cases(const std::vector<OpCase>& cases);

}  // namespace onnxgrad::ops_test

#endif  // ONNXGRAD_OPS_TESTING_ABSENT_CASES_H_
