#ifndef ONNXGRAD_IR_GRAPH_H_
#define ONNXGRAD_IR_GRAPH_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ir/attribute.h"
#include "ir/hash_set.h"
#include "ir/origin.h"
#include "ir/type.h"
#include "onnxgrad/tensor.h"

// A model is a Graph (with subgraphs in attributes), functions and a header. A Graph owns
// its Values and Nodes; both have stable addresses, so passes hold plain pointers. Every value has
// one producer: a node, a graph input, or an initializer. A subgraph's nodes refer to values of the
// enclosing graphs by pointer. Start reading at Graph.

namespace onnxgrad::ir {

class Node;
class Graph;

using Metadata = std::vector<std::pair<std::string, std::string>>;
using NodeTest = std::function<bool(const Node&)>;

/// A value of a graph. Created only by Graph.
struct Value {
  std::string name;
  Type type;
  Graph* graph = nullptr;       ///< the graph that owns it
  Node* producer = nullptr;     ///< nullptr for inputs and initializers
  int output_index = 0;         ///< index among the outputs of `producer`
  bool is_input = false;        ///< a formal input of `graph` (it may have a default initializer)
  Tensor initializer = {};      ///< defined for initializers and for inputs with a default
  bool has_value_info = false;  ///< the file declares its type: written back
  std::string doc_string = {};
  Metadata metadata = {};
  /// Origin of a weight that is not an initializer of this name in the file; see WeightOrigin.
  std::shared_ptr<const WeightOrigin> origin = {};

  bool is_initializer() const { return initializer.is_defined(); }
  /// True for an initializer that no caller can override.
  bool is_constant() const { return initializer.is_defined() && !is_input; }
  DataType dtype() const { return type.dtype; }
};

/// Whether it is a tensor of float16 or bfloat16; false for an absent value.
bool holds_f16(const Value* value);

/// An operator application. Created only by Graph. Absent optional inputs and outputs are nullptr.
class Node {
 public:
  std::string name;
  std::string domain;  ///< "" is ai.onnx
  std::string op_type;
  std::string overload = {};
  std::vector<Value*> inputs;
  std::vector<Value*> outputs;
  std::vector<Attribute> attributes;
  std::string doc_string = {};
  Metadata metadata = {};
  std::vector<std::string> opaque = {};  ///< serialized device configurations, passed through
  Graph* graph = nullptr;

  Value* input(std::size_t i) const { return i < inputs.size() ? inputs[i] : nullptr; }
  Value* output(std::size_t i) const { return i < outputs.size() ? outputs[i] : nullptr; }
  /// The attribute of that name; nullptr if there is none.
  const AttributeValue* find_attribute(std::string_view attribute) const;
  /// Replaces or adds an attribute.
  void set_attribute(std::string attribute, AttributeValue value);
  void remove_attribute(std::string_view attribute);
  /// Value of an attribute of a node whose attributes are complete (opdef::complete_attributes), as
  /// gradient rules, kernels and passes see it. Throws: InternalError if it is missing.
  std::int64_t int_attribute(std::string_view attribute) const;
  float float_attribute(std::string_view attribute) const;
  std::string string_attribute(std::string_view attribute) const;
  /// Value of the attribute if present with type T, else `fallback`. Types are checked on load.
  std::int64_t int_attribute(std::string_view attribute, std::int64_t fallback) const;
  float float_attribute(std::string_view attribute, float fallback) const;
  std::string string_attribute(std::string_view attribute, std::string_view fallback) const;
  std::vector<std::int64_t> ints_attribute(std::string_view attribute,
                                           const std::vector<std::int64_t>& fallback = {}) const;
  std::vector<float> floats_attribute(std::string_view attribute) const;
  /// All graphs in the attributes.
  std::vector<Graph*> subgraphs() const;
  /// Description in messages: "MatMul node 'dense_1/matmul'".
  std::string describe() const;
};

/// Makes names unique among the values and nodes of a model. Shared by a graph and its subgraphs.
/// It remembers hashes: if those of two names are the same, the second counts as used.
class NameAuthority {
 public:
  /// Registers a name that is already in use.
  void reserve(std::string_view name) { used_.insert(hash_of(name)); }
  /// `hint` itself if unused, else hint_1, hint_2, ...; the result is reserved.
  std::string unique(std::string_view hint);
  bool is_used(std::string_view name) const { return used_.contains(hash_of(name)); }

 private:
  static std::uint64_t hash_of(std::string_view name) {
    return std::hash<std::string_view>()(name);
  }

  HashSet used_;
  std::unordered_map<std::string, int> next_;
};

class Graph {
 public:
  Graph();
  explicit Graph(std::shared_ptr<NameAuthority> names, Graph* parent = nullptr);
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph();

  std::string name;
  std::string doc_string;
  Metadata metadata;
  std::vector<std::string> opaque;  ///< serialized quantization annotations, passed through

  /// Formal inputs in order; may be reordered and erased from (see Value::is_input).
  std::vector<Value*> inputs;
  /// Results in order; may repeat, may be an input, an initializer or a captured value.
  std::vector<Value*> outputs;
  /// Initializers in file order, those of inputs included.
  std::vector<Value*> initializers;
  /// Nodes in topological order. Passes may reorder and erase; memory is freed with the graph.
  std::vector<Node*> nodes;

  Graph* parent() const { return parent_; }
  NameAuthority& names() { return *names_; }
  const std::shared_ptr<NameAuthority>& names_ptr() const { return names_; }

  /// Adds a value with exactly this name, which must be unused in this graph: for the importer.
  Value* add_value(std::string value_name, Type type = {});
  Value* add_input(std::string_view hint, Type type);
  Value* add_initializer(std::string_view hint, Tensor tensor);
  /// Appends a node with `num_outputs` fresh outputs named after `hint` (default: the operator).
  Node* add_node(std::string_view op_type, std::vector<Value*> node_inputs, std::size_t num_outputs,
                 std::vector<Attribute> attributes = {}, std::string_view domain = "",
                 std::string_view hint = "");
  /// Makes a node that computes `node_outputs`, values of this graph, and is not in the list yet:
  /// for rewrites that rebuild the list. Its name is derived from `hint`.
  Node* make_node(std::string_view op_type, std::vector<Value*> node_inputs,
                  const std::vector<Value*>& node_outputs, std::string_view hint,
                  std::vector<Attribute> attributes = {}, std::string_view domain = "");
  /// Adds a node to the list directly after `place`.
  Node* insert_after(const Node* place, std::string_view op_type, std::vector<Value*> node_inputs,
                     const std::vector<Value*>& node_outputs,
                     std::vector<Attribute> attributes = {}, std::string_view domain = "");
  /// Appends a node whose outputs the caller sets (including each `Value::producer`): for the
  /// importer.
  Node* add_bare_node();
  /// Makes `value` output number `index` of `node`.
  static void set_output(Node* node, std::size_t index, Value* value);
  /// Adds a new value as output number `index` of `node`.
  Value* add_output(Node* node, std::size_t index, Type type, std::string_view hint);

  /// A value of this graph, not of its parents, by name; nullptr if there is none.
  Value* find(std::string_view value_name) const;
  /// A value of this graph or of an enclosing one.
  Value* find_visible(std::string_view value_name) const;
  /// Changes a name; the new one must be unused.
  void rename(Value* value, std::string new_name);

 private:
  std::shared_ptr<NameAuthority> names_;
  Graph* parent_;
  std::deque<Value> values_;
  std::deque<Node> node_store_;
  std::unordered_map<std::string_view, Value*> by_name_;  // names of these values
};

/// A model-local function. Its body is a Graph whose inputs and outputs are the formal ones (types
/// unknown); attributes of body nodes may be AttributeRefs.
struct Function {
  Function();
  Function(const Function& other);
  Function(Function&& other) noexcept;
  Function& operator=(const Function& other);
  Function& operator=(Function&& other) noexcept;
  ~Function();

  std::string domain = {};
  std::string name = {};
  std::string overload = {};
  std::shared_ptr<Graph> body = {};
  std::vector<std::string> attribute_names = {};  ///< without default
  std::vector<Attribute> attribute_defaults = {};
  std::vector<std::pair<std::string, std::int64_t>> opset_imports = {};
  std::string doc_string = {};
  Metadata metadata = {};
};

/// A state of a training step: graph input `input` gets the value of `output` after each step.
struct StateBinding {
  Value* input = nullptr;
  Value* output = nullptr;
};

struct Model {
  Model();
  Model(const Model& other);
  Model(Model&& other) noexcept;
  Model& operator=(const Model& other);
  Model& operator=(Model&& other) noexcept;
  ~Model();

  std::shared_ptr<Graph> graph = std::make_shared<Graph>();
  std::vector<Function> functions;
  std::vector<StateBinding> state;
  std::vector<std::pair<std::string, std::int64_t>> opset_imports;
  std::int64_t ir_version = 10;
  std::string producer_name;
  std::string producer_version;
  std::string domain;
  std::int64_t model_version = 0;
  std::string doc_string;
  Metadata metadata;
  std::vector<std::string> opaque_training_info;  ///< serialized TrainingInfoProto, passed through
  std::vector<std::string> opaque_configuration;  ///< serialized DeviceConfigurationProto

  /// Version of that domain ("" is ai.onnx); 0 if not imported.
  std::int64_t opset(std::string_view opset_domain = "") const;
  void set_opset(std::string_view opset_domain, std::int64_t version);
  const Function* find_function(std::string_view function_domain,
                                std::string_view function_name) const;
  Function* find_function(std::string_view function_domain, std::string_view function_name);
};

/// A copy of `model` with its own nodes and values; tensors are shared, not copied. `map`, if
/// given, receives old value -> new value.
Model clone(const Model& model, std::unordered_map<const Value*, Value*>* map = nullptr);

/// Returns `model` itself if nothing else holds it, else a clone: for a function that is given a
/// model to change. Pass it with std::move where it is not used again.
std::shared_ptr<Model> writable(std::shared_ptr<const Model> model);

/// Appends copies of all nodes of `from` to `to`. `map` has the replacements of `from`'s inputs
/// (and captured values: absent ones are kept); it receives all other values. New values get unique
/// names: `prefix` and the old name.
void append_nodes(const Graph& from, Graph& to, std::unordered_map<const Value*, Value*>& map,
                  std::string_view prefix = "");

/// Appends copies of some nodes, without initializers: these are kept unless `map` has them.
void append_nodes(std::span<const Node* const> nodes, Graph& to,
                  std::unordered_map<const Value*, Value*>& map, std::string_view prefix = "");

/// Replaces every use of a key of `map`, by nodes (and in subgraphs) and as output, by its value.
void replace_uses(Graph& graph, const std::unordered_map<const Value*, Value*>& map);

/// Sorts nodes so that producers come first; independent nodes keep their order. Captured values
/// of subgraphs count as inputs. Throws: ModelError naming a node of the cycle.
void sort_topologically(Graph& graph);

/// Sorts like sort_topologically(), but returns false and changes nothing if there is a cycle.
bool try_sort_topologically(Graph& graph);

/// A structural fault of `graph` or its subgraphs, with names, or "". Checks that every value is
/// computed before it is read, names its true producer, and belongs to the graph or an enclosing
/// one, and that no node is listed twice. For tests of graph rewrites.
std::string find_fault(const Graph& graph);

/// Values of other graphs that `graph` and its subgraphs read, each once, in order of first use.
std::vector<Value*> captured_values(const Graph& graph);
/// Values of enclosing graphs that `node`'s subgraphs read, each once, in order of first use.
std::vector<Value*> captured_values(const Node& node);

/// Erases nodes whose outputs are unused, then unused initializers that are not inputs.
/// `keep`: further nodes to keep (e.g. with side effects). Returns the number of nodes erased.
std::size_t eliminate_dead_nodes(Graph& graph, const NodeTest& keep = nullptr);

/// Makes inputs with a default constants: initializers with the types of their tensors, regardless
/// of the types declared for feeds.
void close_defaults(Graph& graph);

/// Readable text similar to ONNX's text syntax: one line per node, types of all values.
std::string to_text(const Graph& graph);
std::string to_text(const Model& model);

}  // namespace onnxgrad::ir

#endif  // ONNXGRAD_IR_GRAPH_H_
