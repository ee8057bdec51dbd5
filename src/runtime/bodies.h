#ifndef ONNXGRAD_RUNTIME_BODIES_H_
#define ONNXGRAD_RUNTIME_BODIES_H_

#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "opdef/body.h"
#include "opdef/kernel.h"
#include "runtime/engine.h"
#include "runtime/plan.h"
#include "runtime/program.h"

// Subgraphs as kernels run them. A node is closed first: values of enclosing graphs that its bodies
// read become inputs. A closed body is an independent graph, which is compiled like any other; a
// PlannedBody runs its plan; for a device other than the host, a SubmittedBody submits it.

namespace onnxgrad::runtime {

class SubmittedBody;

/// Runs one subgraph of a dynamic node with an executor: its formal inputs, then the captured
/// values.
class BodyRunner {
 public:
  /// `model`: whose functions the body may call. `options`: of the executor of the node.
  BodyRunner(const ir::Graph& body, std::span<ir::Value* const> captured, const ir::Model& model,
             const Engine& engine, ExecutorOptions options);
  ~BodyRunner();
  BodyRunner(const BodyRunner&) = delete;
  BodyRunner& operator=(const BodyRunner&) = delete;

  /// `iteration`: how often the body has run for its node before; each run has random numbers of
  /// its own.
  std::vector<Tensor> run(const std::vector<Tensor>& inputs, const opdef::StepCells& cells,
                          std::int64_t iteration);
  /// Bytes that its executor holds.
  std::int64_t memory_bytes() const;
  std::int64_t num_plans() const;

 private:
  std::unique_ptr<Executor> executor_;
};

// Keys of plans compiled for given shapes.

template <class T>
void append_bytes(std::string& key, const T& value) {
  key.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

/// Appends element type, rank and dimensions.
inline void append_desc(std::string& key, const opdef::TensorDesc& desc) {
  append_bytes(key, desc.dtype);
  append_bytes(key, desc.dims.rank());
  for (const std::int64_t dim : desc.dims) append_bytes(key, dim);
}

/// A copy of `body` that reads nothing of enclosing graphs: constants among `captured` become its
/// initializers, other values inputs after its own.
ir::GraphPtr close_body(const ir::Graph& body, std::span<ir::Value* const> captured);

/// The closed form of `node`, of domain ir::kFusedDomain and in no list: it has the inputs of
/// `node`, then "num_captured" others, and closed bodies. Its outputs are those of `node`, which
/// still produces them.
ir::Node* close_node(ir::Node& node);

/// Compiles closed bodies for a region, each once per set of shapes; keeps those used last.
class PlannedBodies final : public opdef::BodyCompiler {
 public:
  /// `model`: whose functions the bodies may call.
  PlannedBodies(const ir::Model& model, const Engine& engine, const ExecutorOptions& options);

  bool submits() const override { return !engine_.device.is_host(); }
  std::shared_ptr<const opdef::CompiledBody> compile(const ir::Graph& body,
                                                     std::span<const opdef::TensorDesc> inputs,
                                                     opdef::BodyForm form,
                                                     std::string& reason) const override;
  std::int64_t num_plans() const;
  /// Memory of the device for its plans: constants, and the cells of bodies that have been run.
  std::int64_t memory_bytes() const;
  /// Bytes of another device that these will be when every body has been run; 0 on the host.
  std::int64_t planned_bytes() const;
  /// Constants and mirrors that the host keeps for plans on another device; 0 on the host.
  std::int64_t host_bytes() const;
  /// Makes later plans have smaller arenas, by computing values again in each iteration; existing
  /// plans belong to their kernels. False: arenas are as small as possible.
  bool shrink() const;
  /// Recomputation of all plans, for one iteration of each.
  Recomputed recomputed() const;

 private:
  struct Entry {
    std::string key = {};
    std::shared_ptr<const opdef::CompiledBody> body = nullptr;  // nullptr: see reason
    std::shared_ptr<const SubmittedBody> submitted = nullptr;   // the body, on a device
    std::shared_ptr<const PlannedBodies> inner = nullptr;       // those within it
    std::string reason = {};
    std::int64_t constant_bytes = 0;
    std::int64_t arena_bytes = 0;
    bool is_least = false;  // no plan has a smaller arena
    Recomputed recomputed = {};
  };

  Entry make_entry(const ir::Graph& body, std::span<const opdef::TensorDesc> inputs,
                   opdef::BodyForm form) const;
  // Compiles a region within the limit, or the smallest one.
  CompiledRegion compile_within(const Program& program, const std::vector<FeedInfo>& feeds,
                                bool& is_least) const;

  std::vector<ir::Function> functions_;
  std::vector<std::pair<std::string, std::int64_t>> opset_imports_;
  Engine engine_;
  ExecutorOptions options_;
  mutable std::list<Entry> entries_;               // used last first
  mutable std::optional<std::int64_t> max_arena_;  // for each body
};

}  // namespace onnxgrad::runtime

#endif  // ONNXGRAD_RUNTIME_BODIES_H_
