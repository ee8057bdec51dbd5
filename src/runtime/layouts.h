#ifndef ONNXGRAD_RUNTIME_LAYOUTS_H_
#define ONNXGRAD_RUNTIME_LAYOUTS_H_

#include <cstdint>

#include "ir/graph.h"
#include "ir/pointer_map.h"
#include "onnxgrad/tensor.h"
#include "opdef/kernel.h"
#include "opdef/layout.h"
#include "runtime/engine.h"

// Kernels of a device may ask for operands in a layout of their own. One pass asks them all, before
// a plan is made, and inserts the conversions.

namespace onnxgrad::runtime {

/// The layouts of the values of a graph, each in its simplest form (opdef/layout_order.h); plain
/// unless set.
class Layouts {
 public:
  bool are_all_plain() const { return layouts_.size() == 0; }
  opdef::Layout of(const ir::Value* value) const {
    const opdef::Layout* known = are_all_plain() ? nullptr : layouts_.find(value);
    return known == nullptr ? opdef::Layout{} : *known;
  }
  void set(const ir::Value* value, opdef::Layout layout);
  /// Bytes of a value of static shape, padding included.
  std::int64_t bytes_of(const ir::Value* value) const;

  /// Adds the layouts of a node's operands and results to a request; constants that are not plain
  /// are not given.
  void describe(opdef::KernelRequest& request) const;
  /// Checks that a kernel takes these layouts. Throws: InternalError (an offer answers a second
  /// time something else).
  static void check(const opdef::KernelRequest& request, const opdef::PreparedKernel& kernel);

 private:
  ir::PointerMap<ir::Value, opdef::Layout> layouts_;
};

/// Finds the layouts that the kernels of a device ask for and converts values where what computes
/// them and what reads them disagree, each at most once for each layout; constants are converted
/// now. Each node is asked in order, with its operands as they are. Inputs and outputs of the
/// graph, states, views, and operands of nodes without a kernel on the device are plain.
Layouts place_layouts(ir::Graph& graph, const Engine& engine, int threads,
                      const opdef::BodyCompiler* bodies);

/// The elements of a tensor whose memory has a layout, in plain order, without padding.
Tensor in_plain_order(const Tensor& stored, const Dims& dims, opdef::Layout layout);

}  // namespace onnxgrad::runtime

#endif  // ONNXGRAD_RUNTIME_LAYOUTS_H_
