#ifndef ONNXGRAD_DEVICE_CPU_UPDATE_H_
#define ONNXGRAD_DEVICE_CPU_UPDATE_H_

#include <cstdint>

#include "onnxgrad/dtype.h"

// Updates of weights by momentum, Adam, Adagrad, RMSProp and Lion in one pass over memory, one set
// of loops per instruction set (update_simd.cpp). Everything else goes through the element-wise
// kernel.

namespace onnxgrad::device {

enum class UpdateRule : std::int32_t {
  kMomentum,
  kNesterov,
  kAdam,
  kRoot,
  kLion,
  kVelocity,
  kNesterovVelocity,
};

/// With g = gradient + decay * w and start = w, or shrink * w if `shrinks`:
///   kMomentum  m' = beta1 * m + g;  w' = start - rate * m'
///   kNesterov  m' = beta1 * m + g;  w' = start - rate * (g + beta1 * m')
///   kAdam      m' = beta1 * m + share1 * g;  v' = beta2 * v + share2 * g^2;
///              w' = start - rate * m' / (sqrt(v') + epsilon)
///   kRoot      m' = beta1 * m + share1 * g^2;  w' = start - rate * g / (sqrt(m') + epsilon)
///   kLion      w' = start - rate * sign(beta1 * m + share1 * g);  m' = beta2 * m + share2 * g
///   kVelocity  m' = beta1 * m - rate * g;  w' = start + m'
///   kNesterovVelocity  the same m';  w' = start + (beta1 * m' - rate * g)
struct UpdateSpec {
  UpdateRule rule = UpdateRule::kMomentum;
  double decay = 0;
  double beta1 = 0;
  double share1 = 1;
  double beta2 = 0;
  double share2 = 1;
  bool shrinks = false;
  bool operator==(const UpdateSpec&) const = default;
};

/// Arrays of `count` elements; w', m' and v' may be w, m and v.
template <class T>
struct UpdateArrays {
  const T* gradient = nullptr;
  const T* w = nullptr;
  const T* m = nullptr;
  const T* v = nullptr;  ///< kAdam
  T* new_w = nullptr;
  T* new_m = nullptr;
  T* new_v = nullptr;
  T rate = 0;
  T epsilon = 0;
  T shrink = 1;
  std::int64_t count = 0;

  /// The same arrays from element `first` on.
  UpdateArrays from(std::int64_t first, std::int64_t number) const {
    UpdateArrays part = *this;
    part.gradient += first;
    part.w += first;
    part.m += first;
    part.new_w += first;
    part.new_m += first;
    if (v != nullptr) part.v += first;
    if (new_v != nullptr) part.new_v += first;
    part.count = number;
    return part;
  }
};

template <class T>
using UpdateFn = void (*)(const UpdateSpec& spec, const UpdateArrays<T>& arrays);

/// The loop for `spec`, for float or double. float: roots and quotients come from estimates
/// with a Newton step each where the processor has them: within 4 units in the last place with
/// AVX-512, 8 with the estimates of other processors. Denormal numbers count as zero.
template <class T>
UpdateFn<T> find_update(const UpdateSpec& spec);

}  // namespace onnxgrad::device

#endif  // ONNXGRAD_DEVICE_CPU_UPDATE_H_
