#ifndef ONNXGRAD_OPS_SEQUENCE_SEQUENCE_GRADIENT_H_
#define ONNXGRAD_OPS_SEQUENCE_SEQUENCE_GRADIENT_H_

#include <vector>

#include "opdef/op_def.h"

// Gradient rules for sequences that are built at run time. The gradient of a sequence is a sequence
// of the gradients of its elements.

namespace onnxgrad::ops::sequence_op {

std::vector<ir::Value*> sequence_construct_vjp(opdef::VjpContext& ctx, ir::GraphBuilder& g);
std::vector<ir::Value*> sequence_at_vjp(opdef::VjpContext& ctx, ir::GraphBuilder& g);
std::vector<ir::Value*> sequence_insert_vjp(opdef::VjpContext& ctx, ir::GraphBuilder& g);
std::vector<ir::Value*> sequence_erase_vjp(opdef::VjpContext& ctx, ir::GraphBuilder& g);
std::vector<ir::Value*> concat_from_sequence_vjp(opdef::VjpContext& ctx, ir::GraphBuilder& g);
std::vector<ir::Value*> split_to_sequence_vjp(opdef::VjpContext& ctx, ir::GraphBuilder& g);
std::vector<ir::Value*> sequence_map_vjp(opdef::VjpContext& ctx, ir::GraphBuilder& g);

}  // namespace onnxgrad::ops::sequence_op

#endif  // ONNXGRAD_OPS_SEQUENCE_SEQUENCE_GRADIENT_H_
