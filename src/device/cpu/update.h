#ifndef ONNXGRAD_DEVICE_CPU_UPDATE_H_
#define ONNXGRAD_DEVICE_CPU_UPDATE_H_

#include <cstdint>

#include "device/isa.h"
#include "opdef/fused.h"

// Updates of weights by the rules of opdef/fused.h in one pass over memory, one set of loops per
// instruction set (update_simd.cpp). All other updates go through the element-wise kernel.

namespace onnxgrad::device {

using opdef::UpdateRule;
using opdef::WeightUpdate;

/// The gradient of a block of a weight: `rows` rows of `columns` elements, from element `first` of
/// the weight on.
template <class T>
struct GradientPart {
  const T* gradient = nullptr;
  std::int64_t gradient_row = 0;  ///< row stride of the gradient in elements
  std::int64_t first = 0;
  std::int64_t rows = 1;
  std::int64_t columns = 0;
  std::int64_t row = 0;  ///< row stride of the weight in elements
};

/// Arrays of an update: matrices of `rows` rows of `count` elements. new_w, new_m and new_v may be
/// w, m and v.
template <class T>
struct UpdateArrays {
  const T* gradient = nullptr;
  const T* w = nullptr;
  const T* m = nullptr;  ///< nullptr: plain descent
  const T* v = nullptr;  ///< for UpdateRule::kAdam
  T* new_w = nullptr;
  T* new_m = nullptr;
  T* new_v = nullptr;
  T rate = 0;
  T epsilon = 0;
  T shrink = 1;  ///< factor of w before the update: decoupled weight decay
  std::int64_t count = 0;
  std::int64_t rows = 1;
  std::int64_t row = 0;           ///< row stride of all arrays but the gradient, in elements
  std::int64_t gradient_row = 0;  ///< row stride of the gradient

  /// Returns `number` elements of the arrays from element `first` on.
  UpdateArrays<T> from(std::int64_t first, std::int64_t number) const {
    UpdateArrays part = *this;
    if (gradient != nullptr) part.gradient += first;
    part.skip(first);
    part.count = number;
    return part;
  }

  /// Returns the arrays of the elements whose gradient is `part`.
  UpdateArrays<T> with(const GradientPart<T>& part) const {
    UpdateArrays result = *this;
    result.skip(part.first);
    result.gradient = part.gradient;
    result.gradient_row = part.gradient_row;
    result.rows = part.rows;
    result.count = part.columns;
    result.row = part.row;
    return result;
  }

  /// Moves all arrays but the gradient by `elements`.
  void skip(std::int64_t elements) {
    w += elements;
    new_w += elements;
    if (m != nullptr) m += elements;
    if (new_m != nullptr) new_m += elements;
    if (v != nullptr) v += elements;
    if (new_v != nullptr) new_v += elements;
  }
};

template <class T>
using UpdateFn = void (*)(const WeightUpdate& spec, const UpdateArrays<T>& arrays);

/// Returns the loop for `spec`, for float or double. float: roots and quotients use estimates
/// with one Newton step each if the processor has them, or exact quotients where these are faster:
/// within 4 units in the last place with AVX-512, 8 with the estimates of other processors.
/// Denormals are flushed to zero.
template <class T>
UpdateFn<T> find_update(Isa isa, const WeightUpdate& spec);

/// Returns the loop of plain descent, new_w = w - rate * gradient: `spec`, m and v are not read.
template <class T>
UpdateFn<T> find_descent(Isa isa);

}  // namespace onnxgrad::device

#endif  // ONNXGRAD_DEVICE_CPU_UPDATE_H_
