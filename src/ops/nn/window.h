#ifndef ONNXGRAD_OPS_NN_WINDOW_H_
#define ONNXGRAD_OPS_NN_WINDOW_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "opdef/function_body.h"
#include "opdef/op_def.h"

// Sliding windows of convolutions and pools. Along one axis, tap j of window o reads
// input position o * stride + j * dilation - pad_begin; positions outside [0, input) are padding.

namespace onnxgrad::ops {

enum class AutoPad : std::uint8_t { kNotset, kSameUpper, kSameLower, kValid };

/// Attributes shared by Conv, ConvTranspose and the pools, with defaults filled in.
struct WindowAttrs {
  AutoPad auto_pad = AutoPad::kNotset;
  std::vector<std::int64_t> kernel = {};     ///< empty: the weight's spatial dimensions
  std::vector<std::int64_t> strides = {};    ///< one per spatial axis
  std::vector<std::int64_t> dilations = {};  ///< one per spatial axis
  std::vector<std::int64_t> pads = {};       ///< all begins, then all ends; zeros with auto_pad
  bool ceil_mode = false;

  std::size_t rank() const { return strides.size(); }
  /// Returns true if the pads depend on the input's size.
  bool is_same() const {
    return auto_pad == AutoPad::kSameUpper || auto_pad == AutoPad::kSameLower;
  }
  /// Reads the attributes. Throws: ModelError (a list of the wrong length, pads together with
  /// auto_pad), naming node and attribute.
  static WindowAttrs read(const ir::Node& node, std::size_t spatial_rank);
};

struct WindowAxis {
  std::int64_t input = 1;
  std::int64_t output = 1;
  std::int64_t kernel = 1;
  std::int64_t stride = 1;
  std::int64_t dilation = 1;
  std::int64_t pad_begin = 0;
  std::int64_t pad_end = 0;

  /// Returns the length of a window on the input.
  std::int64_t extent() const { return (kernel - 1) * dilation + 1; }
  bool is_padded() const { return pad_begin != 0 || pad_end != 0; }
};

/// Returns how many of the first taps of a window read positions below `bound`; the first tap reads
/// window * stride - pad_begin.
inline std::int64_t taps_below(const WindowAxis& axis, std::int64_t window, std::int64_t bound) {
  const std::int64_t first = window * axis.stride - axis.pad_begin;
  const std::int64_t taps = bound <= first ? 0 : (bound - first - 1) / axis.dilation + 1;
  return std::min(taps, axis.kernel);
}

/// Calls f(tap, position) for the taps of a window that read inside the input, in order. The cost
/// does not depend on the number of taps in the padding.
template <class F>
void visit_taps(const WindowAxis& axis, std::int64_t window, F&& f) {
  const std::int64_t end = taps_below(axis, window, axis.input);
  for (std::int64_t tap = taps_below(axis, window, 0); tap < end; ++tap) {
    f(tap, window * axis.stride - axis.pad_begin + tap * axis.dilation);
  }
}

/// Returns the axes of a convolution or pool over an input with these spatial dimensions. `kernel`
/// is the weight's; it must agree with the attribute if that is given.
/// Throws: ShapeError (no window fits, sizes beyond 2^31), naming node and axis.
std::vector<WindowAxis> resolve_window(const ir::Node& node, const WindowAttrs& attrs,
                                       std::span<const std::int64_t> input,
                                       std::span<const std::int64_t> kernel);

/// Returns exactly three axes, padded with leading ones of size 1, as the kernels expect; `axes`
/// has at most three.
std::array<WindowAxis, 3> three_axes(std::span<const WindowAxis> axes);

/// Returns the attribute specifications of windows: `kernel_shape` (required or not), `strides`,
/// `dilations`, `pads`, `auto_pad`.
std::vector<opdef::AttributeSpec> window_attribute_specs(bool kernel_required);

/// Returns the part of a function's key that encodes the attributes, such as
/// "k3x3_s1x1_d1x1_p1x1x1x1" or "..._same_upper".
std::string window_key(const WindowAttrs& attrs);

/// Pads of one axis in a function's body, int64 [1] each; constants unless auto_pad makes them
/// depend on the input's size. x: [N, C, X...], y: [N, M, Y...]; w: [.., .., k...] is read only if
/// attrs.kernel is empty.
struct PadValues {
  ir::Value* begin = nullptr;
  ir::Value* end = nullptr;
};
std::vector<PadValues> pad_values(opdef::FunctionBody& f, const WindowAttrs& attrs, ir::Value* x,
                                  ir::Value* y, ir::Value* w);
/// Returns the kernel sizes, int64 [rank], from the attribute or else from w's shape.
ir::Value* kernel_dims(opdef::FunctionBody& f, const WindowAttrs& attrs, ir::Value* w);

/// Emits the transpose of "sum over windows" in a function's body, full[.., o * stride + j *
/// dilation] += y[.., o] * w[.., j], cropped to x's spatial dimensions. `y`: [N, M, O...], `w`: [M,
/// C / group, k...]; the result: [N, C, X...]. One ConvTranspose without pads and one Slice.
ir::Value* transposed_windows(opdef::FunctionBody& f, const WindowAttrs& attrs, std::int64_t group,
                              ir::Value* x, ir::Value* y, ir::Value* w);

/// Returns the problem for a ShapeError or ModelError at this node.
Problem problem_at(const ir::Node& node, std::string what, std::string detail, Hint hint);

}  // namespace onnxgrad::ops

#endif  // ONNXGRAD_OPS_NN_WINDOW_H_
