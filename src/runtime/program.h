#ifndef ONNXGRAD_RUNTIME_PROGRAM_H_
#define ONNXGRAD_RUNTIME_PROGRAM_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "ir/graph.h"
#include "runtime/plan.h"

// A Program is a graph whose shapes are not known yet; compile() turns it into a CompiledRegion for
// given shapes. Nodes whose shapes depend on values that only a run computes are left to the
// region's tail: another Program, compiled when the values are known. Most programs have no tail.

namespace onnxgrad::runtime {

/// The source of an input of a program's graph.
struct InputSource {
  bool is_state = false;
  bool is_constant = false;  ///< its initializer
  std::size_t index = 0;     ///< number of the state or feed
};

struct Program {
  std::shared_ptr<const ir::Model> model;
  std::vector<InputSource> inputs;  ///< one per graph input
  std::vector<StateUpdate> updates;
  std::size_t num_feeds = 0;
  bool is_tail = false;
  bool is_given = false;  ///< the model of an executor, whose values are not packed yet
  bool keeps_state_if_thrown = false;           ///< see GraphBinding
  std::vector<std::size_t> output_blocks = {};  ///< see GraphBinding
  /// A plan has been made: nodes whose types do not depend on feeds need not be inferred again.
  bool is_inferred = false;
};

/// One feed of a run, as a region is compiled for it.
struct FeedInfo {
  opdef::TensorDesc desc;
  Tensor value;  ///< defined if the region may be compiled for exactly this value
};

/// A node that is run through its DynamicFn, after the plan of its region.
struct DynamicNode {
  const ir::Node* node = nullptr;        ///< in the graph that `CompiledRegion::model` keeps alive
  const ir::Node* closed = nullptr;      ///< form with compilable bodies, if any; see close_node
  std::vector<const ir::Value*> inputs;  ///< its inputs, then values that its subgraphs capture
  std::string reason = {};               ///< why no kernel of the plan runs its subgraphs
};

/// The source of the bytes of a tail's feed.
struct TailFeed {
  enum class Kind : std::uint8_t { kPlanOutput, kDynamic };
  Kind kind = Kind::kPlanOutput;
  std::size_t index = 0;     ///< output of the plan; number of the dynamic node
  std::size_t output = 0;    ///< output of the dynamic node
  bool gives_shape = false;  ///< the tail is compiled for its value, if that is small
};

class PlannedBodies;

struct CompiledRegion {
  Plan plan;
  /// The specialised graph; kept for dynamic nodes and bodies, else nullptr.
  std::shared_ptr<ir::Model> model;
  std::vector<DynamicNode> dynamic;
  std::shared_ptr<const PlannedBodies> bodies;  ///< bodies.h; nullptr if no kernel runs one
  std::unordered_map<const ir::Value*, std::size_t> plan_outputs;  ///< of dynamic nodes' inputs
  std::unique_ptr<Program> tail;  ///< computes all outputs; nullptr: the plan does
  std::vector<TailFeed> tail_feeds;
};

/// Feeds of at most this many elements can determine shapes (axes, sizes, repeats...).
inline constexpr std::int64_t kMaxShapeElements = 64;

/// True for feeds that a region can be compiled for by value.
bool gives_shape(const opdef::TensorDesc& desc);

/// The maximum size of a plan's arena, beside the other memory that it and its bodies take.
using MaxArenaBytes = std::function<std::int64_t(const Plan& plan, const PlannedBodies* bodies)>;

/// Specialises `program` to the feeds' shapes (and values) and plans it. `max_arena_bytes`: called
/// when a plan is made; none: no limit. Throws: ShapeError, ModelError (shapes that do not match),
/// UnsupportedOperatorError; ArenaTooSmall (recompute.h).
CompiledRegion compile(const Program& program, const std::vector<FeedInfo>& feeds,
                       const Engine& engine, const ExecutorOptions& options,
                       MaxArenaBytes max_arena_bytes = nullptr);

}  // namespace onnxgrad::runtime

#endif  // ONNXGRAD_RUNTIME_PROGRAM_H_
