#ifndef ONNXGRAD_OPS_IMAGE_RESIZE_TABLE_H_
#define ONNXGRAD_OPS_IMAGE_RESIZE_TABLE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "onnxgrad/dims.h"

// Resize is a product with one matrix per axis. ResizeTable is the matrix of one axis in sparse
// form: which elements of the input, with which weights, make an element of the output. Its
// transpose is the matrix of the gradient.

namespace onnxgrad::ops {

/// y[o] = sum over t in [starts[o], starts[o + 1]) of weights[t] * x[indices[t]].
struct ResizeTable {
  std::int64_t input = 0;   ///< length of x
  std::int64_t output = 0;  ///< length of y
  std::vector<std::int32_t> starts = {};
  std::vector<std::int32_t> indices = {};
  std::vector<double> weights = {};

  /// Each element of the output is one of the input, or has none.
  bool is_selection() const;
  bool is_identity() const;
  ResizeTable transposed() const;
};

/// How one axis of a Resize node is mapped.
struct ResizeAxis {
  std::int64_t input = 0;
  std::int64_t output = 0;
  double scale = 1;
  double roi_start = 0;  ///< in units of input - 1
  double roi_end = 1;
};

/// The attributes of Resize.
struct ResizeAttrs {
  std::string mode = {};
  std::string coordinates = {};
  std::string nearest_mode = {};
  double cubic_a = -0.75;
  bool antialias = false;
  bool exclude_outside = false;

  /// Of a node with complete attributes. Throws: ModelError (antialias with mode nearest).
  static ResizeAttrs read(const ir::Node& node);
};

/// Elements of the output outside of a region of interest have no entries.
ResizeTable make_resize_table(const ResizeAttrs& attrs, const ResizeAxis& axis);

/// What a Resize node's inputs say, as far as they are given.
struct ResizeInputs {
  std::optional<std::vector<double>> roi = {};
  std::optional<std::vector<double>> scales = {};
  std::optional<std::vector<std::int64_t>> sizes = {};
};

/// One per axis of x, which becomes y. Throws: ModelError, ShapeError (scales that are not
/// positive, lists of another length, sizes that y does not have) naming the node.
std::vector<ResizeAxis> resolve_resize(const ir::Node& node, const Dims& x, const Dims& y,
                                       const ResizeInputs& inputs);

}  // namespace onnxgrad::ops

#endif  // ONNXGRAD_OPS_IMAGE_RESIZE_TABLE_H_
