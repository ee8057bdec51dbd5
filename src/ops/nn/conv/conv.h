#ifndef ONNXGRAD_OPS_NN_CONV_CONV_H_
#define ONNXGRAD_OPS_NN_CONV_CONV_H_

#include <array>
#include <cstdint>
#include <vector>

#include "onnxgrad/dims.h"
#include "ops/nn/window.h"

// Conv, ConvTranspose and their gradients are three computations on the same three tensors,
//   x: [batch, groups * in_channels, I...]      w: [groups * out_channels, in_channels, k...]
//   y: [batch, groups * out_channels, O...]
//   forward:         y = sum over channels and taps of w * x      (Conv; input gradient of
//                    ConvTranspose)
//   backward data:   x = the transpose of forward, from y and w   (ConvTranspose; input gradient
//                    of Conv)
//   backward weight: w = sum over batch and windows of y * x      (weight gradient of both)
// Kernels are written for a ConvShape and serve every operator that needs the computation.

namespace onnxgrad::ops {

struct ConvShape {
  std::int64_t batch = 0;
  std::int64_t groups = 1;
  std::int64_t in_channels = 0;         ///< per group
  std::int64_t out_channels = 0;        ///< per group
  std::size_t spatial_rank = 0;         ///< spatial axes of the operator, 1 to 3
  std::array<WindowAxis, 3> axes = {};  ///< input: I, output: O

  std::int64_t input_size() const { return axes[0].input * axes[1].input * axes[2].input; }
  std::int64_t output_size() const { return axes[0].output * axes[1].output * axes[2].output; }
  std::int64_t kernel_size() const { return axes[0].kernel * axes[1].kernel * axes[2].kernel; }
  /// Returns the number of multiplications and additions of each of the three computations.
  double flops() const;
};

/// Returns the spatial rank of a Conv or ConvTranspose: from kernel_shape, the weight or the input.
/// Throws: GradientError if none determines it.
std::size_t conv_spatial_rank(const ir::Node& node, const ir::Value* x, const ir::Value* w);

/// Returns the shape of a Conv of `x` with `w`; also for ConvInputGrad and ConvWeightGrad, whose
/// nodes carry the Conv's attributes. Throws: ShapeError, ModelError, naming the node.
ConvShape conv_shape(const ir::Node& node, const Dims& x, const Dims& w);

/// Returns the shape of a ConvTranspose: its input is y, its output x.
ConvShape conv_transpose_shape(const ir::Node& node, const Dims& y, const Dims& w);

/// Returns the attributes for a call of a gradient function with these windows; pads are explicit
/// unless SAME.
std::vector<ir::Attribute> conv_call_attributes(const WindowAttrs& attrs, std::int64_t group);

}  // namespace onnxgrad::ops

#endif  // ONNXGRAD_OPS_NN_CONV_CONV_H_
