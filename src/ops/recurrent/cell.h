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

// What RNN, GRU and LSTM (ai.onnx 22) share: their attributes, and the pieces of which the bodies
// of their functions are made. With D directions, T steps, N sequences, I inputs, H hidden units
// and G gates (1, 3, 4): X [T, N, I], W [D, G H, I], R [D, G H, H], B [D, 2 G H], Y [T, D, N, H].
//
// The gradient of each is two functions of domain `onnxgrad`: <operator>Gates computes the sums
// before the activations from Y, of all steps at once, and <operator>Gradient goes through the
// steps from the back. A plan that has the operator too keeps these sums (passes/keep_gates.cpp).

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

/// The attributes of a node of a cell, or of a call of one of its functions.
struct CellAttributes {
  Cell cell = Cell::kRnn;
  int directions = 1;
  bool is_reverse = false;  ///< of one direction
  /// By direction, in the order of ONNX: f; f, g; f, g, h.
  std::vector<Activation> activations = {};
  std::int64_t hidden = 0;  ///< 0: not said
  double clip = 0;          ///< 0: none
  bool input_forget = false;
  bool linear_before_reset = false;

  /// Throws: ModelError for unknown activations, or another number of them than the directions
  /// need.
  static CellAttributes read(const ir::Node& node, Cell cell);
  int gates() const { return cell == Cell::kLstm ? 4 : cell == Cell::kGru ? 3 : 1; }
  std::size_t functions() const { return cell == Cell::kLstm ? 3 : cell == Cell::kGru ? 2 : 1; }
  const Activation& activation(int direction, std::size_t i) const {
    return activations[static_cast<std::size_t>(direction) * functions() + i];
  }
  bool goes_back(int direction) const { return is_reverse || direction == 1; }
  /// All of it in letters, digits and underscores.
  std::string key() const;
};

/// Of the operators (`with_layout`) and of their functions.
std::vector<opdef::AttributeSpec> cell_attribute_specs(Cell cell, bool with_layout);
/// What a call of a function keeps of the node's attributes.
std::vector<ir::Attribute> call_attributes(const ir::Node& node);

/// A node with layout = 1 as one with layout = 0 between Transposes; nullopt for any other.
std::optional<std::vector<Value*>> lower_layout(const ir::Node& node, GraphBuilder& g);

/// The body of a function of a cell, written one direction after the other. Inputs that the call
/// leaves out are declared and nullptr here.
class CellBody {
 public:
  CellBody(std::string_view base_name, Cell cell, const std::vector<Value*>& given,
           const std::vector<ir::Attribute>& call, const std::vector<std::string>& names);

  CellAttributes attributes;
  opdef::FunctionBody f;
  std::vector<Value*> inputs;  ///< in the order of `names`; nullptr: absent

  Value* in(std::string_view name) const;
  /// `value` at index d of `axis`, without that axis; nullptr for nullptr.
  Value* at(Value* value, std::int64_t axis, int d);
  /// Stacks one value per direction on a new axis.
  Value* stack(const std::vector<Value*>& per_direction, std::int64_t axis);
  /// `parts` parts of `size` times the hidden units each.
  std::vector<Value*> split(Value* value, std::int64_t axis, std::size_t parts,
                            std::int64_t size = 1);
  /// `value`, or zeros [N, H].
  Value* or_zeros(Value* value);
  /// value where the step is within its sequence, else `otherwise`; `value` without
  /// sequence_lens.
  Value* only_valid(Value* value, double otherwise = 0);
  /// [N, H]: the cotangent of the last state of direction d, or zeros. A sequence of no steps has
  /// the last state zero, whatever its first one is.
  Value* last_cotangent(std::string_view name, int d);
  /// [T, N, 1]: 1 for padding, else 0; nullptr without sequence_lens.
  Value* passing();
  /// [T, N, H]: what state each step of direction d starts from, given the states after the steps
  /// (in padding: arbitrary) and the one before the first.
  Value* previous(int d, Value* after, Value* initial);
  /// Sums of the products over time, [T, N, m] and [T, N, n] to [m, n]; without b, sums [m].
  Value* sum_products(Value* a, Value* b);
  /// [m, n] times the last axis of x: x W^T.
  Value* times_transposed(Value* x, Value* w) { return f.matmul(x, f.transpose(w, {1, 0})); }

  /// These write into `g`: the function itself, or the body of a Scan in it.
  Value* activate(GraphBuilder& g, const Activation& activation, Value* x);
  /// The derivative at x; y = activate(x).
  Value* slope(GraphBuilder& g, const Activation& activation, Value* x, Value* y);
  /// activation(x), with the bounds of `clip` before it.
  Value* gate(GraphBuilder& g, const Activation& activation, Value* x);
  struct Point {
    Value* y = nullptr;
    Value* slope = nullptr;
  };
  Point point(const Activation& activation, Value* x);
  /// gate() and its derivative.
  Point gate_point(const Activation& activation, Value* x);

  /// A Scan over the first axis of `sequences`. `step` gets the formal states and elements and
  /// returns the next states, then what is stacked.
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

/// The rule of all three cells: calls <operator>Gates and <operator>Gradient.
std::vector<Value*> cell_vjp(opdef::VjpContext& ctx, GraphBuilder& g);

/// What registers a cell: the operator and its two functions.
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
