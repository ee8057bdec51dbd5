#ifndef ONNXGRAD_TRAIN_OUTPUTS_H_
#define ONNXGRAD_TRAIN_OUTPUTS_H_

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "onnxgrad/error.h"
#include "onnxgrad/model.h"
#include "train/tools/text_codes.h"

namespace onnxgrad::train {

/// An output of a model in a form that plans can compute: tensors of numbers.
struct RunnableOutput {
  std::string name;            ///< name of the model's output
  ir::Value* value = nullptr;  ///< computed form; nullptr: it cannot be computed
  /// Reason for which it cannot be computed.
  std::optional<Problem> problem = {};
  /// String labels [C]: `value` has class numbers and the output is their labels, [N].
  Tensor labels = {};
  /// True if the labels are all texts of the model, and the output has the shape of `value`.
  bool is_text = false;
  /// Keys of the columns of `value`, if the output is that of a ZipMap.
  Tensor keys = {};

  /// Makes the output from the computed `value`. Throws: DataError (a class number out of range).
  Tensor finish(Tensor computed) const;
};

/// One per output of `graph`, in order. A ZipMap is replaced by the tensor that it reads; string
/// labels are looked up after the run.
std::vector<RunnableOutput> runnable_outputs(const ir::Graph& graph);

/// Clears `value` of the outputs that depend on a node without a kernel: they are an error only if
/// requested. `model` owns the values.
void leave_out_unsupported(const ir::Model& model, std::vector<RunnableOutput>& outputs);

/// The positions of the named outputs; of all if there are no names. Throws: DataError (there is
/// none of that name), UnsupportedOperatorError (one that cannot be computed).
std::vector<std::size_t> choose_outputs(std::span<const RunnableOutput> outputs,
                                        std::span<const std::string> names);

/// The description of a value in the public interface.
ValueInfo value_info(const std::string& name, const ir::Type& type);

/// Describes an output by its value, or if that is another one by what the model declares; maps
/// have their keys and the declared type. Strings whose numbers `output` computes are those of
/// `texts`; nullptr: the model reads none.
ValueInfo describe_output(RunnableOutput& output, const ir::Value& declared,
                          const TextCodes* texts);

/// Sets ValueInfo::keys and the type of inputs that are maps in the model of a file, and tensors in
/// its working copy. nullptr: the graph is not from a file.
void describe_map_inputs(const ir::Model* file, std::vector<ValueInfo>& inputs);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_OUTPUTS_H_
