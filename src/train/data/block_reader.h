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

// Reads a DataSource ahead of the one who uses its rows:
//
//   source --chunks--> prepare (check, convert) --> keep (share for validation)
//          --> blocks of whole batches --> next()
//
// A thread per pass does all that. There are two blocks (the double buffer): while one is used the
// other is filled. Their memory is allocated once in a pass, so what a pass needs does not depend
// on the number of rows.

namespace onnxgrad::train {

/// Rows that are used together, and the order in which to take them.
struct Block {
  PreparedData data;
  std::vector<std::int64_t> order;  ///< empty: as they are
};

struct BlockOptions {
  /// Rows of a batch: blocks hold whole batches, but for the last one of a pass. 0: each chunk is
  /// one batch, and a block.
  std::int64_t batch_size = 0;
  std::int64_t block_bytes = std::int64_t{32} << 20;  ///< of one of the two blocks, at most
  bool shuffle = false;  ///< chunks as the source can, then the rows of each block
  std::uint64_t seed = 0;
};

class BlockReader {
 public:
  using Prepare = std::function<PreparedData(const Dataset&)>;
  /// Numbers, in rising order, of the rows of a chunk that are wanted.
  using Keep = std::function<std::vector<std::int64_t>(std::int64_t first_row, std::int64_t rows)>;

  /// `source` outlives this. `prepare` and `keep` (may be empty: all rows) are called by the
  /// reading thread.
  BlockReader(DataSource& source, Prepare prepare, Keep keep, const BlockOptions& options);
  /// Ends the thread, after the chunk that it is reading.
  ~BlockReader();

  /// Begins a pass; what is left of the one before is dropped.
  void start(std::uint32_t epoch);
  /// The next block, valid until the next call; nullptr at the end of the pass, or if `stop` became
  /// true while waiting. Throws: what the source and `prepare` throw.
  const Block* next(StopFlag& stop);
  /// Ends the pass before its end.
  void end_pass();

  /// Seconds that next() waited since construction.
  double waited_s() const { return waited_s_; }

 private:
  void read_pass(std::uint32_t epoch);
  void read_chunks(std::uint32_t epoch);
  bool add_rows(const PreparedData& rows, std::uint32_t epoch);
  void make_room(const PreparedData& sample);
  Block* take_free();
  bool hand_over(std::uint32_t epoch);

  DataSource& source_;
  Prepare prepare_;
  Keep keep_;
  BlockOptions options_;
  std::shared_ptr<base::MemoryBudget> budget_;

  // Of the reading thread.
  std::vector<std::unique_ptr<Block>> blocks_;
  Block* filling_ = nullptr;
  std::int64_t capacity_ = 0;      // rows of a block
  std::uint32_t blocks_done_ = 0;  // of this pass

  // Of both, under mutex_.
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

/// Ends the pass of a reader, whatever ends its use: the thread does not outlive it.
struct PassEnder {
  explicit PassEnder(BlockReader& ended) : reader(ended) {}
  ~PassEnder() { reader.end_pass(); }
  PassEnder(const PassEnder&) = delete;
  PassEnder& operator=(const PassEnder&) = delete;
  BlockReader& reader;
};

/// Which of the rows of a streamed data set are for validation: each is drawn by itself, as a
/// function of seed and its place, with probability `fraction`.
bool is_validation_row(std::uint64_t seed, double fraction, std::int64_t row);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_DATA_BLOCK_READER_H_
