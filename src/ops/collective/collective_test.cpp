#include <gtest/gtest.h>

#include <vector>

#include "ops/testing/op_case.h"

// Collectives occur only in training steps of several workers, which train/tools/workers_test.cpp
// runs.

namespace onnxgrad::ops_test {

std::vector<OpCase> collective_cases() { return {}; }
std::vector<ErrorCase> collective_error_cases() { return {}; }

}  // namespace onnxgrad::ops_test
