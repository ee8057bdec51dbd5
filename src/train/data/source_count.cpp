#include "train/data/source_count.h"

namespace onnxgrad::train {
namespace {

std::int64_t rows_of(const Dataset& chunk) {
  const Tensor& target = chunk.targets.empty() ? chunk.target : chunk.targets.front().tensor;
  const bool is_alone = !target.is_defined() && !chunk.inputs.empty();  // no target at all
  const Tensor& counted = is_alone ? chunk.inputs.front().tensor : target;
  return counted.is_defined() && counted.dims().rank() > 0 ? counted.dims()[0] : 0;
}

}  // namespace

std::optional<SourceCount> count_source(DataSource& source, std::int64_t batch_size, bool drop_last,
                                        const BlockReader::Keep& keep,
                                        const std::function<void(const Dataset&)>& see,
                                        StopFlag& stop) {
  SourceCount count;
  std::int64_t first_rows = 0;  // rows of the first chunk, if chunks are batches
  source.start({});
  while (const std::optional<Dataset> chunk = source.next()) {
    if (stop.is_set()) return std::nullopt;
    if (see) see(*chunk);
    std::int64_t rows = rows_of(*chunk);
    if (keep) rows = std::ssize(keep(chunk->first_row, rows));
    if (rows == 0) continue;
    if (first_rows == 0) first_rows = rows;
    const bool is_left_out = drop_last && rows < first_rows;
    if (batch_size == 0 && !is_left_out) ++count.batches;
    count.rows += rows;
  }
  if (batch_size > 0) {
    const bool has_tail = count.rows % batch_size > 0 && !drop_last;
    count.batches = count.rows / batch_size + (has_tail ? 1 : 0);
  }
  return count;
}

}  // namespace onnxgrad::train
