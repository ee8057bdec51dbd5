#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "ops/testing/op_case.h"

// Only training steps of several workers have it: train/tools/workers_test.cpp runs them, and their
// files.

namespace onnxgrad::ops_test {

std::vector<OpCase> collective_cases() { return {}; }
std::vector<ErrorCase> collective_error_cases() { return {}; }

}  // namespace onnxgrad::ops_test
