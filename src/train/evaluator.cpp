#include "train/evaluator.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace onnxgrad::train {

using runtime::Execution;

struct Evaluator::Sums {
  double numerator = 0;
  double denominator = 0;
  double correct = 0;
  double counted = 0;  ///< rows that `correct` is of
};

Evaluator::Evaluator(Session& session, PreparedData data, std::int64_t batch_size)
    : session_(session), data_(std::move(data)), batch_size_(std::min(batch_size, data_.rows)) {
  const auto prepare = [&](std::int64_t rows) {
    std::vector<Dims> dims;
    for (const Column& column : data_.columns) dims.push_back(column.batch_dims(rows));
    runtime::Execution& execution = session_.prepare_evaluation(dims);
    pins_.emplace_back(execution);
    return &execution;
  };
  const std::int64_t rest = data_.rows % batch_size_;
  if (rest > 0) tail_ = prepare(rest);
  full_ = prepare(batch_size_);
}

void Evaluator::add_batch(Execution& execution, std::int64_t begin, Sums& sums) {
  for (std::size_t c = 0; c < data_.columns.size(); ++c) {
    execution.bind(c, data_.columns[c].row(begin));
  }
  execution.run();
  const DataType dtype = execution.output_desc(0).dtype;
  sums.numerator += read_scalar(execution.output(0), dtype);
  sums.denominator += read_scalar(execution.output(1), dtype);
  if (!session_.counts_correct_rows()) return;
  sums.correct += read_scalar(execution.output(2), dtype);
  sums.counted += read_scalar(execution.output(3), dtype);
}

EvaluationResult Evaluator::run() {
  Sums sums;
  std::int64_t begin = 0;
  for (; begin + batch_size_ <= data_.rows; begin += batch_size_) add_batch(*full_, begin, sums);
  if (begin < data_.rows) add_batch(*tail_, begin, sums);
  EvaluationResult result;
  result.loss = sums.numerator / sums.denominator;
  result.rows = data_.rows;
  if (session_.counts_correct_rows()) result.accuracy = sums.correct / sums.counted;
  return result;
}

}  // namespace onnxgrad::train
