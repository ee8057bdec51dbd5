#include "train/fit/evaluator.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "device/device_tensor.h"
#include "onnxgrad/option_error.h"
#include "train/session/batch_filler.h"
#include "train/session/forward_runner.h"

namespace onnxgrad::train {
namespace {

constexpr const char* kValidation = "validation";  // name of its rows in messages

// Large enough to keep the engine busy, small enough for its memory.
std::int64_t evaluation_batch(Session& session, const FitOptions& options) {
  const std::int64_t fixed = session.runner().fixed_rows();
  if (fixed > 0) return fixed;
  const std::int64_t batch_size = options.batch_size;
  if (batch_size < 1) return 256;
  return std::max(batch_size, std::min<std::int64_t>(256, 4 * batch_size));
}

Evaluator evaluator_of(Session& session, const FitOptions& options) {
  const LossInfo& loss = session.loss();
  return {session.evaluation(metrics_need_scores(options.metrics, loss)), session.schema().loss,
          options.metrics, session.workers()};
}

}  // namespace

using runtime::Execution;

Evaluator::Evaluator(std::shared_ptr<Evaluation> evaluation, const LossInfo& loss,
                     const std::vector<Metric>& metrics, const Workers& workers)
    : evaluation_(std::move(evaluation)), workers_(workers) {
  if (metrics.empty()) return;
  if (std::holds_alternative<OutputLoss>(loss.function)) {
    throw OptionError(
        {.what = "metrics compare scores with targets, but the loss is the model's own",
         .hint = "Apply a loss of onnxgrad to the scores, or omit metrics."});
  }
  metrics_.emplace(loss, metrics);
}

Execution& Evaluator::plan(const PreparedData& data, std::int64_t rows) {
  if (&data == prepared_) {
    const auto known = std::ranges::find(plans_, rows, &Plan::rows);
    if (known != plans_.end()) return *known->execution;
  }
  return evaluation_->prepare(data.batch_dims(std::max(rows, evaluation_->fixed_rows())));
}

void Evaluator::prepare(const PreparedData& data, std::int64_t batch_size) {
  plans_.clear();
  const auto add_plan = [&](std::int64_t rows) {
    Execution& execution = plan(data, rows);
    plans_.push_back({rows, &execution, runtime::Pin(execution)});
  };
  batch_size = batch_of(batch_size);
  const std::int64_t all = own_rows(data).rows;
  const std::int64_t rows = std::min(batch_size, all);
  if (rows > 0 && all % rows > 0) add_plan(all % rows);
  if (rows > 0) add_plan(rows);
  prepared_ = &data;
}

void Evaluator::begin() {
  sums_ = {};
  rows_ = 0;
  if (metrics_) metrics_->clear();
}

void Evaluator::add(const PreparedData& data, std::int64_t batch_size) {
  const RowSlice own = own_rows(data);
  const std::int64_t end = own.first + own.rows;
  batch_size = batch_of(batch_size);
  for (std::int64_t begin = own.first; begin < end; begin += batch_size) {
    add_batch(data, begin, std::min(batch_size, end - begin));
  }
}

void Evaluator::add_batch(const PreparedData& data, std::int64_t begin, std::int64_t rows) {
  Execution& execution = plan(data, rows);
  InUse in_use(evaluation_->executor());
  if (rows < evaluation_->fixed_rows()) {
    bind_filled(execution, data, begin, rows);
  } else {
    bind(execution, data, begin, rows, in_use);
  }
  sums_ += evaluation_->run(execution);
  rows_ += rows;
  if (metrics_ && metrics_->needs_rows()) add_metric_rows(execution, data, begin, rows);
}

// Rows in the memory of the device are read there.
void Evaluator::bind(Execution& execution, const PreparedData& data, std::int64_t begin,
                     std::int64_t rows, InUse& in_use) {
  runtime::Executor& executor = evaluation_->executor();
  for (std::size_t c = 0; c < data.columns.size(); ++c) {
    const Column& column = data.columns[c];
    if (executor.has_in_memory(column.placed)) {
      const DeviceTensor batch = device::aligned(column.placed.rows(begin, begin + rows));
      executor.bind(execution, c, in_use.add(batch));
    } else {
      Evaluation::bind(execution, c, column.row(begin));
    }
  }
}

void Evaluator::bind_filled(Execution& execution, const PreparedData& data, std::int64_t begin,
                            std::int64_t rows) {
  const std::int64_t fixed = evaluation_->fixed_rows();
  if (!data.has_weights) {
    throw DataError({.what = fmt::format("{} rows are no whole batch: the file fixes batches of "
                                         "{}, and this loss cannot leave rows out",
                                         rows, fixed),
                     .hint = "Give a multiple of the batch, or export the model with a dynamic "
                             "batch, in PyTorch dynamic_shapes={\"x\": {0: \"batch\"}}."});
  }
  filled_.clear();
  for (std::size_t c = 0; c < data.columns.size(); ++c) {
    const Column& column = data.columns[c];
    filled_.push_back(column.is_constant ? column.values
                                         : filled_rows(column.values, begin, fixed));
    if (c == data.weights) {
      const auto left = static_cast<std::size_t>((fixed - rows) * column.row_bytes);
      std::memset(filled_.back().mutable_raw() + rows * column.row_bytes, 0, left);
    }
    Evaluation::bind(execution, c, filled_.back().raw());
  }
}

void Evaluator::add_metric_rows(const Execution& execution, const PreparedData& data,
                                std::int64_t begin, std::int64_t rows) {
  const auto view = [&](const Column& column) {
    return Tensor::view(column.values.dtype(), column.batch_dims(rows),
                        const_cast<std::byte*>(column.row(begin)),
                        std::make_shared<Tensor>(column.values));
  };
  std::vector<double> weights;
  if (data.has_weights) weights = view(data.columns[data.weights]).to_doubles();
  Tensor scores = evaluation_->scores(execution);
  if (rows < evaluation_->fixed_rows()) scores = first_rows(scores, rows);
  metrics_->add(scores, view(data.columns[data.target]), weights);
}

// The sums and rows of all workers.
void Evaluator::put_together() {
  std::array<double, 4> sums{sums_.numerator, sums_.denominator, sums_.correct, sums_.counted};
  workers_.add_up(std::span<double>(sums));
  sums_ = {.numerator = sums[0], .denominator = sums[1], .correct = sums[2], .counted = sums[3]};
  workers_.add_up(std::span(&rows_, 1));
  if (metrics_) metrics_->gather(workers_);
}

EvaluationResult Evaluator::result() {
  put_together();
  EvaluationResult result;
  result.loss = mean_of(sums_.numerator, sums_.denominator);
  result.rows = rows_;
  if (evaluation_->counts_correct_rows()) {
    result.accuracy = mean_of(sums_.correct, sums_.counted);
  }
  if (metrics_) result.metrics = metrics_->values(result.loss);
  return result;
}

std::optional<EvaluationResult> Evaluator::run(BlockReader& reader, std::int64_t batch_size,
                                               StopFlag& stop) {
  const PassEnder ender{reader};
  begin();
  reader.start(0);
  while (const Block* const block = reader.next(stop)) {
    if (stop.is_set()) break;
    add(block->data, batch_size);
  }
  if (stop.is_set()) return std::nullopt;
  EvaluationResult all = result();
  if (all.rows == 0) {
    throw DataError({.what = "the validation has no rows",
                     .hint = "Give it separate rows, or a larger fraction; an exhausted iterator "
                             "yields none a second time."});
  }
  return all;
}

Validation::Validation(Session& session, const FitOptions& options, PreparedData rows)
    : options_(options),
      evaluator_(evaluator_of(session, options)),
      rows_(std::move(rows)),
      workers_(session.workers()),
      batch_size_(evaluation_batch(session, options)) {
  evaluator_.prepare(rows_, batch_size_);
}

Validation::Validation(Session& session, const FitOptions& options, DataSource& source,
                       BlockReader::Keep keep, const ClassWeigher* weigher)
    : options_(options),
      evaluator_(evaluator_of(session, options)),
      source_(&source),
      workers_(session.workers()),
      batch_size_(evaluation_batch(session, options)) {
  reader_.emplace(
      source,
      [schema = session.schema(), &options, weigher,
       evaluation = session.evaluation(false)](const Dataset& chunk) {
        PreparedData rows =
            prepare_data(schema, evaluation->data_ports(), chunk, options.allow_nan, kValidation);
        if (weigher != nullptr) weigher->weigh(rows);
        return rows;
      },
      std::move(keep),
      BlockOptions{.batch_size = options.batch_size == FitOptions::kAsTheyCome ? 0 : batch_size_,
                   .block_bytes = options.buffer_bytes / 2});
}

void Validation::run(StopFlag& stop, EpochLog& log) {
  std::optional<OwnRange> own;
  if (source_ != nullptr) own.emplace(*source_, workers_);
  if (own && own->is_part()) evaluator_.take_own_rows();
  const std::optional<EvaluationResult> result =
      reader_ ? evaluator_.run(*reader_, batch_size_, stop) : evaluator_.run(rows_, batch_size_);
  if (!result) return;
  log.val_loss = result->loss;
  log.val_accuracy = result->accuracy;
  for (std::size_t i = 0; i < result->metrics.size(); ++i) {
    log.val_metrics.emplace_back("val_" + options_.metrics[i].name, result->metrics[i]);
  }
}

std::optional<PreparedData> validation_rows(Session& session, const FitOptions& options) {
  if (options.validation == nullptr) return std::nullopt;
  return prepare_data(session.schema(), session.evaluation(false)->data_ports(),
                      *options.validation, options.allow_nan, kValidation);
}

}  // namespace onnxgrad::train
