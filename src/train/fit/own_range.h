#ifndef ONNXGRAD_TRAIN_FIT_OWN_RANGE_H_
#define ONNXGRAD_TRAIN_FIT_OWN_RANGE_H_

#include <cstdint>
#include <optional>

#include "onnxgrad/data.h"
#include "train/tools/workers.h"

namespace onnxgrad::train {

/// Limits the passes of a source, during its lifetime, to the rows of one of several workers: a
/// consecutive range. A source that cannot leave rows out returns all of them.
class OwnRange {
 public:
  OwnRange(DataSource& source, const Workers& workers) : source_(source), rows_(source.num_rows()) {
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
