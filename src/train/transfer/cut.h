#ifndef ONNXGRAD_TRAIN_TRANSFER_CUT_H_
#define ONNXGRAD_TRAIN_TRANSFER_CUT_H_

#include <string>
#include <vector>

#include "ir/graph.h"

namespace onnxgrad::train {

/// Makes values or nodes of these names the outputs of `file`, as features() of
/// onnxgrad/transfer.h describes. Throws: ModelError (unknown name).
void cut(ir::Model& file, const ir::Model& working, const std::vector<std::string>& at);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_TRANSFER_CUT_H_
