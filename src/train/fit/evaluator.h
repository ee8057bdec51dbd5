#ifndef ONNXGRAD_TRAIN_FIT_EVALUATOR_H_
#define ONNXGRAD_TRAIN_FIT_EVALUATOR_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "onnxgrad/data.h"
#include "onnxgrad/metrics.h"
#include "onnxgrad/trainer.h"
#include "train/data/block_reader.h"
#include "train/data/dataset.h"
#include "train/fit/class_weigher.h"
#include "train/graphs/metrics.h"
#include "train/session/session.h"
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

/// Loss, accuracy and metrics over rows, in batches: begin(), add() any number of times, result().
class Evaluator {
 public:
  /// `evaluation` has scores if there are metrics, and computes `loss`. Each of `workers` evaluates
  /// a slice of the rows of each add(), and the result covers all rows; nullptr: one worker.
  /// Throws: OptionError (metrics of a model's own loss).
  /// Each of `workers`, which outlive this, evaluates a slice of the rows of each add(); the result
  /// is that of all rows.
  Evaluator(std::shared_ptr<Evaluation> evaluation, const LossInfo& loss,
            const std::vector<Metric>& metrics, const Workers& workers);

  /// Compiles the plans that add() will need for these rows, which outlive this and are not
  /// moved: add() then allocates nothing.
  void prepare(const PreparedData& data, std::int64_t batch_size);
  void begin();
  /// Adds rows in batches of `batch_size`, the last one smaller; for a model with a fixed batch in
  /// batches of this size, the last one filled up with rows of weight 0. The columns are those of
  /// Evaluation::data_ports(). Throws: DataError (it cannot be filled up).
  void add(const PreparedData& data, std::int64_t batch_size);
  EvaluationResult result();

  EvaluationResult run(const PreparedData& data, std::int64_t batch_size) {
    begin();
    add(data, batch_size);
    return result();
  }
  /// True if results have an accuracy.
  bool counts_correct_rows() const { return evaluation_->counts_correct_rows(); }
  /// Makes each worker add its own rows only, all of which it evaluates.
  void take_own_rows() { has_own_rows_ = true; }
  /// Evaluates a whole pass of `reader`; nullopt if `stop` became true meanwhile. Throws: DataError
  /// (no rows), what the reader throws.
  std::optional<EvaluationResult> run(BlockReader& reader, std::int64_t batch_size, StopFlag& stop);

 private:
  runtime::Execution& plan(const PreparedData& data, std::int64_t rows);
  void add_batch(const PreparedData& data, std::int64_t begin, std::int64_t rows);
  std::int64_t batch_of(std::int64_t batch_size) const {
    return evaluation_->fixed_rows() > 0 ? evaluation_->fixed_rows() : batch_size;
  }
  void bind(runtime::Execution& execution, const PreparedData& data, std::int64_t begin,
            std::int64_t rows, InUse& in_use);
  void bind_filled(runtime::Execution& execution, const PreparedData& data, std::int64_t begin,
                   std::int64_t rows);
  void add_metric_rows(const runtime::Execution& execution, const PreparedData& data,
                       std::int64_t begin, std::int64_t rows);

  struct Plan {
    std::int64_t rows;
    runtime::Execution* execution;
    runtime::Pin pin;
  };

  RowSlice own_rows(const PreparedData& data) const {
    return has_own_rows_ ? RowSlice{.rows = data.rows} : workers_.slice_of(data.rows);
  }
  void put_together();

  std::shared_ptr<Evaluation> evaluation_;
  const Workers& workers_;
  bool has_own_rows_ = false;
  std::optional<MetricRows> metrics_;
  const PreparedData* prepared_ = nullptr;
  std::vector<Plan> plans_;     ///< for batches of prepared_
  std::vector<Tensor> filled_;  ///< per column, a batch that is filled up
  LossSums sums_;
  std::int64_t rows_ = 0;
};

/// The validation of a fit: rows in memory, or a source of them.
class Validation {
 public:
  /// `options` and what they refer to outlive this.
  Validation(Session& session, const FitOptions& options, PreparedData rows);
  /// `keep`: selects rows of the source; empty: all. `weigher`: weights of these rows, outlives
  /// this; or nullptr.
  Validation(Session& session, const FitOptions& options, DataSource& source,
             BlockReader::Keep keep = {}, const ClassWeigher* weigher = nullptr);
  /// Validates and writes the results into `log`; omitted if `stop` became true meanwhile.
  void run(StopFlag& stop, EpochLog& log);
  /// Whether results have an accuracy.
  bool counts_correct_rows() const { return evaluator_.counts_correct_rows(); }

 private:
  const FitOptions& options_;
  Evaluator evaluator_;
  PreparedData rows_;
  DataSource* source_ = nullptr;
  const Workers& workers_;
  std::optional<BlockReader> reader_;
  std::int64_t batch_size_ = 0;
};

/// The validation data in `options` besides a fraction; nullopt if there is none.
std::optional<PreparedData> validation_rows(Session& session, const FitOptions& options);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_FIT_EVALUATOR_H_
