#ifndef ONNXGRAD_TRAIN_USER_GRAPH_H_
#define ONNXGRAD_TRAIN_USER_GRAPH_H_

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "ir/builder.h"

// A user-defined part of a training step, given as a model: a loss, an update. Its nodes are
// written into the step, with the types that its inputs have there.

namespace onnxgrad::train {

/// The description of a user's loss or optimizer in messages.
struct UserPart {
  std::string subject;  ///< "user loss"
  std::string form;     ///< required form of its model, one sentence
};

/// Throws ModelError "<subject>: <what>".
[[noreturn]] void refuse_user_part(const UserPart& part, const std::string& what,
                                   const std::string& hint);

/// The working copy of a serialized model without subgraphs whose inputs are tensors.
/// Throws: ModelError (nullptr, anything else).
ir::Model load_user_part(const UserPart& part, const std::shared_ptr<const std::string>& bytes);

/// Inputs without a default value.
std::vector<const ir::Value*> formal_inputs(const ir::Graph& graph);

/// Throws ModelError if `input` is not of the type `expected` of `of` ("the scores").
void check_user_dtype(const UserPart& part, const ir::Value& input, DataType expected,
                      const std::string& of);

/// Appends the nodes of `model` with `given` in place of its inputs, and its functions; returns
/// its outputs. Initializers that `given` does not replace are constants.
std::vector<ir::Value*> write_user_part(ir::GraphBuilder& g, const ir::Model& model,
                                        std::unordered_map<const ir::Value*, ir::Value*> given);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_USER_GRAPH_H_
