#ifndef ONNXGRAD_TRAIN_STREAM_FIT_H_
#define ONNXGRAD_TRAIN_STREAM_FIT_H_

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "onnxgrad/trainer.h"
#include "train/data/block_reader.h"
#include "train/evaluator.h"
#include "train/fit_loop.h"
#include "train/schedules.h"
#include "train/session.h"

// The epoch loop over data that comes in chunks: FitLoop for what is not in memory. Each block of
// rows is checked and converted by the reading thread; plans are compiled when a batch of a new
// shape comes. What needs the rows a second time (checkpoints within an epoch, the search for the
// node that gave the first NaN) is FitLoop's alone. Start reading at StreamFit::run.

namespace onnxgrad::train {

class StreamFit {
 public:
  /// `source` outlives this. `history` is cleared. `stop` is looked at after every step, and while
  /// rows are awaited. Throws: DataError (options that need all rows).
  StreamFit(Session& session, DataSource& source, const FitOptions& options,
            std::atomic<bool>& stop, History& history);
  /// Throws: what the source throws, DataError of a chunk, ConvergenceError, what callbacks throw.
  void run();

 private:
  struct RunEnder;
  void settle_options();
  void open_readers(DataSource& source);
  void prepare_schedule();
  bool run_epoch(EpochLog& log);
  bool run_blocks();
  bool run_block(const Block& block);
  bool run_batch(const PreparedData& rows, std::span<const std::int64_t> order, std::int64_t begin,
                 std::int64_t count);
  runtime::Execution& plan(const PreparedData& rows, std::int64_t count);
  bool goes_on(double loss);
  void handle_fault(const std::string& fault_seen);
  void mark_best(EpochLog& log);
  bool end_with(std::string reason);

  Session& session_;
  Session::FitScope fit_;
  FitOptions options_;
  std::atomic<bool>& stop_;
  History& history_;

  std::vector<runtime::Port> data_ports_;  ///< without the learning rate
  std::vector<std::size_t> ports_;         ///< their places
  bool as_they_come_ = false;
  std::int64_t batch_size_ = 0;  ///< 0: the first batch will tell
  std::optional<std::int64_t> num_rows_;
  std::optional<BlockReader> reader_;
  std::optional<Validation> validation_;
  std::vector<Tensor> staging_;  ///< per column, one batch
  std::vector<Dims> plan_dims_;
  runtime::Execution* plan_ = nullptr;
  std::optional<runtime::Pin> pin_;  ///< of it

  std::optional<ScheduleRun> schedule_;
  double first_rate_ = 0;
  std::optional<StateSnapshot> epoch_start_;
  std::optional<StateSnapshot> best_;
  std::optional<StateSnapshot> before_;  ///< FitOptions::discard
  double best_value_ = 0;
  std::int64_t epochs_without_improvement_ = 0;
  std::int64_t epoch_ = 1;
  std::int64_t step_ = 0;
  std::int64_t countdown_ = 0;  ///< steps until the step callback
  double loss_sum_ = 0;
  double weight_sum_ = 0;
  std::int64_t rows_done_ = 0;  ///< of the epoch
  Clock::time_point deadline_ = {};
};

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_STREAM_FIT_H_
