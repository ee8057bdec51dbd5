#ifndef ONNXGRAD_OPS_LOSS_CROSS_ENTROPY_H_
#define ONNXGRAD_OPS_LOSS_CROSS_ENTROPY_H_

#include <cstdint>
#include <optional>

#include "ir/graph.h"

namespace onnxgrad::ops {

enum class Reduction : std::uint8_t { kNone, kSum, kMean };

/// Attributes of SoftmaxCrossEntropyLoss, NegativeLogLikelihoodLoss and their gradient functions.
struct CrossEntropyAttrs {
  Reduction reduction = Reduction::kMean;
  std::optional<std::int64_t> ignore_index = {};  ///< rows with this label are ignored

  static CrossEntropyAttrs read(const ir::Node& node);
};

}  // namespace onnxgrad::ops

#endif  // ONNXGRAD_OPS_LOSS_CROSS_ENTROPY_H_
