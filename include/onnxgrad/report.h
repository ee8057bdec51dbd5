#ifndef ONNXGRAD_REPORT_H_
#define ONNXGRAD_REPORT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "onnxgrad/model.h"

namespace [[gnu::visibility("default")]] onnxgrad {

/// One operator of a model, named as in its file.
struct OperatorUse {
  std::string domain;
  std::string op_type;
  std::int64_t count = 0;
  /// True if the engine computes it, by a kernel or by other operators, or need not (constants, the
  /// maps of a ZipMap).
  bool runs = false;
  bool has_gradient = false;  ///< or needs none, like constants
};

/// Support for one operator, independent of any model.
struct OperatorInfo {
  std::string domain;  ///< "" is ai.onnx
  std::string op_type;
  bool has_rule = false;       ///< has a gradient rule
  bool is_lowered = false;     ///< written by other operators when a model is loaded
  bool has_zero_grad = false;  ///< piecewise constant
  bool has_kernel = false;     ///< has a kernel, is element-wise, or is a view
  bool is_on_cards = false;    ///< the same of cards of NVIDIA; else the CPU runs it
};

/// Every operator that files may hold and the engine has a record of, sorted by domain and name.
/// Others run if ONNX defines them by operators of this table.
std::vector<OperatorInfo> operator_table();

/// A node between the trainable weights and the loss through which no gradient passes.
struct MissingGradientInfo {
  std::string op_type;
  std::string node;
  int input = 0;
  std::string reason;
};

/// Contents of a model, and what training it would do.
struct Report {
  std::string file;
  std::string producer;
  std::int64_t opset = 0;
  std::int64_t ir_version = 0;
  std::vector<ValueInfo> inputs;
  std::vector<ValueInfo> outputs;
  std::vector<OperatorUse> operators;  ///< sorted by domain and name
  std::vector<WeightInfo> weights;
  /// For each weight, the floating-point operations of its layer in a forward pass of one row: 2
  /// for each multiply-add of a matrix product or convolution, else 1 for each element of the
  /// result. Unknown dimensions count as 1; 0 if the rank is unknown or nothing is
  /// computed.
  std::vector<double> weight_flops;
  std::vector<SeparatedWeight> separated;  ///< weights that training splits
  /// Descriptions of tensors that repeat or transpose another one and are trained as one with it:
  /// "'logits.weight' is 'table' transposed".
  std::vector<std::string> tied;
  std::vector<std::int64_t> weight_readers;  ///< for each weight, the nodes that read it
  std::int64_t num_trainable = 0;            ///< elements of trainable weights
  std::int64_t num_parameters = 0;           ///< elements of all floating weights
  /// LossInfo::line, with the other loss if class labels would change it; empty if none is found.
  std::string loss_line;
  std::string loss_problem;  ///< reason for which no loss was found
  std::vector<MissingGradientInfo> missing_gradients;
  bool is_trainable = false;  ///< trainable with the automatic loss and default options
  /// Verdict such as "trainable: trains 38 of 40 weights", or the reason why not, and advice.
  std::string verdict;

  /// Aligned tables, at most 100 columns wide except for long names of weights, which are not cut.
  /// Python and the command line print this text.
  std::string to_text() const;
};

/// Examines a model. Thread-safe. Throws: ModelError (an operator that cannot be converted to the
/// internal opset).
Report report(const Model& model);

}  // namespace onnxgrad

#endif  // ONNXGRAD_REPORT_H_
