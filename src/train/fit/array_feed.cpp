#include "train/fit/array_feed.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <span>
#include <utility>

#include "base/checksum.h"
#include "onnxgrad/option_error.h"
#include "train/data/row_copy.h"
#include "train/data/sampler.h"
#include "train/losses/losses.h"

namespace onnxgrad::train {
namespace {

bool draws_rows(Sampling sampling) {
  return sampling == Sampling::kBalanced || sampling == Sampling::kWeighted;
}

// L-BFGS has one batch of all rows.
void choose_batch_size(const StepRunner& step, std::int64_t rows, FitOptions& options) {
  if (options.batch_size < 0) {
    throw OptionError(
        {.what = fmt::format("batch_size is {}, which is for data in chunks", options.batch_size),
         .hint = "Give a batch size of 1 or more."});
  }
  if (step.takes_whole_batch() && draws_rows(options.sampling)) {
    throw OptionError({.what = "L-BFGS takes all rows, not balanced or weighted ones",
                       .hint = "Omit sampling=, or use another optimizer."});
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
    if (!options.row_weights.empty()) {
      checksum_ += base::checksum_hex(std::as_bytes(std::span(options.row_weights)));
    }
  }
  block_.data = &data_;
  block_.is_kept = true;
  block_.rows = num_train_rows();
  choose_batch_size(session.runner(), block_.rows, options);
  block_.batch_rows = std::min(options.batch_size, block_.rows);
  const bool has_windows = options.sampling == Sampling::kWindows;
  if (has_windows) block_.rows = count_windows(block_.rows, block_.batch_rows) * block_.batch_rows;
  if (draws_rows(options.sampling)) {
    prepare_sampling();
    return;
  }
  rows_ = block_.rows;
  block_.partners = train_rows_;
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

void ArrayFeed::prepare_sampling() {
  if (options_.sampling == Sampling::kBalanced) {
    find_classes();
    if (!options_.replacement) {
      const auto smallest =
          std::ranges::min_element(members_, {}, &std::vector<std::int64_t>::size);
      block_.rows = std::ssize(*smallest) * std::ssize(members_);
    }
  } else {
    if (options_.row_weights.empty() && !options_.on_row_weights) {
      throw OptionError({.what = "sampling='weighted' needs a weight for each row",
                         .hint = "Give row_weights=, or a callback that sets them."});
    }
    row_weights_.assign(static_cast<std::size_t>(num_train_rows()), 1.0);
    if (!options_.row_weights.empty()) take_row_weights(options_.row_weights);
  }
  if (options_.epoch_rows > 0 && (options_.replacement || options_.epoch_rows < block_.rows)) {
    block_.rows = options_.epoch_rows;
  }
  block_.batch_rows = std::min(options_.batch_size, block_.rows);
  rows_ = block_.rows;
  draw(1);  // plans are made for its form
}

void ArrayFeed::take_row_weights(const std::vector<double>& weights) {
  if (std::ssize(weights) != data_.rows) {
    throw DataError(
        {.what = fmt::format("row_weights: {} weights for {} rows", weights.size(), data_.rows),
         .hint = "Give one weight for each row."});
  }
  double sum = 0;
  for (std::size_t i = 0; i < row_weights_.size(); ++i) {
    const std::size_t row = train_rows_.empty() ? i : static_cast<std::size_t>(train_rows_[i]);
    const double weight = weights[row];
    if (!(weight >= 0) || !std::isfinite(weight)) {
      throw DataError({.what = fmt::format("row_weights: the weight of row {} is {}", row, weight),
                       .hint = "Weights must be numbers >= 0."});
    }
    row_weights_[i] = weight;
    sum += weight;
  }
  if (sum > 0) return;
  throw DataError({.what = "row_weights: no training row has a weight above 0",
                   .hint = "Give weights, some of them above 0."});
}

void ArrayFeed::find_classes() {
  const Tensor& target = data_.columns[data_.target].values;
  const LossInfo& loss = session_.schema().loss;
  if (!loss.is_classifier || !loss.others.empty() || target.num_elements() != data_.rows) {
    throw DataError({.what = "sampling='balanced' needs one class label for each row",
                     .hint = "Use sampling='weighted' with row_weights=."});
  }
  const std::vector<double> labels = target.to_doubles();
  std::map<double, std::vector<std::int64_t>> rows;
  for (std::int64_t i = 0; i < num_train_rows(); ++i) {
    const std::int64_t row = train_rows_.empty() ? i : train_rows_[static_cast<std::size_t>(i)];
    rows[labels[static_cast<std::size_t>(row)]].push_back(row);
  }
  if (const auto ignored = ignored_class(loss.function)) rows.erase(static_cast<double>(*ignored));
  for (auto& [label, members] : rows) members_.push_back(std::move(members));
}

// The rows of an epoch, from 1.
void ArrayFeed::draw(std::int64_t epoch) {
  const auto number = static_cast<std::uint32_t>(epoch - 1);
  if (options_.sampling == Sampling::kBalanced) {
    const std::int64_t wanted = options_.replacement ? reached(block_.rows) : block_.rows;
    order_ = draw_balanced(options_.seed, number, members_, options_.replacement, wanted);
  } else {
    std::int64_t wanted = options_.epoch_rows > 0 ? options_.epoch_rows : num_train_rows();
    if (options_.replacement) wanted = reached(wanted);
    if (options_.replacement) {
      order_.resize(static_cast<std::size_t>(wanted));
      draw_weighted(options_.seed, number, row_weights_, order_);
    } else {
      order_ = draw_without_replacement(options_.seed, number, row_weights_, wanted);
    }
    if (!train_rows_.empty()) {
      for (std::int64_t& row : order_) row = train_rows_[static_cast<std::size_t>(row)];
    }
  }
  block_.order = block_.partners = order_;
  if (!options_.replacement) block_.rows = rows_ = std::ssize(order_);
}

// The rows of an epoch that max_steps lets a training reach: no more are drawn.
std::int64_t ArrayFeed::reached(std::int64_t rows) const {
  if (options_.max_steps == 0 || options_.max_steps > rows / block_.batch_rows) return rows;
  const std::int64_t most = options_.max_steps * block_.batch_rows;
  return std::min(rows, (most / kDrawnTogether + 1) * kDrawnTogether);
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
  if (draws_rows(options_.sampling)) {
    if (options_.on_row_weights) {
      const std::vector<double> weights = options_.on_row_weights(epoch);
      if (!weights.empty()) take_row_weights(weights);
    }
    return draw(epoch);
  }
  if (!options_.shuffle) return;
  const auto number = static_cast<std::uint32_t>(epoch - 1);
  if (permutation_) {
    permutation_.emplace(static_cast<std::uint64_t>(rows_), options_.seed, number);
    return;
  }
  if (options_.sampling == Sampling::kWindows) {
    draw_windows(options_.seed, number, num_train_rows(), block_.batch_rows, order_);
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
