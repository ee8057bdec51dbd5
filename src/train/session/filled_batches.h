#ifndef ONNXGRAD_TRAIN_SESSION_FILLED_BATCHES_H_
#define ONNXGRAD_TRAIN_SESSION_FILLED_BATCHES_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "onnxgrad/tensor.h"

// Batches of a model whose file fixes the number of rows and cannot be opened. A
// smaller batch is filled up with copies of its last row, whose sample weight is 0 (Session).

namespace onnxgrad::train {

/// Rows [begin, begin + size) of `tensor`, copied; its last row stands for those after it.
Tensor filled_rows(const Tensor& tensor, std::int64_t begin, std::int64_t size);

/// Row i of `copy` becomes row rows[i] of `source`, of any dtype.
void copy_tensor_rows(const Tensor& source, std::span<const std::int64_t> rows, Tensor& copy);

/// The first `rows` rows of `tensor`, copied.
Tensor first_rows(const Tensor& tensor, std::int64_t rows);

/// Concatenates `parts` along the first axis. Throws: ShapeError.
Tensor joined_rows(std::span<const Tensor> parts);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_SESSION_FILLED_BATCHES_H_
