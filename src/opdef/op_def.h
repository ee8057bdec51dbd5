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

/// What an attribute may be. Checked before shape inference and before any kernel sees the node.
struct AttributeSpec {
  std::string_view name = {};
  AttributeType type = AttributeType::kInt;
  bool required = false;
  /// Bounds of each integer; of each float where `min_float`/`max_float` say so.
  std::int64_t min = std::numeric_limits<std::int64_t>::min();
  std::int64_t max = std::numeric_limits<std::int64_t>::max();
  double min_float = -std::numeric_limits<double>::infinity();
  double max_float = std::numeric_limits<double>::infinity();
  /// Bounds of the length of a list.
  std::size_t min_count = 0;
  std::size_t max_count = 1u << 20;
  /// Allowed strings; empty: any.
  std::vector<std::string_view> choices = {};
  /// What a node without the attribute means; see complete_attributes().
  std::optional<ir::AttributeValue> default_value = {};
};

/// How the elements of input 0 come out of a node, from the least to the most faithful way.
enum class Passage : std::uint8_t {
  kNone,       ///< they are computed with
  kRepeated,   ///< each may come out several times (Expand, Tile)
  kPartial,    ///< an output has some of them (Slice, Split)
  kPermuted,   ///< output 0 has them all, in another order (Transpose)
  kReshaped,   ///< the same bytes under another shape (Reshape)
  kConverted,  ///< each in its place, rounded or masked (Cast, Dropout)
  kUnchanged,  ///< the same tensor (Identity)
};

/// What a gradient rule sees. The rule never looks further than this.
/// Of a node with subgraphs, the values of enclosing graphs that these read count as inputs too:
/// number num_inputs() + k is ir::captured_values(node())[k]. The rule of such a node may change
/// it: bodies get further nodes and outputs, add_output() the node's outputs for these.
class VjpContext {
 public:
  virtual ~VjpContext() = default;
  /// With complete attributes.
  virtual const Node& node() const = 0;
  std::size_t num_inputs() const { return node().inputs.size(); }
  Value* input(std::size_t i) const { return node().input(i); }
  Value* output(std::size_t i) const { return node().output(i); }
  /// The gradient of the loss with respect to output i; nullptr where nothing flows back.
  virtual Value* cotangent(std::size_t i) const = 0;
  /// True if a gradient is wanted for input i; rules may return nullptr for the others.
  virtual bool needs(std::size_t i) const = 0;
  /// Output i of the primal, added to the node if it was absent (the indices of MaxPool).
  virtual Value* require_output(std::size_t i) = 0;
  /// For rules of nodes with subgraphs: appends the vector-Jacobian product of `outputs`, values of
  /// `body`, to g.graph(); see autodiff::add_vjp. The new nodes read values of `body` as if they
  /// stood in it, and carry() brings these over.
  virtual std::vector<Value*> differentiate(GraphBuilder& g, ir::Graph& body,
                                            std::span<Value* const> outputs,
                                            std::span<Value* const> seeds,
                                            std::span<Value* const> wrt) = 0;
  /// Replaces what g.graph() reads of `body`: each value that save() gives a stand-in for becomes
  /// that, all else is computed again from stand-ins, constants and captured values; what is drawn
  /// at random is drawn alike. save() is asked only for values that cost more to compute than to
  /// keep; nullptr: not saved.
  virtual void carry(GraphBuilder& g, ir::Graph& body,
                     const std::function<Value*(Value*)>& save) = 0;
  /// One more output of the node, of this type; its bodies have theirs already.
  virtual Value* add_output(ir::Type type, std::string_view hint) = 0;
};

/// Returns one value per input, captured ones included (nullptr: zero everywhere, or not needed).
/// Starts with its formula.
using VjpFn = std::vector<Value*> (*)(VjpContext& ctx, GraphBuilder& g);

/// Replaces a node by others before anything else looks at it (ai.onnx.ml): returns a value for
/// each output, or nullopt if this node must stay as it is. Weights that sit in attributes become
/// initializers with a WeightOrigin.
using LowerFn = std::optional<std::vector<Value*>> (*)(const Node& node, GraphBuilder& g);

/// Replaces a node of more inputs than one kernel should read by several nodes, when a plan is
/// made: returns a value for each output, or nullopt if this node may stay as it is.
using SplitFn = std::optional<std::vector<Value*>> (*)(const Node& node, GraphBuilder& g);

/// Appends the instructions of an element-wise node to `program`, `operands` being its inputs (-1:
/// an input that is absent).
using ExpressionFn = std::int32_t (*)(const Node& node, const std::vector<std::int32_t>& operands,
                                      ExprProgram& program);

/// The value of output 0 where attributes and the types of the inputs alone give it (Constant,
/// Shape, Size), else nullopt.
using FoldTypesFn = std::optional<Tensor> (*)(const Node& node);

/// The subgraph without inputs that the node stands for when these are the values of its inputs
/// (undefined where absent), or nullptr (If).
using TakenBodyFn = const ir::Graph* (*)(const Node& node, std::span<const Tensor> inputs);

/// The body of an `onnxgrad` function; see ir::FunctionProvider::specialise.
using FunctionBodyFn = ir::Function (*)(std::string_view base_name,
                                        const std::vector<Value*>& inputs,
                                        const std::vector<ir::Attribute>& attributes);

/// Changes `node`, a node of g.graph() in the form that models for inference have, to what it does
/// in training. Returns its running statistics: an initializer, and the value that it has after the
/// step. A node that is in training mode already, or whose mode or statistics come from the graph,
/// stays as it is.
using SwitchOnFn = std::vector<ir::StateBinding> (*)(Node& node, GraphBuilder& g);

struct OpDef {
  std::string_view domain = "";
  std::string_view op_type = {};
  int since_version = 1;  ///< of the schema that this record was written for
  /// Inputs that the rule answers for; -1 as the last one: this and all later (variadic) inputs
  /// like the one before. A gradient with respect to any other floating-point input is refused.
  std::vector<int> differentiable_inputs = {};
  std::vector<AttributeSpec> attributes = {};
  VjpFn vjp = nullptr;
  LowerFn lower = nullptr;
  SplitFn split = nullptr;
  FunctionBodyFn function_body = nullptr;
  /// Element-wise (with broadcasting): the one kernel for all of them runs this expression.
  ExpressionFn expression = nullptr;
  /// Inputs broadcast: the engine sums gradients back to the shapes of the inputs.
  bool broadcasts = false;
  FoldTypesFn fold_types = nullptr;
  TakenBodyFn taken_body = nullptr;
  /// Inputs whose values the kernels want at plan time (axes, pads, sizes): a node whose values
  /// come from the step itself waits for the region that is compiled after they are computed.
  std::vector<int> planned_inputs = {};
  /// Inputs whose values the shape of an output follows from (the shape of Reshape, the depth of
  /// OneHot). Those in planned_inputs need not be repeated.
  std::vector<int> shape_inputs = {};
  /// What searches through a graph follow, and plans: see is_view().
  Passage passage = Passage::kNone;
  /// A node that returns its input 0 unchanged when its types or attributes say so is dropped.
  bool (*is_identity)(const Node& node) = nullptr;
  /// Not folded, not merged with an equal node; its draws come from the plan's random streams.
  bool is_random = false;
  /// The gradient is zero wherever it exists (Floor, Greater, ...): cotangents stop here.
  bool zero_gradient = false;
  /// Inputs that are parameters of a layer, trained by default (MatMul: 0, 1; Conv: 1, 2). An Add
  /// whose other operand is such a node's output marks its constant too.
  std::vector<int> weight_inputs = {};
  /// Of operators that do something else in training than in a model for inference.
  SwitchOnFn switch_on_training = nullptr;

  /// Output 0 has the bytes of input 0, perhaps under another shape.
  bool is_view() const { return passage == Passage::kUnchanged || passage == Passage::kReshaped; }
};

}  // namespace onnxgrad::opdef

#endif  // ONNXGRAD_OPDEF_OP_DEF_H_
