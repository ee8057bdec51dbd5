#ifndef ONNXGRAD_DEVICE_TESTING_INSTRUCTION_SETS_H_
#define ONNXGRAD_DEVICE_TESTING_INSTRUCTION_SETS_H_

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <cstdint>

namespace onnxgrad::device {

/// Calls f once for each instruction set of this machine that kernels are compiled for; kernels
/// prepared within f use it. Not thread-safe.
template <class F>
void for_each_instruction_set(F f) {
  constexpr std::int64_t kSets[] = {HWY_AVX3, HWY_AVX2, HWY_SSE4, HWY_NEON};
  const std::int64_t supported = hwy::SupportedTargets();
  for (const std::int64_t set : kSets) {
    if ((supported & set) == 0) continue;
    SCOPED_TRACE(hwy::TargetName(set));
    hwy::SetSupportedTargetsForTest(set);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    f();
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    if (testing::Test::HasFatalFailure()) return;
  }
}

}  // namespace onnxgrad::device

#endif  // ONNXGRAD_DEVICE_TESTING_INSTRUCTION_SETS_H_
