#ifndef ONNXGRAD_TRAIN_ADAPTERS_MERGE_H_
#define ONNXGRAD_TRAIN_ADAPTERS_MERGE_H_

#include <functional>
#include <string>
#include <string_view>

#include "onnxgrad/model.h"
#include "train/weights/adapter_record.h"

namespace onnxgrad::train {

/// Finds the value of a weight or of an adapter's tensor by name. Throws: ModelError.
using WeightFn = std::function<Tensor(const std::string&)>;

/// The weights of the model that do without the adapters what they do with them, in the dtypes and
/// shapes of the old ones. `weight_of` has the model's weights and those of the adapters. Computed
/// in float64. Throws: ModelError (a quantized weight).
NamedTensors merged_weights(const std::vector<RecordedAdapter>& adapters,
                            const WeightFn& weight_of);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_ADAPTERS_MERGE_H_
