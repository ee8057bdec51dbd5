#ifndef ONNXGRAD_ONNX_DOWNGRADE_DENSE_H_
#define ONNXGRAD_ONNX_DOWNGRADE_DENSE_H_

#include "onnx/rewriting.h"

// Rules that write operators which select, add and count by index as products with matrices of
// zeros and ones, for opsets that lack them. The matrices have a column for each element that an
// index may select.

namespace onnxgrad::onnx_io {

/// ScatterElements and ScatterND that add, before 16.
Replacement scatter_elements_15(ir::Node& node, ir::GraphBuilder& g);
Replacement scatter_nd_15(ir::Node& node, ir::GraphBuilder& g);
/// Operators that do not exist before 11.
Replacement gather_elements_10(ir::Node& node, ir::GraphBuilder& g);
Replacement gather_nd_10(ir::Node& node, ir::GraphBuilder& g);
Replacement scatter_nd_10(ir::Node& node, ir::GraphBuilder& g);
Replacement range_10(ir::Node& node, ir::GraphBuilder& g);
Replacement slice_9_computed(ir::Node& node, ir::GraphBuilder& g);
Replacement cumsum_10(ir::Node& node, ir::GraphBuilder& g);
/// Trilu, which does not exist before 14.
Replacement trilu_13(ir::Node& node, ir::GraphBuilder& g);

}  // namespace onnxgrad::onnx_io

#endif  // ONNXGRAD_ONNX_DOWNGRADE_DENSE_H_
