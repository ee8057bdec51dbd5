#ifndef ONNXGRAD_TRAIN_MEAN_H_
#define ONNXGRAD_TRAIN_MEAN_H_

namespace onnxgrad::train {

/// sum / count; 0 if nothing counts, as in the step's loss.
inline double mean_of(double sum, double count) { return count == 0 ? 0 : sum / count; }

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_MEAN_H_
