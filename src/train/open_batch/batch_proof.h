#ifndef ONNXGRAD_TRAIN_BATCH_PROOF_H_
#define ONNXGRAD_TRAIN_BATCH_PROOF_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ir/graph.h"

namespace onnxgrad::train {

/// Checks that `open`, a copy of `fixed` with an open batch dimension, computes each row of a batch
/// as `fixed` does: both are run on the same random rows, `open` on twice as many as `fixed` takes,
/// and on a single one. Returns a description of the first difference, or "".
std::string disprove(const std::shared_ptr<const ir::Model>& fixed,
                     const std::shared_ptr<const ir::Model>& open, std::int64_t rows,
                     const std::vector<std::string>& inputs);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_BATCH_PROOF_H_
