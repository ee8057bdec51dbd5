#ifndef ONNXGRAD_TRAIN_DATA_BLOCK_READER_H_
#define ONNXGRAD_TRAIN_DATA_BLOCK_READER_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/memory_budget.h"
#include "onnxgrad/data.h"
#include "train/data/dataset.h"
#include "train/data/stop_flag.h"

// Reads a DataSource ahead of the consumer of its rows:
//
//   source --chunks--> prepare (check, convert) --> keep (validation split)
//          --> blocks of full batches --> next()
//
// A source of pieces is read by several readers at once, in lanes, which do the same and give each
// block the same fraction of its rows.
//
// One thread per pass does all this. There are two blocks (double buffering): while one is used the
// other is filled. Their memory is allocated once per pass, so the memory of a pass does not depend
// on the number of rows.

namespace onnxgrad::train {

/// Rows that are used together, and the order in which to use them.
struct Block {
  PreparedData data;
  std::vector<std::int64_t> order;  ///< empty: in their order
  std::int64_t rows = 0;            ///< positions; of several workers: with those of the others
};

struct BlockOptions {
  /// Rows of a batch: blocks contain full batches, except the last one of a pass. 0: each chunk is
  /// one batch, and a block.
  std::int64_t batch_size = 0;
  std::int64_t block_bytes = std::int64_t{32} << 20;  ///< maximum size of each of the two blocks
  bool shuffle = false;  ///< chunks if the source can, then the rows of each block
  std::uint64_t seed = 0;
  /// Pieces of the source, to be read in lanes (Lanes); empty: chunks as they come.
  std::vector<Piece> pieces = {};
  std::vector<std::int64_t> used = {};  ///< rows of each that are kept; empty: all
  int rank = 0;                         ///< with pieces: among so many workers; a block has the
  int workers = 1;                      ///< rows of this one's slices of its batches
};

class BlockReader {
 public:
  using Prepare = std::function<PreparedData(const Dataset&)>;
  /// Indices, in increasing order, of the rows of a chunk to keep.
  using Keep = std::function<std::vector<std::int64_t>(std::int64_t first_row, std::int64_t rows)>;

  /// `source` outlives this. `prepare` and `keep` (may be empty: all rows) are called by the
  /// reading thread.
  BlockReader(DataSource& source, Prepare prepare, Keep keep, const BlockOptions& options);
  /// Ends the thread, after the chunk that it is reading.
  ~BlockReader();

  /// Begins a pass; the rest of the previous one is dropped.
  void start(std::uint32_t epoch);
  /// The next block, valid until the next call; nullptr at the end of the pass, or if `stop` became
  /// true while waiting. Throws: what the source and `prepare` throw.
  const Block* next(StopFlag& stop);
  /// Ends the pass early.
  void end_pass();

  /// Seconds that next() waited since construction.
  double waited_s() const { return waited_s_; }

 private:
  void read_pass(std::uint32_t epoch);
  void read_chunks(std::uint32_t epoch);
  void read_lanes(std::uint32_t epoch);
  bool is_ending();
  bool add_rows(const PreparedData& rows, std::uint32_t epoch);
  void make_room(const PreparedData& sample);
  std::int64_t row_bytes_of(const PreparedData& sample) const;
  Block* take_free();
  bool hand_over(std::uint32_t epoch);

  DataSource& source_;
  Prepare prepare_;
  Keep keep_;
  BlockOptions options_;
  std::shared_ptr<base::MemoryBudget> budget_;

  // State of the reading thread.
  std::vector<std::unique_ptr<Block>> blocks_;
  Block* filling_ = nullptr;
  std::int64_t capacity_ = 0;      // rows of a block
  std::uint32_t blocks_done_ = 0;  // blocks of this pass

  // State of both threads, guarded by mutex_.
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Block*> free_;
  std::deque<Block*> ready_;
  bool is_done_ = true;
  bool is_ending_ = false;
  std::exception_ptr error_;

  std::thread thread_;
  Block* used_ = nullptr;
  double waited_s_ = 0;
};

/// Ends the pass of a reader, however its use ends: the thread does not outlive it.
struct PassEnder {
  explicit PassEnder(BlockReader& ended) : reader(ended) {}
  ~PassEnder() { reader.end_pass(); }
  PassEnder(const PassEnder&) = delete;
  PassEnder& operator=(const PassEnder&) = delete;
  BlockReader& reader;
};

/// True if this row of a streamed data set is for validation: each row is drawn independently, as a
/// function of seed and its position, with probability `fraction`.
bool is_validation_row(std::uint64_t seed, double fraction, std::int64_t row);

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

#endif  // ONNXGRAD_TRAIN_DATA_BLOCK_READER_H_
