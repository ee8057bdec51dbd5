#ifndef ONNXGRAD_OPS_FUSED_LINEAR_STEP_SIMD_H_
#define ONNXGRAD_OPS_FUSED_LINEAR_STEP_SIMD_H_

#include <cstdint>

#include "device/isa.h"

namespace onnxgrad::ops {

/// Operands of opdef::LinearStep, which has the formulas.
template <class T>
struct LinearStepCall {
  const T* x = nullptr;       ///< [rows, features]
  const T* weight = nullptr;  ///< [features]
  const T* target = nullptr;  ///< [rows]
  T* new_weight = nullptr;    ///< [features]; may be `weight`
  T* sums = nullptr;          ///< [features], for X^T z; only if rows > 1 and features > 8
  std::int64_t rows = 0;
  std::int64_t features = 0;
  T offset = 0;  ///< bias * b + shift
  T target_factor = -1;
  T weight_step = 0;  ///< multiplied by the learning rate

  struct Sums {
    T squares = 0;  ///< sum(z^2)
    T values = 0;   ///< sum(z)
  };
};

/// Kernel that writes the new weight and returns the sums over z.
template <class T>
using LinearStepFn = typename LinearStepCall<T>::Sums (*)(const LinearStepCall<T>& call);

/// Returns the fastest kernel of an instruction set.
LinearStepFn<float> linear_step_float(device::Isa isa, std::int64_t features);
LinearStepFn<double> linear_step_double(device::Isa isa, std::int64_t features);

}  // namespace onnxgrad::ops

#endif  // ONNXGRAD_OPS_FUSED_LINEAR_STEP_SIMD_H_
