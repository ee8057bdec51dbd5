#ifndef ONNXGRAD_ONNX_DOWNGRADE_FORMS_H_
#define ONNXGRAD_ONNX_DOWNGRADE_FORMS_H_

#include "onnx/rewriting.h"

// Rules for operators that have fewer features in older opsets, or that other operators of these
// express. The number in a rule's name is the newest opset that it writes.

namespace onnxgrad::onnx_io {

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

#endif  // ONNXGRAD_ONNX_DOWNGRADE_FORMS_H_
