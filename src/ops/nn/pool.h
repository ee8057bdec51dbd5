#ifndef ONNXGRAD_OPS_NN_POOL_H_
#define ONNXGRAD_OPS_NN_POOL_H_

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "onnxgrad/dims.h"
#include "ops/nn/window.h"

namespace onnxgrad::ops {

/// Shape of a pool: x [planes / C, C, I...] to y [planes / C, C, O...], each plane separately.
struct PoolShape {
  std::int64_t planes = 0;              ///< batch size times channels
  std::size_t spatial_rank = 0;         ///< spatial axes of the operator, 1 to 3
  std::array<WindowAxis, 3> axes = {};  ///< input: I, output: O

  std::int64_t input_size() const { return axes[0].input * axes[1].input * axes[2].input; }
  std::int64_t output_size() const { return axes[0].output * axes[1].output * axes[2].output; }
};

/// Returns the spatial rank given by the node's kernel_shape. Throws: ModelError.
std::size_t pool_spatial_rank(const ir::Node& node);

/// Returns the shape of a pool of `x`. The axes are meaningful only up to rank 3.
/// Throws: ShapeError, ModelError (a window entirely in the padding), naming the node.
PoolShape pool_shape(const ir::Node& node, const Dims& x);

/// Returns the number of elements that a window of AveragePool divides by, along one axis: taps
/// inside the input or, with `include_pad`, inside the input and its declared padding.
std::int64_t count_taps(const WindowAxis& axis, std::int64_t window, bool include_pad);

}  // namespace onnxgrad::ops

namespace onnxgrad::ops::pool_op {

/// Returns the body of MaxPoolGrad for opsets before 16, where ScatterElements cannot add: see
/// older_bodies.h.
ir::Function max_pool_grad_before_16(std::string_view base_name,
                                     const std::vector<ir::Value*>& inputs,
                                     const std::vector<ir::Attribute>& attributes);

}  // namespace onnxgrad::ops::pool_op

#endif  // ONNXGRAD_OPS_NN_POOL_H_
