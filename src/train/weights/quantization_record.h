#ifndef ONNXGRAD_TRAIN_QUANTIZATION_RECORD_H_
#define ONNXGRAD_TRAIN_QUANTIZATION_RECORD_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"

// Scales of a quantized model that its training learns, as its metadata list them: a line
// "<elements> <largest> <name>" for each.

namespace onnxgrad::train {

struct LearnedScale {
  std::string name;           ///< of the initializer
  std::int64_t elements = 1;  ///< of one row, or of one group of a weight, that it scales
  std::int64_t largest = 1;   ///< largest code: 127, 7

  /// Factor of its gradient, 1 / sqrt(elements largest): Esser et al., Learned Step Size
  /// Quantization, 2020, section 2.2.
  double gradient_factor() const;
  /// Factor of its rate under an optimizer whose steps do not depend on the size of gradients:
  /// a step then changes it by as large a part as it changes a weight. The largest of many weights
  /// of a normal distribution is about 3.5 times their deviation.
  double rate_factor() const { return 3.5 / static_cast<double>(largest); }
};

/// The key of the metadata that has the record.
inline constexpr std::string_view kQuantizationEntry = "onnxgrad.learned_scales";

/// The learned scales of a model; empty if there are none. Throws: ModelError (a damaged record).
std::vector<LearnedScale> read_learned_scales(const ir::Model& model);
/// Replaces the record; an empty one is removed.
void write_learned_scales(ir::Model& model, const std::vector<LearnedScale>& scales);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_QUANTIZATION_RECORD_H_
