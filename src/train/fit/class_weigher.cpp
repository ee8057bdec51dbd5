#include "train/fit/class_weigher.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "onnxgrad/option_error.h"
#include "train/data/targets.h"
#include "train/losses/losses.h"
#include "train/tools/workers.h"

namespace onnxgrad::train {
namespace {

void check_weights(const ClassWeights& options) {
  const std::int64_t labels = options.labels.is_defined() ? options.labels.num_elements() : 0;
  if (!options.balanced && labels != std::ssize(options.weights)) {
    throw OptionError({.what = fmt::format("class_weights: {} labels and {} weights", labels,
                                           options.weights.size()),
                       .hint = "Give one weight for each label."});
  }
  for (const double weight : options.weights) {
    if (weight >= 0 && std::isfinite(weight)) continue;
    throw OptionError({.what = fmt::format("class_weights: a weight is {}", weight),
                       .hint = "Weights must be numbers >= 0."});
  }
}

}  // namespace

ClassWeigher::ClassWeigher(const DataSchema& schema, const ClassWeights& options)
    : is_balanced_(options.balanced) {
  check_weights(options);
  if (!schema.loss.others.empty()) {
    throw DataError(
        {.what = "class_weights: there are several targets", .hint = "Give sample weights."});
  }
  if (schema.sample_weight.empty()) {
    throw DataError({.what = "class_weights: the loss takes no sample weights",
                     .hint = "Build the loss with sample_weight='weight'."});
  }
  if (const auto ignored = ignored_class(schema.loss.function)) {
    ignored_ = static_cast<double>(*ignored);
  }
  if (is_balanced_) return;
  // Reshaped to the only labels of this many rows, which may have several axes.
  std::vector<std::int64_t> rows{options.labels.num_elements()};
  if (const auto& shape = schema.loss.target.shape) {
    rows.resize(std::max<std::size_t>(shape->size(), 1), 1);
  }
  const Tensor labels_of_rows = options.labels.reshaped(Dims(rows));
  const auto labels = encode_target(schema.loss, labels_of_rows).to_doubles();
  for (std::size_t i = 0; i < labels.size(); ++i) weights_[labels[i]] = options.weights[i];
}

void ClassWeigher::count(const Tensor& target) {
  for (const double label : target.to_doubles()) {
    if (!ignored_ || label != *ignored_) ++counts_[label];
  }
}

void ClassWeigher::put_together(const Workers& workers) {
  struct Entry {
    double label;
    std::int64_t count;
  };
  std::vector<Entry> mine;
  for (const auto& [label, count] : counts_) mine.push_back({label, count});
  counts_.clear();
  for (const std::vector<std::byte>& bytes : workers.gather(std::as_bytes(std::span(mine)))) {
    std::vector<Entry> entries(bytes.size() / sizeof(Entry));
    std::memcpy(entries.data(), bytes.data(), bytes.size());
    for (const Entry& entry : entries) counts_[entry.label] += entry.count;
  }
}

void ClassWeigher::settle() {
  if (!is_balanced_) return;
  double labels = 0;
  for (const auto& [label, count] : counts_) labels += static_cast<double>(count);
  const auto classes = static_cast<double>(counts_.size());
  for (const auto& [label, count] : counts_) {
    weights_[label] = labels / (classes * static_cast<double>(count));
  }
  is_balanced_ = false;
}

double ClassWeigher::weight_of(double label) const {
  const auto found = weights_.find(label);
  return found == weights_.end() ? 1 : found->second;
}

void ClassWeigher::weigh(PreparedData& data) const {
  const Tensor& target = data.columns[data.target].values;
  Column& column = data.columns[data.weights];
  Tensor& weights = column.values;
  if (target.num_elements() != weights.num_elements()) {
    throw DataError({.what = "class_weights: the labels are not one class for each weight",
                     .hint = "Give class labels [N]; for several labels a row, set weigh_places of "
                             "the loss."});
  }
  const std::vector<double> labels = target.to_doubles();
  std::vector<double> weighed = weights.to_doubles();
  for (std::size_t i = 0; i < weighed.size(); ++i) weighed[i] *= weight_of(labels[i]);
  weights = Tensor::from(weighed, weights.dims()).cast(weights.dtype());
  column.placed = {};
}

std::string class_weights_text(const FitOptions& options) {
  if (!options.class_weights) return "none";
  const ClassWeights& given = *options.class_weights;
  if (given.balanced) return "balanced";
  const bool is_text = given.labels.dtype() == DataType::kString;
  std::string text;
  for (std::size_t i = 0; i < given.weights.size(); ++i) {
    const std::string label = is_text ? given.labels.data<std::string>()[i]
                                      : fmt::format("{}", given.labels.to_doubles()[i]);
    text += fmt::format("{}{}: {}", i > 0 ? ", " : "", label, given.weights[i]);
  }
  return text;
}

}  // namespace onnxgrad::train
