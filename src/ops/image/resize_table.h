#ifndef ONNXGRAD_OPS_IMAGE_RESIZE_TABLE_H_
#define ONNXGRAD_OPS_IMAGE_RESIZE_TABLE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "onnxgrad/dims.h"
#include "opdef/kernel.h"

// Resize is a product with one matrix per axis. ResizeTable is the matrix of one axis in sparse
// (CSR-like) form: the input elements of each output element with their weights. Its transpose is
// the matrix of the gradient.

namespace onnxgrad::ops {

/// Sparse matrix of one axis: y[o] = sum over t in [starts[o], starts[o + 1]) of weights[t] *
/// x[indices[t]].
struct ResizeTable {
  std::int64_t input = 0;   ///< length of x
  std::int64_t output = 0;  ///< length of y
  std::vector<std::int32_t> starts = {};
  std::vector<std::int32_t> indices = {};
  std::vector<double> weights = {};

  /// Returns true if every element of the output is a copy of one element of the input, or has no
  /// entry.
  bool is_selection() const;
  bool is_identity() const;
  ResizeTable transposed() const;
};

/// Mapping of one axis of a Resize node.
struct ResizeAxis {
  std::int64_t input = 0;
  std::int64_t output = 0;
  double scale = 1;
  double roi_start = 0;  ///< in units of input - 1
  double roi_end = 1;
};

/// Attributes of Resize.
struct ResizeAttrs {
  std::string mode = {};
  std::string coordinates = {};
  std::string nearest_mode = {};
  double cubic_a = -0.75;
  bool antialias = false;
  bool exclude_outside = false;

  /// Reads a node with complete attributes. Throws: ModelError (antialias with mode nearest).
  static ResizeAttrs read(const ir::Node& node);
};

/// Builds the table of an axis. Output elements outside the region of interest have no entries.
ResizeTable make_resize_table(const ResizeAttrs& attrs, const ResizeAxis& axis);

/// Inputs of a Resize node, as far as they are given.
struct ResizeInputs {
  std::optional<std::vector<double>> roi = {};
  std::optional<std::vector<double>> scales = {};
  std::optional<std::vector<std::int64_t>> sizes = {};
};

/// Reads those that are known at plan time of a Resize, and of a ResizeGrad.
ResizeInputs resize_inputs(const opdef::KernelRequest& request);
ResizeInputs resize_grad_inputs(const opdef::KernelRequest& request);

/// Returns the mapping of each axis of x to y. Throws: ModelError, ShapeError (scales that are not
/// positive, lists of another length, sizes that differ from y's) naming the node.
std::vector<ResizeAxis> resolve_resize(const ir::Node& node, const Dims& x, const Dims& y,
                                       const ResizeInputs& inputs);

}  // namespace onnxgrad::ops

#endif  // ONNXGRAD_OPS_IMAGE_RESIZE_TABLE_H_
