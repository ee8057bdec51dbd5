#ifndef ONNXGRAD_TRAIN_FIT_OWN_RANGE_H_
#define ONNXGRAD_TRAIN_FIT_OWN_RANGE_H_

#include <cstdint>
#include <optional>

#include "onnxgrad/data.h"
#include "train/tools/workers.h"

namespace onnxgrad::train {

/// Restricts a source, while alive, to this rank's contiguous shard of the rows. Does nothing for
/// one worker, or for a source that cannot skip rows.
class OwnRange {
 public:
  OwnRange(DataSource& source, const Workers& workers) : source_(source) {
    if (!workers.has_others()) return;
    rows_ = source.num_rows();
    if (!rows_ || source.pieces().empty()) return;
    const RowSlice own = workers.slice_of(*rows_);
    is_part_ = source.take_rows(own.first, own.first + own.rows);
  }
  ~OwnRange() {
    if (is_part_) source_.take_rows(0, *rows_);
  }
  OwnRange(const OwnRange&) = delete;
  OwnRange& operator=(const OwnRange&) = delete;

  bool is_part() const { return is_part_; }

 private:
  DataSource& source_;
  std::optional<std::int64_t> rows_;
  bool is_part_ = false;
};

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_FIT_OWN_RANGE_H_
