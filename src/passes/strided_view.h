#ifndef ONNXGRAD_PASSES_STRIDED_VIEW_H_
#define ONNXGRAD_PASSES_STRIDED_VIEW_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "ir/graph.h"
#include "opdef/attention.h"

// Tensors that nodes only rearrange (Transpose, Reshape, Expand, Slice, Split, Gather of one
// index), as strides on the tensor that they rearrange: a kernel that takes strides needs no copy.

namespace onnxgrad::passes {

/// The path of each logical axis through a dense tensor. An axis may consist of several parts, the
/// outermost first: so every Reshape that keeps or divides parts is a view.
class AxisView {
 public:
  struct Part {
    std::int64_t size = 1;
    std::int64_t stride = 0;
    bool operator==(const Part&) const = default;
  };
  using Axis = std::vector<Part>;

  AxisView() = default;
  /// A view of a whole dense tensor.
  explicit AxisView(std::span<const std::int64_t> dims);
  bool operator==(const AxisView&) const = default;

  std::size_t rank() const { return axes_.size(); }
  /// A view of the elements in order with other dimensions; nullopt if a part cannot be divided
  /// evenly.
  std::optional<AxisView> reshaped(std::span<const std::int64_t> dims) const;
  AxisView permuted(std::span<const std::int64_t> perm) const;
  AxisView with_last_axes_swapped() const;
  /// A view that is repeated along axes of size 1 and new leading axes.
  AxisView broadcast(std::span<const std::int64_t> dims) const;
  /// A view of elements first, first + step, ... of an axis; nullopt if it has several parts.
  std::optional<AxisView> sliced(std::size_t axis, std::int64_t first, std::int64_t count,
                                 std::int64_t step) const;
  std::optional<AxisView> selected(std::size_t axis, std::int64_t index) const;
  /// The view as matrices: leading axes part by part, then one part for each of the last two axes;
  /// nullopt if one of these has more.
  std::optional<opdef::StridedView> matrices() const;

 private:
  static void append(Axis& axis, Part part);

  std::int64_t offset_ = 0;
  std::vector<Axis> axes_;  // have no parts of size 1; adjacent parts are merged if possible
};

/// Elements of `base`, a dense tensor.
struct ValueView {
  ir::Value* base = nullptr;
  AxisView view = {};
  bool operator==(const ValueView&) const = default;
};

/// The ways to read `value` in place, from the tensor farthest back to `value` itself.
std::vector<ValueView> views_of(ir::Value* value);

/// The input of a node as a view of the tensor that `output` is a view of, if the node returns all
/// elements of input 0, each once; nullopt for any other node.
std::optional<AxisView> undo(const ir::Node& node, const AxisView& output);

/// True for Reshape, Flatten, Squeeze and Unsqueeze of ai.onnx.
bool is_reshape(const ir::Node& node);

}  // namespace onnxgrad::passes

#endif  // ONNXGRAD_PASSES_STRIDED_VIEW_H_
