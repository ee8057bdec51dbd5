#ifndef ONNXGRAD_PASSES_WIDEN_F16_H_
#define ONNXGRAD_PASSES_WIDEN_F16_H_

#include <cstdint>
#include <limits>
#include <vector>

#include "ir/graph.h"

namespace onnxgrad::passes {

/// True for a node with an operand or a result of float16 or bfloat16.
bool touches_f16(const ir::Node& node);

/// While it exists, `node` has float32 in place of float16 and bfloat16: operands, results,
/// attributes that name types. Constants have their values, up to `max_constant` elements.
class WidenedNode {
 public:
  explicit WidenedNode(const ir::Node& node,
                       std::int64_t max_constant = std::numeric_limits<std::int64_t>::max());
  WidenedNode(const WidenedNode&) = delete;
  WidenedNode& operator=(const WidenedNode&) = delete;

  const ir::Node& node() const { return node_; }

 private:
  ir::Node node_;
  std::vector<ir::Value> values_;
};

}  // namespace onnxgrad::passes

#endif  // ONNXGRAD_PASSES_WIDEN_F16_H_
