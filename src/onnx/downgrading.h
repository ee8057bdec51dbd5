#ifndef ONNXGRAD_ONNX_DOWNGRADING_H_
#define ONNXGRAD_ONNX_DOWNGRADING_H_

#include <cstdint>
#include <string>
#include <vector>

#include "ir/builder.h"
#include "onnx/rewriting.h"

// Helpers of the rules that write older forms.

namespace onnxgrad::onnx_io {

/// Throws ModelError "<what>, which the target opset cannot express".
[[noreturn]] void refuse_downgrade(const ir::Node& node, const std::string& what);

/// The rank of an input. Throws: ModelError if it is not known.
std::size_t known_rank(const ir::Node& node, std::size_t input = 0);

/// All elements of an integer input. Throws: ModelError if they are not constant.
std::vector<std::int64_t> constant_ints(const ir::Node& node, std::size_t input, const char* what);

/// The number of elements of `value` along `axis`, int64 [1]: a constant if known.
ir::Value* length_of(ir::GraphBuilder& g, ir::Value* value, std::size_t axis);

/// The numbers 0, 1, ..., int64 [count]. `count`: int64 [1].
ir::Value* numbers_to(ir::GraphBuilder& g, ir::Value* count);

// Rules that write operators which select, add and count by index as products with matrices of
// zeros and ones, for opsets that lack them. The matrices have a column for each element that an
// index may select.

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

// Rules for operators that have fewer features in older opsets, or that other operators of these
// express. The number in a rule's name is the newest opset that it writes.

Replacement batch_normalization_13(ir::Node& node, ir::GraphBuilder& g);
Replacement dequantize_22(ir::Node& node, ir::GraphBuilder& g);
Replacement quantize_22(ir::Node& node, ir::GraphBuilder& g);
Replacement quantize_20(ir::Node& node, ir::GraphBuilder& g);
Replacement quantize_12(ir::Node& node, ir::GraphBuilder& g);
Replacement resize_18(ir::Node& node, ir::GraphBuilder& g);
Replacement resize_17(ir::Node& node, ir::GraphBuilder& g);
Replacement resize_12(ir::Node& node, ir::GraphBuilder& g);
Replacement resize_10(ir::Node& node, ir::GraphBuilder& g);
Replacement resize_9(ir::Node& node, ir::GraphBuilder& g);
Replacement equal_10(ir::Node& node, ir::GraphBuilder& g);
Replacement round_10(ir::Node& node, ir::GraphBuilder& g);
Replacement extremum_11(ir::Node& node, ir::GraphBuilder& g);
Replacement gemm_10(ir::Node& node, ir::GraphBuilder& g);
Replacement mod_9(ir::Node& node, ir::GraphBuilder& g);
Replacement is_inf_9(ir::Node& node, ir::GraphBuilder& g);
Replacement one_hot_10(ir::Node& node, ir::GraphBuilder& g);

}  // namespace onnxgrad::onnx_io

#endif  // ONNXGRAD_ONNX_DOWNGRADING_H_
