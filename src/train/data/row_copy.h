#ifndef ONNXGRAD_TRAIN_DATA_ROW_COPY_H_
#define ONNXGRAD_TRAIN_DATA_ROW_COPY_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/checksum.h"
#include "train/data/dataset.h"

// Copies and hashes of rows. No other code copies rows: strings are objects, whose bytes are
// addresses.

namespace onnxgrad::train {

/// Copies the given rows of a column, in the given order, to a tensor of the same type at `to`.
void gather_rows(const Column& from, std::span<const std::int64_t> rows, std::byte* to);

/// Copies `count` rows of `from`, from row `first` on, to the rows of `to` from row `place` on,
/// which exist. Throws: DataError (the rows have different shapes).
void copy_rows(const Column& from, std::int64_t first, std::int64_t count, Column& to,
               std::int64_t place);

/// Adds the contents of `count` rows, from row `first` on, to `checksum`.
void add_rows(base::Checksum& checksum, const Column& column, std::int64_t first,
              std::int64_t count);

/// The hash of the contents of a row.
std::uint64_t hash_row(const Column& column, std::int64_t row, std::uint64_t seed);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_DATA_ROW_COPY_H_
