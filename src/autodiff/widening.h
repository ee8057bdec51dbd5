#ifndef ONNXGRAD_AUTODIFF_WIDENING_H_
#define ONNXGRAD_AUTODIFF_WIDENING_H_

#include <unordered_map>
#include <vector>

#include "autodiff/activity.h"
#include "ir/builder.h"
#include "opdef/registry.h"

// Gradients of float16 and bfloat16 values are float32 from one end of a sweep to the other:
// nothing is rounded on the way, and no gradient overflows or vanishes that would not in float32.
// Rules see such nodes in float32 too, through a Cast after each value that is stored in 16 bits.

namespace onnxgrad::autodiff {

/// `gradient` cast to float32 if it has 16 bits; others are unchanged.
ir::Value* as_gradient(ir::GraphBuilder& g, ir::Value* gradient);
/// `gradient` in the type of `value`.
ir::Value* as_stored(ir::GraphBuilder& g, ir::Value* gradient, const ir::Value& value);

/// The float32 values of one sweep.
class Widening {
 public:
  Widening(ir::GraphBuilder& g, const opdef::OpRegistry& registry, const Activity& activity)
      : g_(g), registry_(registry), activity_(activity) {}

  /// Widens the 16-bit inputs and outputs of `copy`, which is in no graph. Not for nodes with
  /// subgraphs, whose rules call for more sweeps. Elements of sequences have 16 bits outside of
  /// gradients only: rules of such nodes read no elements.
  void widen(ir::Node& copy);
  /// Removes Casts that nothing reads, at the end. Shapes are taken of the 16-bit values
  /// themselves.
  void drop_unread(const std::vector<ir::Value*>& results);

 private:
  ir::Value* wide(ir::Value* half);

  ir::GraphBuilder& g_;
  const opdef::OpRegistry& registry_;
  const Activity& activity_;
  std::unordered_map<ir::Value*, ir::Value*> wide_;  // by 16-bit value
};

}  // namespace onnxgrad::autodiff

#endif  // ONNXGRAD_AUTODIFF_WIDENING_H_
