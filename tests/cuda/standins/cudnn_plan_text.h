#ifndef ONNXGRAD_TESTS_CUDA_STANDINS_CUDNN_PLAN_TEXT_H_
#define ONNXGRAD_TESTS_CUDA_STANDINS_CUDNN_PLAN_TEXT_H_

#include <optional>
#include <string>
#include <vector>

#include "cudnn_operations.h"

// Plans as text, in place of cuDNN's JSON: numbers in the order of the members.

namespace onnxgrad::cuda_standin {

struct DnnPlanText {
  int engine = 0;
  std::vector<DnnOperation> operations = {};
};

std::string to_text(const DnnPlanText& plan);
/// nullopt: `text` is not what to_text() writes.
std::optional<DnnPlanText> plan_from(const std::string& text);

}  // namespace onnxgrad::cuda_standin

#endif  // ONNXGRAD_TESTS_CUDA_STANDINS_CUDNN_PLAN_TEXT_H_
