#ifndef ONNXGRAD_OPS_RECURRENT_CELL_H_
#define ONNXGRAD_OPS_RECURRENT_CELL_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"
#include "opdef/function_body.h"
#include "opdef/registry.h"

// Attributes shared by RNN, GRU and LSTM (ai.onnx 22), and building blocks for the bodies of their
// functions. With D directions, T steps, N sequences, I inputs, H hidden units and G gates (1, 3,
// 4): X [T, N, I], W [D, G H, I], R [D, G H, H], B [D, 2 G H], Y [T, D, N, H].
//
// The gradient of each operator is two functions of domain `onnxgrad`: <operator>Gates recomputes
// the pre-activations of all steps from Y, and <operator>Gradient runs the steps backward. A plan
// that also contains the operator keeps its pre-activations (passes/keep_gates.cpp).

namespace onnxgrad::ops::recurrent {

using ir::GraphBuilder;
using ir::Value;

enum class Cell : std::uint8_t { kRnn, kGru, kLstm };

enum class Act : std::uint8_t {
  kSigmoid,
  kTanh,
  kRelu,
  kAffine,
  kLeakyRelu,
  kThresholdedRelu,
  kScaledTanh,
  kHardSigmoid,
  kElu,
  kSoftsign,
  kSoftplus,
};

struct Activation {
  Act act = Act::kTanh;
  double alpha = 0;
  double beta = 0;
  bool operator==(const Activation&) const = default;
};

/// Attributes of a recurrent node, or of a call of one of its functions.
struct CellAttributes {
  Cell cell = Cell::kRnn;
  int directions = 1;
  bool is_reverse = false;  ///< single direction only
  /// Activations by direction, in the order of ONNX: f; f, g; f, g, h.
  std::vector<Activation> activations = {};
  std::int64_t hidden = 0;  ///< 0: not given
  double clip = 0;          ///< 0: none
  bool input_forget = false;
  bool linear_before_reset = false;

  /// Throws: ModelError for unknown activations, or if their number does not match the directions.
  static CellAttributes read(const ir::Node& node, Cell cell);
  int gates() const { return cell == Cell::kLstm ? 4 : cell == Cell::kGru ? 3 : 1; }
  std::size_t functions() const { return cell == Cell::kLstm ? 3 : cell == Cell::kGru ? 2 : 1; }
  const Activation& activation(int direction, std::size_t i) const {
    return activations[static_cast<std::size_t>(direction) * functions() + i];
  }
  bool goes_back(int direction) const { return is_reverse || direction == 1; }
  /// Returns a key of all attributes, made of letters, digits and underscores.
  std::string key() const;
};

/// Returns the attribute specifications of the operators (`with_layout`) or of their functions.
std::vector<opdef::AttributeSpec> cell_attribute_specs(Cell cell, bool with_layout);
/// Returns the attributes of the node that a call of a function keeps.
std::vector<ir::Attribute> call_attributes(const ir::Node& node);

/// Rewrites a node with layout = 1 as one with layout = 0 between Transposes; nullopt for any
/// other.
std::optional<std::vector<Value*>> lower_layout(const ir::Node& node, GraphBuilder& g);

/// Builder for the body of a function, one direction after the other. Inputs that the call omits
/// are declared and nullptr here.
class CellBody {
 public:
  CellBody(std::string_view base_name, Cell cell, const std::vector<Value*>& given,
           const std::vector<ir::Attribute>& call, const std::vector<std::string>& names);

  CellAttributes attributes;
  opdef::FunctionBody f;
  std::vector<Value*> inputs;  ///< same order as `names`; nullptr: absent

  Value* in(std::string_view name) const;
  /// Takes index d of `value` along `axis` and drops the axis; nullptr for nullptr.
  Value* at(Value* value, std::int64_t axis, int d);
  /// Stacks one value per direction on a new axis.
  Value* stack(const std::vector<Value*>& per_direction, std::int64_t axis);
  /// Splits `value` into `parts` parts of `size` times the hidden units each.
  std::vector<Value*> split(Value* value, std::int64_t axis, std::size_t parts,
                            std::int64_t size = 1);
  /// Returns `value`, or zeros [N, H] for nullptr.
  Value* or_zeros(Value* value);
  /// Returns value where the step is within its sequence, else `otherwise`; `value` without
  /// sequence_lens.
  Value* only_valid(Value* value, double otherwise = 0);
  /// Returns the cotangent [N, H] of the last state of direction d, or zeros. A sequence without
  /// steps has last state zero, whatever its initial state is.
  Value* last_cotangent(std::string_view name, int d);
  /// Returns the padding mask [T, N, 1]: 1 for padding, else 0; nullptr without sequence_lens.
  Value* passing();
  /// Returns the state [T, N, H] before each step of direction d, given the states after the steps
  /// (arbitrary in padding) and the initial one.
  Value* previous(int d, Value* after, Value* initial);
  /// Sums outer products over time: [T, N, m] and [T, N, n] to [m, n]; without b, sums a to [m].
  Value* sum_products(Value* a, Value* b);
  /// Returns x W^T for W [m, n], over the last axis of x.
  Value* times_transposed(Value* x, Value* w) { return f.matmul(x, f.transpose(w, {1, 0})); }

  /// Emits into `g`: the function itself, or the body of a Scan in it.
  Value* activate(GraphBuilder& g, const Activation& activation, Value* x);
  /// Returns the derivative at x; y = activate(x).
  Value* slope(GraphBuilder& g, const Activation& activation, Value* x, Value* y);
  /// Returns activation(x), with x clipped first.
  Value* gate(GraphBuilder& g, const Activation& activation, Value* x);
  struct Point {
    Value* y = nullptr;
    Value* slope = nullptr;
  };
  Point point(const Activation& activation, Value* x);
  /// Returns gate() and its derivative.
  Point gate_point(const Activation& activation, Value* x);

  /// Builds a Scan over the first axis of `sequences`. `step` gets the formal states and elements
  /// and returns the next states, then the stacked outputs.
  using Step = std::function<std::vector<Value*>(GraphBuilder& g, const std::vector<Value*>& states,
                                                 const std::vector<Value*>& elements)>;
  std::vector<Value*> scan(const std::vector<Value*>& states, const std::vector<Value*>& sequences,
                           std::size_t num_stacked, bool backward, const Step& step);

 private:
  Value* scalar(double value) { return f.scalar_like(inputs[0], value); }
  Value* bounded(GraphBuilder& g, Value* x);

  std::vector<std::string> names_;
  Value* valid_ = nullptr;       // bool [T, N, 1]: step t is within its sequence
  Value* next_valid_ = nullptr;  // [T, N, 1]: step t + 1 is within its sequence
};

/// Gradient rule of all three operators: calls <operator>Gates and <operator>Gradient.
std::vector<Value*> cell_vjp(opdef::VjpContext& ctx, GraphBuilder& g);

/// Record of a recurrent operator and its two functions, for registration.
struct CellRecord {
  Cell cell = Cell::kRnn;
  std::string_view op_type = {};
  std::string_view gates = {};
  std::string_view gradient = {};
  opdef::FunctionBodyFn gates_body = nullptr;
  opdef::FunctionBodyFn gradient_body = nullptr;
};
void register_cell(opdef::OpRegistry& registry, const CellRecord& record);

}  // namespace onnxgrad::ops::recurrent

#endif  // ONNXGRAD_OPS_RECURRENT_CELL_H_
