#ifndef ONNXGRAD_OPDEF_OP_DEF_H_
#define ONNXGRAD_OPDEF_OP_DEF_H_

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ir/builder.h"
#include "ir/graph.h"
#include "opdef/expr.h"

namespace onnxgrad::opdef {

using ir::GraphBuilder;
using ir::Node;
using ir::Value;

enum class AttributeType : std::uint8_t {
  kInt,
  kFloat,
  kString,
  kTensor,
  kGraph,
  kInts,
  kFloats,
  kStrings,
  kTensors,
  kGraphs,
  kOther,
};

/// Allowed values of an attribute. Checked before shape inference and before kernels see the node.
struct AttributeSpec {
  std::string_view name = {};
  AttributeType type = AttributeType::kInt;
  bool required = false;
  /// Bounds of each integer; `min_float` and `max_float` are those of each float.
  std::int64_t min = std::numeric_limits<std::int64_t>::min();
  std::int64_t max = std::numeric_limits<std::int64_t>::max();
  double min_float = -std::numeric_limits<double>::infinity();
  double max_float = std::numeric_limits<double>::infinity();
  /// Bounds of the length of a list.
  std::size_t min_count = 0;
  std::size_t max_count = 1u << 20;
  /// Allowed strings; empty: any.
  std::vector<std::string_view> choices = {};
  /// The value for a node without the attribute; see complete_attributes().
  std::optional<ir::AttributeValue> default_value = {};
};

/// Relation of the outputs of a node to the elements of input 0, from least to most preserved.
enum class Passage : std::uint8_t {
  kNone,       ///< computed from the elements
  kRepeated,   ///< each element may occur several times (Expand, Tile)
  kPartial,    ///< an output has some of the elements (Slice, Split)
  kPermuted,   ///< all elements in a different order (Transpose)
  kReshaped,   ///< identical bytes with a different shape (Reshape)
  kConverted,  ///< each element in place, rounded or masked (Cast, Dropout)
  kUnchanged,  ///< identical tensor (Identity)
};

/// A node as its gradient rule sees it. A rule never looks beyond this.
/// For a node with subgraphs, the values of enclosing graphs that these read also count as inputs:
/// number num_inputs() + k is ir::captured_values(node())[k]. The rule of such a node may change
/// it: bodies get further nodes and outputs, and add_output() adds node outputs for these.
class VjpContext {
 public:
  virtual ~VjpContext() = default;
  /// The node, with complete attributes.
  virtual const Node& node() const = 0;
  std::size_t num_inputs() const { return node().inputs.size(); }
  Value* input(std::size_t i) const { return node().input(i); }
  Value* output(std::size_t i) const { return node().output(i); }
  /// The gradient of the loss with respect to output i; nullptr if it is zero everywhere.
  virtual Value* cotangent(std::size_t i) const = 0;
  /// True if a gradient is wanted for input i; rules may return nullptr for the others.
  virtual bool needs(std::size_t i) const = 0;
  /// Output i of the primal, added to the node if it was absent (the indices of MaxPool).
  virtual Value* require_output(std::size_t i) = 0;
  /// Appends, for the rule of a node with subgraphs, the vector-Jacobian product of `outputs`,
  /// values of `body`, to g.graph(); see autodiff::add_vjp. The new nodes read values of `body` as
  /// if they were part of it; carry() replaces these.
  virtual std::vector<Value*> differentiate(GraphBuilder& g, ir::Graph& body,
                                            std::span<Value* const> outputs,
                                            std::span<Value* const> seeds,
                                            std::span<Value* const> wrt) = 0;
  /// Replaces the values of `body` that g.graph() reads by the results of save(), else by
  /// recomputing them from saved values, constants and captured values; random draws are repeated
  /// identically. save() is called only for values that cost more to recompute than to keep;
  /// nullptr: not saved.
  virtual void carry(GraphBuilder& g, ir::Graph& body,
                     const std::function<Value*(Value*)>& save) = 0;
  /// Adds an output of this type to the node; its bodies already have theirs.
  virtual Value* add_output(ir::Type type, std::string_view hint) = 0;
};

/// Returns one value per input, including captured ones (nullptr: zero everywhere, or not needed).
/// Starts with its formula.
using VjpFn = std::vector<Value*> (*)(VjpContext& ctx, GraphBuilder& g);

/// Replaces a node by others before anything else examines it (ai.onnx.ml): returns a value for
/// each output, or nullopt if the node must be kept. Weights stored in attributes become
/// initializers with a WeightOrigin.
using LowerFn = std::optional<std::vector<Value*>> (*)(const Node& node, GraphBuilder& g);

/// When a plan is made, replaces a node with more inputs than one kernel should read by several
/// nodes: returns a value for each output, or nullopt if the node may be kept.
using SplitFn = std::optional<std::vector<Value*>> (*)(const Node& node, GraphBuilder& g);

/// Appends the instructions of an element-wise node to `program`; `operands` are its inputs (-1:
/// an absent input).
using ExpressionFn = std::int32_t (*)(const Node& node, const std::vector<std::int32_t>& operands,
                                      ExprProgram& program);

/// The value of output 0 if attributes and input types alone determine it (Constant,
/// Shape, Size), else nullopt.
using FoldTypesFn = std::optional<Tensor> (*)(const Node& node);

/// The subgraph without inputs that replaces the node when its inputs have these values
/// (undefined if absent), or nullptr (If).
using TakenBodyFn = const ir::Graph* (*)(const Node& node, std::span<const Tensor> inputs);

/// The body of an `onnxgrad` function; see ir::FunctionProvider::specialise.
using FunctionBodyFn = ir::Function (*)(std::string_view base_name,
                                        const std::vector<Value*>& inputs,
                                        const std::vector<ir::Attribute>& attributes);

/// Changes `node`, a node of g.graph() in inference mode, to training
/// mode. Returns its running statistics: an initializer, and its value after the
/// step. A node that is already in training mode, or whose mode or statistics are computed in the
/// graph, is kept.
using SwitchOnFn = std::vector<ir::StateBinding> (*)(Node& node, GraphBuilder& g);

struct OpDef {
  std::string_view domain = "";
  std::string_view op_type = {};
  int since_version = 1;  ///< version of the schema that this record was written for
  /// Inputs that the rule covers; -1 as the last entry: this and all later (variadic) inputs,
  /// like the one before. A gradient with respect to any other floating-point input is refused.
  std::vector<int> differentiable_inputs = {};
  std::vector<AttributeSpec> attributes = {};
  VjpFn vjp = nullptr;
  LowerFn lower = nullptr;
  SplitFn split = nullptr;
  FunctionBodyFn function_body = nullptr;
  /// Expression of an element-wise operator (with broadcasting), which a generic kernel runs.
  ExpressionFn expression = nullptr;
  /// True if inputs broadcast: the engine sums gradients back to the shapes of the inputs.
  bool broadcasts = false;
  FoldTypesFn fold_types = nullptr;
  TakenBodyFn taken_body = nullptr;
  /// Inputs whose values the kernels need at plan time (axes, pads, sizes): a node whose values
  /// are computed in the step itself is left to a region compiled after they are computed.
  std::vector<int> planned_inputs = {};
  /// Inputs whose values determine the shape of an output (the shape of Reshape, the depth of
  /// OneHot). Those in planned_inputs need not be repeated.
  std::vector<int> shape_inputs = {};
  /// Passage of input 0 that graph searches and plans follow: see is_view().
  Passage passage = Passage::kNone;
  /// True for a node whose types or attributes imply that it returns input 0: it is dropped.
  bool (*is_identity)(const Node& node) = nullptr;
  /// Draws from the plan's random streams; the node is not folded and not merged with an equal one.
  bool is_random = false;
  /// True if the gradient is zero wherever it exists (Floor, Greater, ...): cotangents stop here.
  bool zero_gradient = false;
  /// Inputs that are parameters of a layer, trained by default (MatMul: 0, 1; Conv: 1, 2). An Add
  /// whose other operand is such a node's output marks its constant too.
  std::vector<int> weight_inputs = {};
  /// Switches an operator to training mode, if it behaves differently there.
  SwitchOnFn switch_on_training = nullptr;

  /// True if output 0 has the bytes of input 0, possibly with a different shape.
  bool is_view() const { return passage == Passage::kUnchanged || passage == Passage::kReshaped; }
};

}  // namespace onnxgrad::opdef

#endif  // ONNXGRAD_OPDEF_OP_DEF_H_
