#ifndef ONNXGRAD_TRAIN_WEIGHT_ROLES_H_
#define ONNXGRAD_TRAIN_WEIGHT_ROLES_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "ir/uses.h"
#include "opdef/registry.h"

// The role of an initializer for the nodes that it reaches.

namespace onnxgrad::train {

enum class Role : std::uint8_t {
  kNone,       ///< no parameter, see Reading::reason
  kStatistic,  ///< running statistics: no parameter, but state of a training
  kFormula,    ///< an operand with a gradient: names and numbers distinguish parameters from
               ///< constants
  kTable,      ///< a layer's parameter, unless its elements come from a formula
  kLayer,      ///< a layer's parameter
};

/// Reading::reason of scales that quantized values are multiplied by. Neither the scales of
/// activations nor those of weights are trained by default, whether the model writes QuantizeLinear
/// and DequantizeLinear, QLinear operators or products of integers, wherever else they are read.
inline constexpr std::string_view kQuantizationScale = "a scale of quantized numbers";
/// Entries that the codes of quantized numbers select, as those of NF4.
inline constexpr std::string_view kQuantizationTable = "a table of quantized numbers";

/// One place where an initializer meets values that depend on the model's inputs.
struct Reading {
  const ir::Node* node = nullptr;
  int input = 0;
  Role role = Role::kNone;
  const ir::Node* layer = nullptr;  ///< for a bias added by an Add: the node before the Add
  bool is_operand_alone = false;    ///< alone read by an Exp, Sigmoid, ... on the path
  std::string reason = {};          ///< for kNone, and a kFormula that scales the model's inputs
};

class RoleFinder {
 public:
  RoleFinder(const ir::Model& model, const opdef::OpRegistry& registry);

  /// All nodes that `initializer` reaches: through operators that move or keep elements, and
  /// through expressions of only initializers (a weight that is standardised before its convolution
  /// reads it).
  std::vector<Reading> readings(const ir::Value* initializer) const;
  /// The first node that reads it; nullptr if there is none.
  const ir::Node* first_reader(const ir::Value* initializer) const {
    return uses_.first_reader(initializer);
  }
  /// True for initializers and values computed only from them.
  bool is_constant(const ir::Value* value) const { return constants_.contains(value); }
  /// Why `initializer` is no parameter if it belongs to a matrix of opdef/quantized_weight.h; empty
  /// if it does not.
  std::string_view reason_in_quantized(const ir::Value* initializer) const {
    const auto found = quantized_.find(initializer);
    return found == quantized_.end() ? std::string_view() : found->second;
  }

 private:
  /// Distance of a value from the model's inputs.
  enum class Distance : std::uint8_t { kFar, kShifted, kInput };

  void collect(const ir::Graph& graph);
  void collect_quantized(const ir::Node& reader);
  bool is_computed_from_constants(const ir::Node& node) const;
  bool passes(const ir::Node& node, opdef::Passage least) const;
  bool moves(const ir::Node& node, int input) const;
  Reading read(const ir::Use& use, const ir::Value* value, bool keeps_numbers) const;
  bool is_from_integers(const ir::Value* value) const;
  bool is_matmul_of_integers(const ir::Value* value) const;
  bool scales_integers(const ir::Use& use) const;
  bool is_bias_or_scale(const ir::Use& use, const ir::Value* value, Reading& reading) const;
  bool is_scale_of_normalization(const ir::Node& node, std::size_t input) const;
  const ir::Node* layer_before(const ir::Value* value) const;
  bool scales_inputs(const ir::Use& use, const ir::Value* value) const;
  Distance distance_to_inputs(const ir::Value* value) const;

  const opdef::OpRegistry& registry_;
  const ir::Graph& main_;
  ir::Uses uses_;
  std::unordered_set<const ir::Value*> constants_;
  std::unordered_map<const ir::Value*, std::string_view> quantized_;  // floating-point initializers
};

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_WEIGHT_ROLES_H_
