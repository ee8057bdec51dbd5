#include "train/session/filled_batches.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "onnxgrad/error.h"

namespace onnxgrad::train {
namespace {

Dims with_rows(const Dims& dims, std::int64_t rows) {
  std::vector<std::int64_t> sizes(dims.begin(), dims.end());
  sizes[0] = rows;
  return Dims(std::move(sizes));
}

// Row `to` of a copy becomes row `from`.
void copy_row(const Tensor& source, std::int64_t from, Tensor& copy, std::int64_t to) {
  const std::int64_t elements = source.dims().product(1, source.dims().rank());
  if (source.dtype() == DataType::kString) {
    const auto row = source.strings().subspan(static_cast<std::size_t>(from * elements),
                                              static_cast<std::size_t>(elements));
    std::ranges::copy(row, copy.mutable_strings().begin() + to * elements);
    return;
  }
  const auto bytes =
      static_cast<std::size_t>(source.size_bytes()) / static_cast<std::size_t>(source.dims()[0]);
  std::memcpy(copy.mutable_raw() + static_cast<std::size_t>(to) * bytes,
              source.raw() + static_cast<std::size_t>(from) * bytes, bytes);
}

}  // namespace

Tensor filled_rows(const Tensor& tensor, std::int64_t begin, std::int64_t size) {
  Tensor rows = Tensor::empty(tensor.dtype(), with_rows(tensor.dims(), size));
  const std::int64_t last = tensor.dims()[0] - 1;
  for (std::int64_t i = 0; i < size; ++i) copy_row(tensor, std::min(begin + i, last), rows, i);
  return rows;
}

void copy_tensor_rows(const Tensor& source, std::span<const std::int64_t> rows, Tensor& copy) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    copy_row(source, rows[i], copy, static_cast<std::int64_t>(i));
  }
}

Tensor first_rows(const Tensor& tensor, std::int64_t rows) { return filled_rows(tensor, 0, rows); }

Tensor joined_rows(std::span<const Tensor> parts) {
  std::int64_t rows = 0;
  for (const Tensor& part : parts) rows += part.dims()[0];
  Tensor whole = Tensor::empty(parts[0].dtype(), with_rows(parts[0].dims(), rows));
  std::int64_t next = 0;
  for (const Tensor& part : parts) {
    if (with_rows(part.dims(), 1) != with_rows(whole.dims(), 1)) {
      throw ShapeError({.what = fmt::format("an output has shapes {} and {} for different rows",
                                            parts[0].dims().to_string(), part.dims().to_string()),
                        .hint = "Predict as many rows at a time as the file's batch has."});
    }
    for (std::int64_t i = 0; i < part.dims()[0]; ++i) copy_row(part, i, whole, next++);
  }
  return whole;
}

}  // namespace onnxgrad::train
