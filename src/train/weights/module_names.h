#ifndef ONNXGRAD_TRAIN_MODULE_NAMES_H_
#define ONNXGRAD_TRAIN_MODULE_NAMES_H_

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "ir/graph.h"

// Names in the nodes of an exported file that come from the program that it was written from.

namespace onnxgrad::train {

/// The call of the program that torch's exporter wrote a node for.
struct ProgramCall {
  std::string target = {};                   ///< "linear" of torch.ops.aten.linear.default
  std::vector<std::string> parameters = {};  ///< names in the call: "enc_layers_0_fc_weight"
};

/// Reads a call from the metadata; both fields are empty without.
ProgramCall program_call(const ir::Node& node);

/// The module around a node: "enc.layers.0.linear1" from the metadata or from the name
/// "/enc/layers.0/linear1/MatMul"; "model/dense" of "model/dense/MatMul". At the top level, the
/// name of the node: "matmul_1". Empty if it has no name.
struct ModuleOfNode {
  std::string path = {};
  char separator = '.';
};
ModuleOfNode module_of(const ir::Node& node);

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

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_MODULE_NAMES_H_
