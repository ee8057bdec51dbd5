#ifndef ONNXGRAD_TRAIN_DATA_LANE_READER_H_
#define ONNXGRAD_TRAIN_DATA_LANE_READER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "train/data/dataset.h"
#include "train/data/lanes.h"

namespace onnxgrad::train {

/// Reads the rows of one of several workers out of the lanes of an epoch. Rows of other workers are
/// not read, except in the pieces of a lane that is divided between two.
class LaneReader {
 public:
  struct Options {
    Pass pass = {};
    std::int64_t batch_size = 1;
    int rank = 0;
    int workers = 1;
    bool uses_all_rows = true;  ///< every row of each piece is used
    std::function<PreparedData(const Dataset&)> prepare = {};
    /// Rows to keep, see BlockReader; may be empty.
    std::function<std::vector<std::int64_t>(std::int64_t first_row, std::int64_t rows)> keep = {};
    std::function<bool()> ends = {};  ///< whether to end early
  };
  /// `source` and `lanes` outlive this.
  LaneReader(const DataSource& source, const Lanes& lanes, Options options);

  /// Some rows, as an example of their form; nullptr: it is to end.
  const PreparedData* sample();
  /// Maximum number of this worker's rows in the positions [begin, end) of the epoch.
  std::int64_t most_rows(std::int64_t begin, std::int64_t end) const;
  /// Appends this worker's rows of the positions [begin, end) of the epoch to `data`, which has
  /// room for them; begin continues where the last call ended. `order`: the row at each position, 0
  /// where another worker has it; empty if the rows are in order and all are this worker's. Rows of
  /// a block are permuted within each lane. False: it is to end.
  bool fill(std::int64_t begin, std::int64_t end, PreparedData& data,
            std::vector<std::int64_t>& order);

 private:
  struct Stream {
    std::unique_ptr<DataSource> source = {};  ///< opened when it is needed
    PreparedData rows = {};                   ///< rows of the current chunk
    std::int64_t first = 0;                   ///< first row of the chunk in the lane
    std::int64_t end() const { return first + rows.rows; }
  };
  bool load(std::size_t lane);
  bool take(std::size_t lane, PreparedData& data, std::vector<std::int64_t>& order);
  std::vector<std::int64_t> needed_pieces(std::size_t lane) const;
  void place(std::int64_t begin, std::int64_t end, bool takes_all);

  const DataSource& source_;
  const Lanes& lanes_;
  Options options_;
  std::vector<Stream> streams_;
  std::uint32_t blocks_ = 0;
  std::vector<std::int64_t> now_;    ///< rows of each lane in blocks before the current one
  std::vector<std::int64_t> after_;  ///< rows of each lane, with the current block
  /// Destination of each row of the current block, by lane; kOthers: another worker.
  std::vector<std::vector<std::uint32_t>> places_;
  std::vector<bool> is_needed_;  ///< lanes that this worker needs
  std::vector<std::int64_t> numbers_;
};

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_DATA_LANE_READER_H_
