#ifndef ONNXGRAD_IR_BUILDER_H_
#define ONNXGRAD_IR_BUILDER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"

namespace onnxgrad::ir {

/// Infers the types of a node's outputs from its inputs' types; see onnx/inference.h.
class TypeInferer {
 public:
  virtual ~TypeInferer() = default;
  /// Sets `type` of each output of `node` as far as it can be inferred. Never clears a known one.
  /// Throws: ShapeError, ModelError (inputs that the operator does not accept).
  virtual void infer(Node& node) const = 0;
};

/// Makes the function for a call to an operator of domain `onnxgrad`; see opdef/registry.h.
class FunctionProvider {
 public:
  virtual ~FunctionProvider() = default;
  /// The function that computes `base_name` for these inputs and attributes, with a name
  /// specialised by a canonical key ("ConvWeightGrad__2d_g1..."), so that equal keys mean equal
  /// bodies.
  virtual Function specialise(std::string_view base_name, const std::vector<Value*>& inputs,
                              const std::vector<Attribute>& attributes) const = 0;
};

/// Appends nodes of the internal opset (kInternalOpset) to a graph; gradient rules, losses and
/// optimizers are written with it. The type of every new value is inferred immediately.
/// Element-wise functions broadcast as ONNX does. Names are unique and readable, under `scope`.
/// opdef::FunctionBody writes the bodies of functions in the same way, without known types.
class GraphBuilder {
 public:
  /// `model` receives the functions that are called; `graph` may be one of its subgraphs.
  GraphBuilder(Model& model, Graph& graph, const TypeInferer& inferer,
               const FunctionProvider& functions);

  Graph& graph() { return *graph_; }
  Model& model() { return *model_; }
  const TypeInferer& inferer() const { return *inferer_; }
  const FunctionProvider& functions() const { return *functions_; }
  /// Prefix of the names of new nodes and values, e.g. "loss" gives "loss/Mul".
  void set_scope(std::string scope) { scope_ = std::move(scope); }
  const std::string& scope() const { return scope_; }

  /// Append any node. Absent optional inputs are nullptr.
  Value* op(std::string_view op_type, std::vector<Value*> inputs,
            std::vector<Attribute> attributes = {}, std::string_view domain = "");
  std::vector<Value*> ops(std::string_view op_type, std::vector<Value*> inputs,
                          std::size_t num_outputs, std::vector<Attribute> attributes = {},
                          std::string_view domain = "");
  /// Calls the `onnxgrad` function `base_name`, adding it to the model if new.
  std::vector<Value*> call(std::string_view base_name, std::vector<Value*> inputs,
                           std::size_t num_outputs, std::vector<Attribute> attributes = {});

  /// A similar builder that writes into `body`, a subgraph of a node of graph().
  GraphBuilder inside(Graph& body) const;
  /// A new subgraph for an attribute of a node of graph(). `write` receives a builder for it and
  /// returns its outputs; those that it does not compute itself go through an Identity, as runtimes
  /// require.
  GraphPtr subgraph(std::string_view name,
                    const std::function<std::vector<Value*>(GraphBuilder&)>& write);

  /// Constants are initializers, one per distinct small value; in functions Constant nodes.
  Value* constant(Tensor tensor, std::string_view hint = "const");
  Value* ints(const std::vector<std::int64_t>& values);  ///< int64 [n]
  Value* int_scalar(std::int64_t value);                 ///< int64 []
  /// Rank-0 constant of `like`'s dtype; where that is unknown, a double through CastLike.
  Value* scalar_like(Value* like, double value);

  Value* add(Value* a, Value* b) { return op("Add", {a, b}); }
  Value* sub(Value* a, Value* b) { return op("Sub", {a, b}); }
  Value* mul(Value* a, Value* b) { return op("Mul", {a, b}); }
  Value* div(Value* a, Value* b) { return op("Div", {a, b}); }
  Value* pow(Value* a, Value* b) { return op("Pow", {a, b}); }
  Value* neg(Value* x) { return op("Neg", {x}); }
  Value* exp(Value* x) { return op("Exp", {x}); }
  Value* log(Value* x) { return op("Log", {x}); }
  Value* sqrt(Value* x) { return op("Sqrt", {x}); }
  Value* abs(Value* x) { return op("Abs", {x}); }
  Value* sign(Value* x) { return op("Sign", {x}); }
  Value* equal(Value* a, Value* b) { return op("Equal", {a, b}); }
  Value* greater(Value* a, Value* b) { return op("Greater", {a, b}); }
  Value* less(Value* a, Value* b) { return op("Less", {a, b}); }
  Value* where(Value* condition, Value* a, Value* b) { return op("Where", {condition, a, b}); }
  Value* matmul(Value* a, Value* b) { return op("MatMul", {a, b}); }
  Value* identity(Value* x) { return op("Identity", {x}); }
  /// x * factor, where factor is a constant of x's dtype.
  Value* scale(Value* x, double factor) { return mul(x, scalar_like(x, factor)); }
  Value* cast(Value* x, DataType dtype);
  Value* cast_like(Value* x, Value* like);
  Value* transpose(Value* x, const std::vector<std::int64_t>& perm);
  /// Swaps the last two axes; the rank of x must be known and at least 2.
  Value* transpose_last(Value* x);
  Value* reshape(Value* x, Value* shape, bool allow_zero = true);
  Value* reshape(Value* x, const std::vector<std::int64_t>& shape);
  Value* expand(Value* x, Value* shape) { return op("Expand", {x, shape}); }
  Value* shape_of(Value* x) { return op("Shape", {x}); }
  /// Dimensions [first, last) of x as int64 [last - first]; negative ones count from the end.
  Value* dims_of(Value* x, std::int64_t first, std::int64_t last);
  Value* size_of(Value* x) { return op("Size", {x}); }
  Value* unsqueeze(Value* x, const std::vector<std::int64_t>& axes);
  Value* squeeze(Value* x, const std::vector<std::int64_t>& axes);
  Value* concat(const std::vector<Value*>& parts, std::int64_t axis);
  Value* gather(Value* data, Value* indices, std::int64_t axis);
  Value* slice(Value* x, const std::vector<std::int64_t>& starts,
               const std::vector<std::int64_t>& ends, const std::vector<std::int64_t>& axes);
  /// Reductions; empty axes mean all axes.
  Value* reduce_sum(Value* x, const std::vector<std::int64_t>& axes, bool keepdims);
  Value* reduce_mean(Value* x, const std::vector<std::int64_t>& axes, bool keepdims);
  Value* reduce_max(Value* x, const std::vector<std::int64_t>& axes, bool keepdims);
  Value* zeros_like(Value* x);
  Value* ones_like(Value* x);
  /// Sums `x`, whose shape is a broadcast of `like`'s, to `like`'s shape: the transpose of
  /// broadcasting. Nothing is emitted if the shapes are known to be equal; symbolic shapes are
  /// compared at run time.
  Value* sum_to(Value* x, Value* like);

 protected:
  /// Builds a function's body, which has no types, no initializers and calls no function.
  explicit GraphBuilder(Graph& body) : graph_(&body) {}

 private:
  std::string scoped(std::string_view hint) const;
  Value* make_constant(Tensor tensor, std::string_view hint);
  Model* model_ = nullptr;  // nullptr in functions
  Graph* graph_;
  const TypeInferer* inferer_ = nullptr;
  const FunctionProvider* functions_ = nullptr;
  std::string scope_;
  std::map<std::string, Value*> constants_;  // by dtype, shape and bytes
};

/// The opset of ai.onnx that everything inside onnxgrad is written in.
inline constexpr std::int64_t kInternalOpset = 26;
/// IR version of the files that onnxgrad creates.
inline constexpr std::int64_t kWrittenIrVersion = 10;
/// Domain of model-local functions that gradients call.
inline constexpr std::string_view kFunctionDomain = "onnxgrad";
/// Domain of fused operators; occurs in plans only, never in files.
inline constexpr std::string_view kFusedDomain = "onnxgrad.fused";

}  // namespace onnxgrad::ir

#endif  // ONNXGRAD_IR_BUILDER_H_
