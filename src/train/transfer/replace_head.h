#ifndef ONNXGRAD_TRAIN_TRANSFER_REPLACE_HEAD_H_
#define ONNXGRAD_TRAIN_TRANSFER_REPLACE_HEAD_H_

#include <string>
#include <vector>

#include "ir/graph.h"
#include "onnxgrad/transfer.h"

namespace onnxgrad::train {

/// Replaces heads of `file`, as replace_head() of onnxgrad/transfer.h describes. Returns the names
/// of the new weights, which are zeros and have to be drawn; those in attributes are drawn here.
/// Throws: ModelError.
std::vector<std::string> replace_heads(ir::Model& file, const ir::Model& working,
                                       const HeadOptions& options);

/// The value that the only head of `file` reads. Throws: ModelError (no head, or several).
ir::Value* head_input(ir::Model& file, const ir::Model& working);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_TRANSFER_REPLACE_HEAD_H_
