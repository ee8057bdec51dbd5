#ifndef ONNXGRAD_RUNTIME_VIEWS_H_
#define ONNXGRAD_RUNTIME_VIEWS_H_

#include "ir/graph.h"
#include "ir/pointer_map.h"
#include "opdef/registry.h"

namespace onnxgrad::runtime {

/// The value whose bytes `value` shows: follows views.
const ir::Value* view_root(const ir::Value* value, const opdef::OpRegistry& registry);

/// The view_root() of each value of a graph that does not change.
class ViewRoots {
 public:
  ViewRoots(const ir::Graph& graph, const opdef::OpRegistry& registry);

  const ir::Value* of(const ir::Value* value) const {
    const ir::Value* const* root = roots_.find(value);
    return root == nullptr ? value : *root;
  }
  bool is_view(const ir::Node* node) const { return views_.contains(node); }

 private:
  ir::PointerMap<ir::Value, const ir::Value*> roots_;  // of what views return
  ir::PointerSet<ir::Node> views_;
};

}  // namespace onnxgrad::runtime

#endif  // ONNXGRAD_RUNTIME_VIEWS_H_
