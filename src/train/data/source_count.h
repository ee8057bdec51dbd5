#ifndef ONNXGRAD_TRAIN_DATA_SOURCE_COUNT_H_
#define ONNXGRAD_TRAIN_DATA_SOURCE_COUNT_H_

#include <cstdint>
#include <functional>
#include <optional>

#include "train/data/block_reader.h"

namespace onnxgrad::train {

struct SourceCount {
  std::int64_t rows = 0;     ///< rows that are kept
  std::int64_t batches = 0;  ///< batches of these rows
};

/// Counts the rows of a whole pass. `batch_size`: 0, each chunk is a batch. `keep`: as for a
/// BlockReader. `see`, which may be empty, receives each chunk. nullopt if `stop` became true.
/// Exceptions of the source and of `see` are passed on.
std::optional<SourceCount> count_source(DataSource& source, std::int64_t batch_size, bool drop_last,
                                        const BlockReader::Keep& keep,
                                        const std::function<void(const Dataset&)>& see,
                                        StopFlag& stop);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_DATA_SOURCE_COUNT_H_
