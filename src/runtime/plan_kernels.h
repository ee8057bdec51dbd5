#ifndef ONNXGRAD_RUNTIME_PLAN_KERNELS_H_
#define ONNXGRAD_RUNTIME_PLAN_KERNELS_H_

#include "ir/graph.h"
#include "ir/pointer_map.h"
#include "opdef/kernel.h"
#include "runtime/engine.h"
#include "runtime/kernel_selection.h"
#include "runtime/layouts.h"
#include "runtime/views.h"

namespace onnxgrad::runtime {

/// The kernels of all nodes of a graph that are not views, on as many threads as pay.
class PlanKernels {
 public:
  /// The arguments outlive this. `threads`, `bodies`, `packed`: see make_plan(). Throws:
  /// UnsupportedOperatorError (no kernel), ShapeError (a view of another size).
  PlanKernels(const ir::Graph& graph, const ViewRoots& roots, const Layouts& layouts,
              const Engine& engine, int threads, bool keeps_constants,
              const opdef::BodyCompiler* bodies, opdef::PackedConstants* packed);

  const opdef::PreparedKernel& of(const ir::Node* node) const {
    return chosen_.find(node)->selected.kernel;
  }
  /// Whether the CPU runs the node for a device that has no kernel.
  bool is_on_host(const ir::Node* node) const { return chosen_.find(node)->selected.is_on_host; }
  /// Number of threads that the plan takes.
  int threads() const { return threads_; }

 private:
  struct Chosen {
    SelectedKernel selected;
    double cost_ns = 0;
    int threads = 1;  ///< number that the kernel was prepared for
  };

  int useful_threads() const;
  void choose(const ir::Node& node);
  void choose_again(const ir::Node& node);
  Chosen prepare(const opdef::KernelRequest& request) const;

  const Layouts& layouts_;
  const Engine& engine_;
  int most_threads_;
  int threads_;
  bool keeps_constants_;
  const opdef::BodyCompiler* bodies_;
  opdef::PackedConstants* packed_;
  ir::PointerMap<ir::Node, Chosen> chosen_;
  double cost_ns_ = 0;  ///< rough time of all kernels on one thread
};

}  // namespace onnxgrad::runtime

#endif  // ONNXGRAD_RUNTIME_PLAN_KERNELS_H_
