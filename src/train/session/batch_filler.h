#ifndef ONNXGRAD_TRAIN_SESSION_BATCH_FILLER_H_
#define ONNXGRAD_TRAIN_SESSION_BATCH_FILLER_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "onnxgrad/tensor.h"
#include "train/open_batch/open_batch.h"
#include "train/session/step_runner.h"

namespace onnxgrad::train {

// Batches of a model whose file fixes the number of rows and cannot be opened. A
// smaller batch is filled up with copies of its last row, whose sample weight is 0 (Session).

/// Rows [begin, begin + size) of `tensor`, copied; its last row stands for those after it.
Tensor filled_rows(const Tensor& tensor, std::int64_t begin, std::int64_t size);

/// Row i of `copy` becomes row rows[i] of `source`, of any dtype.
void copy_tensor_rows(const Tensor& source, std::span<const std::int64_t> rows, Tensor& copy);

/// The first `rows` rows of `tensor`, copied.
Tensor first_rows(const Tensor& tensor, std::int64_t rows);

/// Concatenates `parts` along the first axis. Throws: ShapeError.
Tensor joined_rows(std::span<const Tensor> parts);

/// Batches of a session in memory, of which the file may fix the number of rows: see
/// session/filled_batches.h.
class BatchFiller {
 public:
  /// `adds_weights`: the sample weights of `step` are for filled batches, and may be absent. `form`
  /// and `step` outlive this.
  BatchFiller(const BatchForm& form, const StepRunner& step, bool adds_weights)
      : form_(form), step_(step), adds_weights_(adds_weights) {}

  /// Returns `feeds`, with a sample weight of 1 for each row where weights only serve to fill
  /// batches.
  NamedTensors with_weights(const NamedTensors& feeds) const;
  /// How many rows there are, if the batch is fixed and has another number of them.
  std::optional<std::int64_t> rows_to_split(const NamedTensors& feeds) const;
  /// The batch that begins at this row, filled up.
  NamedTensors batch_of(const NamedTensors& feeds, std::int64_t begin, std::int64_t rows) const;
  /// Throws: DataError (so many rows are no whole batches, and rows cannot be left out).
  void expect_filling(std::int64_t rows) const;
  /// Throws: ShapeError (a step takes one batch).
  void expect_whole_batch(const NamedTensors& feeds) const;

 private:
  bool has_rows(const std::string& feed) const;

  const BatchForm& form_;
  const StepRunner& step_;
  bool adds_weights_;
};

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_SESSION_BATCH_FILLER_H_
