#ifndef ONNXGRAD_TRAIN_PROGRAM_NAMES_H_
#define ONNXGRAD_TRAIN_PROGRAM_NAMES_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "ir/graph.h"
#include "train/weights/weights.h"

// Names in an exported file that come from the program that it was written from, and what its
// metadata say of a tensor there.

namespace onnxgrad::train {

/// The call of the program that torch's exporter wrote a node for.
struct ProgramCall {
  std::string target = {};                   ///< "linear" of torch.ops.aten.linear.default
  std::vector<std::string> parameters = {};  ///< names in the call: "enc_layers_0_fc_weight"
  std::vector<std::string> arguments = {};   ///< of all values, in their order: "relu_1", "p_fc"
};

/// Reads a call from the metadata; all fields are empty without.
ProgramCall program_call(const ir::Node& node);

/// The module around a node: "enc.layers.0.linear1" from the metadata or from the name
/// "/enc/layers.0/linear1/MatMul"; "model/dense" of "model/dense/MatMul". At the top level, the
/// name of the node: "matmul_1". Empty if it has no name.
struct ModuleOfNode {
  std::string path = {};
  char separator = '.';
};
ModuleOfNode module_around(const ir::Node& node);

/// Turns names of parameters in a call into those in the program: the paths of modules that occur
/// in the file show which '_' was a '.'.
class ParameterNames {
 public:
  explicit ParameterNames(const ir::Graph& graph);

  /// The name in the program: "enc.layers.0.self_attn.in_proj_weight" of
  /// "enc_layers_0_self_attn_in_proj_weight".
  std::string in_program(std::string_view parameter) const;

 private:
  std::unordered_map<std::string, std::string> paths_;  // names by their form in a call
};

/// A weight's role for the node that reads it.
struct Site {
  const ir::Node* node = nullptr;    ///< the layer, also for a bias that an Add adds
  const ir::Node* reader = nullptr;  ///< the Add then
  int input = 0;                     ///< index among the inputs of `reader`
  std::string role = {};             ///< "weight", "bias", "running_mean", ...
};
/// `weight` has a reader.
Site site_of(const Weight& weight);
/// Whether a parameter of that name, as in a call or in the program, can have the role.
bool fits_role(std::string_view parameter, std::string_view role);

/// True for names of calls that only move numbers: those of a transposed parameter, say.
bool is_name_of_movement(std::string_view name);

/// The part of `name` behind the last of `characters`.
std::string after_last(std::string_view name, std::string_view characters);

/// Kinds of tensors in the program, as far as the file says.
enum class ProgramKind : std::uint8_t {
  kUnknown,
  kParameter,  ///< also computed from a parameter, by the exporter
  kBuffer,     ///< registered beside the parameters: masks, statistics, tables of a formula
  kConstant,   ///< computed by the exporter, from no parameter
};
/// Reads the metadata that torch's exporter gives to initializers: the kind in the signature of the
/// program, or the names that it folded a tensor from.
ProgramKind kind_in_program(const ir::Value& value);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_PROGRAM_NAMES_H_
