#ifndef ONNXGRAD_DEVICE_CPU_ELEMENTWISE_SPACE_H_
#define ONNXGRAD_DEVICE_CPU_ELEMENTWISE_SPACE_H_

#include <cstdint>
#include <span>
#include <vector>

#include "onnxgrad/dims.h"

namespace onnxgrad::device {

/// An index space with as few axes as possible: axes of length 1 are dropped, neighbours that all
/// operands traverse alike are merged. The last axis is the run of the inner loops. At least one
/// axis.
struct Space {
  std::vector<std::int64_t> dims;
  /// Per operand and axis, in elements; 0: broadcast. The last one is 0 or 1.
  std::vector<std::vector<std::int64_t>> strides;

  std::int64_t run() const { return dims.back(); }
  std::int64_t rows() const;
  /// True if operand `i` has an element for each index, in row-major order.
  bool is_dense(std::size_t i) const;
  /// True if operand `i` is one element.
  bool is_single(std::size_t i) const;
  bool moves_along_run(std::size_t i) const { return strides[i].back() != 0; }
};

/// Makes the space of shape F, `full`. `operands`: shapes that broadcast to it. If `reduced` is not
/// empty it has a flag per axis of F, and one more operand is added: the dense result, whose stride
/// over reduced axes is 0.
Space make_space(const Dims& full, std::span<const Dims> operands,
                 const std::vector<bool>& reduced);

}  // namespace onnxgrad::device

#endif  // ONNXGRAD_DEVICE_CPU_ELEMENTWISE_SPACE_H_
