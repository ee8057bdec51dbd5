#ifndef ONNXGRAD_TRAIN_EVALUATOR_H_
#define ONNXGRAD_TRAIN_EVALUATOR_H_

#include <cstdint>
#include <vector>

#include "train/dataset.h"
#include "train/session.h"

namespace onnxgrad::train {

/// Loss and accuracy over a prepared data set, in batches. Plans are compiled in the constructor.
class Evaluator {
 public:
  /// Batches of `batch_size` rows, the last one smaller.
  Evaluator(Session& session, PreparedData data, std::int64_t batch_size);
  EvaluationResult run();

 private:
  struct Sums;
  void add_batch(runtime::Execution& execution, std::int64_t begin, Sums& sums);

  Session& session_;
  PreparedData data_;
  std::int64_t batch_size_;
  runtime::Execution* full_ = nullptr;
  runtime::Execution* tail_ = nullptr;
  std::vector<runtime::Pin> pins_;  // of these two
};

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_EVALUATOR_H_
