#include "train/fit/array_feed.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/checksum.h"
#include "onnxgrad/option_error.h"
#include "train/data/row_copy.h"
#include "train/data/sampler.h"
#include "train/losses/losses.h"

namespace onnxgrad::train {
namespace {

// L-BFGS has one batch of all rows.
void choose_batch_size(const StepRunner& step, std::int64_t rows, FitOptions& options) {
  if (options.batch_size < 0) {
    throw OptionError(
        {.what = fmt::format("batch_size is {}, which is for data in chunks", options.batch_size),
         .hint = "Give a batch size of 1 or more."});
  }
  if (step.takes_whole_batch()) {
    if (options.batch_size != 0 && options.batch_size < rows) {
      throw DataError({.what = fmt::format("batch_size is {}, but L-BFGS takes all {} rows at once",
                                           options.batch_size, rows),
                       .hint = "Omit batch_size, or use another optimizer."});
    }
    options.batch_size = rows;
    options.shuffle = false;
    options.sampling = Sampling::kRows;
  }
  if (options.batch_size == 0) options.batch_size = kDefaultBatchSize;
  const int workers = step.workers().size();
  if (!step.takes_whole_batch() && options.batch_size < workers) {
    throw OptionError({.what = fmt::format("batch_size is {}, but there are {} workers",
                                           options.batch_size, workers),
                       .hint = "Give the number of rows of all workers together."});
  }
  if (options.drop_last && rows < options.batch_size) {
    throw DataError({.what = fmt::format("{} rows are fewer than a batch of {}, and drop_last "
                                         "leaves none",
                                         rows, options.batch_size),
                     .hint = "Use smaller batches, or keep the last one."});
  }
}

}  // namespace

std::string checksum_of(const PreparedData& data, const PreparedData* validation) {
  base::Checksum checksum;
  const auto add = [&checksum](const PreparedData& rows) {
    for (const Column& column : rows.columns) {
      checksum.update(fmt::format("{} {}{}\n", column.name, dtype_name(column.values.dtype()),
                                  column.values.dims().to_string()));
      add_rows(checksum, column, 0, rows.rows);
    }
  };
  add(data);
  checksum.update(std::string_view("\nvalidation\n"));
  if (validation != nullptr) add(*validation);
  return checksum.hex();
}

ArrayFeed::ArrayFeed(Session& session, const Dataset& data, FitOptions& options)
    : session_(session),
      options_(options),
      data_(
          prepare_data(session.schema(), session.runner().data_ports(), data, options.allow_nan)) {
  if (options.class_weights) {
    ClassWeigher weigher(session.schema(), *options.class_weights);
    if (weigher.needs_counts()) weigher.count(data_.columns[data_.target].values);
    weigher.settle();
    weigher.weigh(data_);
  }
  validation_ = take_validation();
  if (options.checkpoint || !options.resume.empty()) {
    checksum_ = checksum_of(data_, validation_ ? &*validation_ : nullptr);
  }
  block_.data = &data_;
  block_.rows = train_rows_.empty() ? data_.rows : static_cast<std::int64_t>(train_rows_.size());
  choose_batch_size(session.runner(), block_.rows, options);
  block_.batch_rows = std::min(options.batch_size, block_.rows);
  const bool has_windows = options.sampling == Sampling::kWindows;
  if (has_windows) block_.rows = count_windows(block_.rows, block_.batch_rows) * block_.batch_rows;
  rows_ = block_.rows;
  if (!options.shuffle && train_rows_.empty()) return;
  if (options.shuffle && !has_windows && train_rows_.empty() && rows_ > kMostOrdered) {
    constexpr std::int64_t kOrdered = std::int64_t{1} << 16;  // stays in a cache
    permutation_.emplace(static_cast<std::uint64_t>(rows_), options.seed, 0);
    block_.rows = std::min(
        std::max<std::int64_t>(kOrdered / block_.batch_rows, 1) * block_.batch_rows, rows_);
  }
  order_ = train_rows_;
  order_.resize(static_cast<std::size_t>(block_.rows));
  block_.order = order_;
  block_.has_windows = has_windows && train_rows_.empty();
}

// The fraction of the rows held out for validation, or the separate rows.
std::optional<PreparedData> ArrayFeed::take_validation() {
  const double fraction = options_.validation_fraction;
  if (fraction == 0) return validation_rows(session_, options_);
  const Column& target = data_.columns[data_.target];
  const LossInfo& loss = session_.schema().loss;
  const bool by_class = loss.is_classifier && loss.num_classes > 0 &&
                        target.values.dims().rank() == 1 && !ignored_class(loss.function);
  Split split = by_class ? split_rows_stratified(target.values.data<std::int64_t>(),
                                                 loss.num_classes, fraction, options_.seed)
                         : split_rows(data_.rows, fraction, options_.seed);
  train_rows_ = std::move(split.train);
  // The evaluation is fed what the loss needs, in its own order.
  return data_.select(split.validation).in_order_of(session_.evaluation(false)->data_ports());
}

void ArrayFeed::open_validation(std::optional<Validation>& validation) {
  if (validation_) {
    validation.emplace(session_, options_, *std::exchange(validation_, std::nullopt));
  } else if (options_.validation_source != nullptr) {
    validation.emplace(session_, options_, *options_.validation_source);
  }
}

void ArrayFeed::begin_epoch(std::int64_t epoch) {
  done_ = 0;
  if (!options_.shuffle) return;
  const auto number = static_cast<std::uint32_t>(epoch - 1);
  if (permutation_) {
    permutation_.emplace(static_cast<std::uint64_t>(rows_), options_.seed, number);
    return;
  }
  if (options_.sampling == Sampling::kWindows) {
    const std::int64_t rows =
        train_rows_.empty() ? data_.rows : static_cast<std::int64_t>(train_rows_.size());
    draw_windows(options_.seed, number, rows, block_.batch_rows, order_);
  } else {
    shuffle_rows(options_.seed, number, order_);
  }
  if (train_rows_.empty()) return;
  for (std::int64_t& row : order_) row = train_rows_[static_cast<std::size_t>(row)];
}

const RowBlock* ArrayFeed::next(StopFlag& /*stop*/) {
  if (done_ == rows_) return nullptr;
  if (permutation_) {
    const std::int64_t rows = std::min(std::ssize(order_), rows_ - done_);
    const auto order = std::span(order_).first(static_cast<std::size_t>(rows));
    permutation_->fill(static_cast<std::uint64_t>(done_), order);
    block_.order = order;
    block_.rows = rows;
  }
  done_ += block_.rows;
  return &block_;
}

std::optional<std::int64_t> ArrayFeed::num_batches() const {
  const bool has_tail = rows_ % block_.batch_rows > 0 && !options_.drop_last;
  return rows_ / block_.batch_rows + (has_tail ? 1 : 0);
}

}  // namespace onnxgrad::train
