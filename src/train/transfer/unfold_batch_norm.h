#ifndef ONNXGRAD_TRAIN_TRANSFER_UNFOLD_BATCH_NORM_H_
#define ONNXGRAD_TRAIN_TRANSFER_UNFOLD_BATCH_NORM_H_

#include <functional>
#include <string>
#include <vector>

#include "ir/graph.h"

namespace onnxgrad::train {

/// Mean and variance of each channel of a convolution's results without its bias.
struct ChannelStatistics {
  std::vector<double> means;
  std::vector<double> variances;
};

/// Names of the results of the convolutions of `file` that a BatchNormalization may have been
/// folded into: with constant weight and bias, and no normalisation that alone reads the result.
std::vector<std::string> folded_results(const ir::Model& file);

/// Puts a BatchNormalization behind each of them. `statistics` gets the name of the result; empty:
/// mean 0, variance 1.
void unfold_batch_norms(ir::Model& file, double epsilon,
                        const std::function<ChannelStatistics(const std::string&)>& statistics);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_TRANSFER_UNFOLD_BATCH_NORM_H_
