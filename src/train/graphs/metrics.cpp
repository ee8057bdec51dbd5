#include "train/graphs/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "onnxgrad/tables.h"
#include "train/losses/losses.h"

// Definitions follow scikit-learn, which the tests compare with. w_i are the row weights.

namespace onnxgrad {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Predictions as plain numbers.
struct Rows {
  explicit Rows(const Predictions& given)
      : predicted(given.predicted.data<double>()),
        rows(static_cast<std::size_t>(given.predicted.dims()[0])),
        columns(static_cast<std::size_t>(given.predicted.dims()[1])) {
    if (given.target.dtype() == DataType::kInt64) {
      classes = given.target.data<std::int64_t>();
    } else {
      target = given.target.data<double>();
    }
    if (given.sample_weight.is_defined()) weights = given.sample_weight.data<double>();
  }
  double weight(std::size_t row) const { return weights.empty() ? 1 : weights[row]; }
  double at(std::size_t row, std::size_t column) const { return predicted[row * columns + column]; }
  std::size_t best_class(std::size_t row) const {
    const auto first = predicted.begin() + static_cast<std::ptrdiff_t>(row * columns);
    return static_cast<std::size_t>(
        std::max_element(first, first + static_cast<std::ptrdiff_t>(columns)) - first);
  }
  double weight_sum() const {
    double sum = 0;
    for (std::size_t row = 0; row < rows; ++row) sum += weight(row);
    return sum;
  }

  std::span<const double> predicted;
  std::span<const double> target = {};
  std::span<const std::int64_t> classes = {};
  std::span<const double> weights = {};
  std::size_t rows;
  std::size_t columns;
};

// Weighted counts of each class.
struct Counts {
  explicit Counts(const Rows& data)
      : hits(data.columns, 0), truths(data.columns, 0), guesses(data.columns, 0) {
    for (std::size_t row = 0; row < data.rows; ++row) {
      const auto truth = static_cast<std::size_t>(data.classes[row]);
      const std::size_t guess = data.best_class(row);
      const double weight = data.weight(row);
      truths.at(truth) += weight;
      guesses[guess] += weight;
      if (truth == guess) hits[truth] += weight;
      is_present.resize(data.columns);
      is_present[truth] = is_present[guess] = true;
    }
  }
  std::vector<double> hits;     // true positives
  std::vector<double> truths;   // rows of the class
  std::vector<double> guesses;  // rows predicted as the class
  std::vector<bool> is_present;
};

double ratio(double numerator, double denominator) {
  return denominator > 0 ? numerator / denominator : 0;
}

// For class 1 if there are two, else the mean over the classes that occur.
template <class Value>
double over_classes(const Rows& data, Value value) {
  const Counts counts(data);
  if (data.columns == 2) return value(counts, std::size_t{1});
  double sum = 0;
  double present = 0;
  for (std::size_t c = 0; c < data.columns; ++c) {
    if (!counts.is_present[c]) continue;
    sum += value(counts, c);
    present += 1;
  }
  return sum / present;
}

double accuracy(const Rows& data) {
  const Counts counts(data);
  return std::accumulate(counts.hits.begin(), counts.hits.end(), 0.0) / data.weight_sum();
}

double balanced_accuracy(const Rows& data) {
  const Counts counts(data);
  double sum = 0;
  double present = 0;
  for (std::size_t c = 0; c < data.columns; ++c) {
    if (counts.truths[c] <= 0) continue;
    sum += counts.hits[c] / counts.truths[c];
    present += 1;
  }
  return sum / present;
}

double precision(const Rows& data) {
  return over_classes(
      data, [](const Counts& n, std::size_t c) { return ratio(n.hits[c], n.guesses[c]); });
}

double recall(const Rows& data) {
  return over_classes(data,
                      [](const Counts& n, std::size_t c) { return ratio(n.hits[c], n.truths[c]); });
}

double f1(const Rows& data) {
  return over_classes(data, [](const Counts& n, std::size_t c) {
    return ratio(2 * n.hits[c], n.guesses[c] + n.truths[c]);
  });
}

// Area under the curve of true over false positive rate of "class c against the rest", with ties
// of the score as one step (trapezoid).
double auc_of_class(const Rows& data, std::size_t c) {
  std::vector<std::size_t> order(data.rows);
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto score = [&](std::size_t row) {
    return data.columns == 2 ? data.at(row, 1) - data.at(row, 0) : data.at(row, c);
  };
  std::ranges::sort(order, [&](std::size_t a, std::size_t b) { return score(a) > score(b); });
  double positives = 0;
  double negatives = 0;
  double area = 0;
  for (std::size_t begin = 0; begin < order.size();) {
    std::size_t end = begin;
    double up = 0;
    double right = 0;
    for (; end < order.size() && score(order[end]) == score(order[begin]); ++end) {
      const bool is_class = data.classes[order[end]] == static_cast<std::int64_t>(c);
      (is_class ? up : right) += data.weight(order[end]);
    }
    if (end == begin) return kNan;  // a score that is NaN
    area += right * (positives + up / 2);
    positives += up;
    negatives += right;
    begin = end;
  }
  return positives > 0 && negatives > 0 ? area / (positives * negatives) : kNan;
}

double auc(const Rows& data) {
  if (data.columns == 2) return auc_of_class(data, 1);
  double sum = 0;
  for (std::size_t c = 0; c < data.columns; ++c) sum += auc_of_class(data, c);
  return sum / static_cast<double>(data.columns);
}

double log_loss(const Rows& data) {
  constexpr double kLeast = std::numeric_limits<double>::epsilon();
  double sum = 0;
  for (std::size_t row = 0; row < data.rows; ++row) {
    const double p = data.at(row, static_cast<std::size_t>(data.classes[row]));
    sum -= data.weight(row) * std::log(std::clamp(p, kLeast, 1 - kLeast));
  }
  return sum / data.weight_sum();
}

// The weighted mean over all elements of f(predicted - target).
template <class Function>
double mean_error(const Rows& data, Function f) {
  double sum = 0;
  for (std::size_t row = 0; row < data.rows; ++row) {
    double of_row = 0;
    for (std::size_t k = 0; k < data.columns; ++k) {
      of_row += f(data.at(row, k) - data.target[row * data.columns + k]);
    }
    sum += data.weight(row) * of_row;
  }
  return sum / (data.weight_sum() * static_cast<double>(data.columns));
}

double mae(const Rows& data) {
  return mean_error(data, [](double d) { return std::abs(d); });
}

double mse(const Rows& data) {
  return mean_error(data, [](double d) { return d * d; });
}

// The mean over the columns of the root.
double rmse(const Rows& data) {
  double sum = 0;
  for (std::size_t k = 0; k < data.columns; ++k) {
    double squares = 0;
    for (std::size_t row = 0; row < data.rows; ++row) {
      const double d = data.at(row, k) - data.target[row * data.columns + k];
      squares += data.weight(row) * d * d;
    }
    sum += std::sqrt(squares / data.weight_sum());
  }
  return sum / static_cast<double>(data.columns);
}

double max_error(const Rows& data) {
  double largest = 0;
  for (std::size_t i = 0; i < data.predicted.size(); ++i) {
    largest = std::max(largest, std::abs(data.predicted[i] - data.target[i]));
  }
  return largest;
}

// Weighted sums of a column, around the means.
struct Moments {
  Moments(const Rows& data, std::size_t k) {
    const double total = data.weight_sum();
    for (std::size_t row = 0; row < data.rows; ++row) {
      mean_target += data.weight(row) * data.target[row * data.columns + k] / total;
      mean_predicted += data.weight(row) * data.at(row, k) / total;
    }
    for (std::size_t row = 0; row < data.rows; ++row) {
      const double w = data.weight(row);
      const double t = data.target[row * data.columns + k];
      const double p = data.at(row, k);
      residual += w * (t - p) * (t - p);
      const double centred = (t - mean_target) - (p - mean_predicted);
      residual_variance += w * centred * centred;
      target += w * (t - mean_target) * (t - mean_target);
      predicted += w * (p - mean_predicted) * (p - mean_predicted);
      both += w * (t - mean_target) * (p - mean_predicted);
    }
  }
  double mean_target = 0;
  double mean_predicted = 0;
  double residual = 0;
  double residual_variance = 0;
  double target = 0;
  double predicted = 0;
  double both = 0;
};

template <class Value>
double over_columns(const Rows& data, Value value) {
  double sum = 0;
  for (std::size_t k = 0; k < data.columns; ++k) sum += value(Moments(data, k));
  return sum / static_cast<double>(data.columns);
}

// 1 - error / variance; for a constant target 1 if the error is zero, else 0.
double explained(double error, double variance) {
  if (variance > 0) return 1 - error / variance;
  return error > 0 ? 0 : 1;
}

double r2(const Rows& data) {
  if (data.rows < 2) return kNan;
  return over_columns(data, [](const Moments& m) { return explained(m.residual, m.target); });
}

double explained_variance(const Rows& data) {
  return over_columns(data,
                      [](const Moments& m) { return explained(m.residual_variance, m.target); });
}

double pearson(const Rows& data) {
  return over_columns(data,
                      [](const Moments& m) { return m.both / std::sqrt(m.target * m.predicted); });
}

double perplexity(const Rows& data) { return std::exp(log_loss(data)); }

struct BuiltIn {
  MetricInfo info;
  double (*value)(const Rows&);
};

constexpr const char* kOfClassOne =
    "for class 1 if there are two classes, else the mean over the classes that occur";

// Sorted. Name, of classes, whether larger is better, meaning.
const BuiltIn kBuiltIns[] = {
    {{"accuracy", true, true, "fraction of the rows whose class has the largest score"}, accuracy},
    {{"auc", true, true,
      "area under the ROC curve; with more than two classes the mean of each against the rest"},
     auc},
    {{"balanced_accuracy", true, true, "mean of the recalls of the classes that occur"},
     balanced_accuracy},
    {{"explained_variance", false, true, "mean over the columns"}, explained_variance},
    {{"f1", true, true, kOfClassOne}, f1},
    {{"log_loss", true, false, "mean of -log p of the right class"}, log_loss},
    {{"mae", false, false, "mean over rows and columns of abs(d)"}, mae},
    {{"max_error", false, false, "the largest abs(d)"}, max_error},
    {{"mse", false, false, "mean over rows and columns of d^2"}, mse},
    {{"pearson", false, true, "mean over the columns of the correlation"}, pearson},
    {{"perplexity", true, false, "exp of the mean of -log p of the right class"}, perplexity},
    {{"precision", true, true, kOfClassOne}, precision},
    {{"r2", false, true, "mean over the columns"}, r2},
    {{"recall", true, true, kOfClassOne}, recall},
    {{"rmse", false, false, "mean over the columns of the roots of their mse"}, rmse},
};

const BuiltIn* find_built_in(const std::string& name) {
  const auto* const found = std::ranges::find_if(
      kBuiltIns, [&](const BuiltIn& metric) { return name == metric.info.name; });
  return found != std::end(kBuiltIns) ? found : nullptr;
}

const BuiltIn& checked_built_in(const std::string& name, bool has_classes) {
  const BuiltIn* const metric = find_built_in(name);
  if (metric == nullptr) {
    const auto names = metric_names();
    throw DataError({.what = "there is no metric '" + name + "'",
                     .detail = "Metrics: " + base::quote_list(names, names.size()) + ".",
                     .hint = base::nearest_or(name, names)});
  }
  if (metric->info.is_of_classes == has_classes) return *metric;
  std::vector<std::string> fitting;
  for (const BuiltIn& other : kBuiltIns) {
    if (other.info.is_of_classes == has_classes) fitting.emplace_back(other.info.name);
  }
  throw DataError({.what = fmt::format("the metric '{}' is for {}, but the targets are {}", name,
                                       metric->info.is_of_classes ? "classes" : "numbers",
                                       has_classes ? "classes" : "numbers"),
                   .hint = "Use one of " + base::quote_list(fitting, fitting.size()) + "."});
}

}  // namespace

std::vector<MetricInfo> metric_table() {
  std::vector<MetricInfo> table;
  for (const BuiltIn& metric : kBuiltIns) table.push_back(metric.info);
  return table;
}

std::vector<std::string> metric_names() {
  std::vector<std::string> names;
  for (const BuiltIn& metric : kBuiltIns) names.push_back(metric.info.name);
  return names;
}

bool is_larger_better(const std::string& metric) {
  const BuiltIn* const found = find_built_in(metric);
  return found == nullptr || found->info.is_larger_better;
}

double metric_value(const std::string& name, const Predictions& predictions) {
  const bool has_classes = predictions.target.dtype() == DataType::kInt64;
  return checked_built_in(name, has_classes).value(Rows(predictions));
}

namespace train {
namespace {

double sigmoid(double s) {
  return s >= 0 ? 1 / (1 + std::exp(-s)) : std::exp(s) / (1 + std::exp(s));
}

void softmax(std::span<double> row) {
  const double largest = *std::ranges::max_element(row);
  double sum = 0;
  for (double& value : row) sum += value = std::exp(value - largest);
  for (double& value : row) value /= sum;
}

// The scores of the classes at each position, one after another: [positions, C].
std::vector<double> rows_of_classes(const Tensor& scores, std::size_t axis) {
  const Dims& dims = scores.dims();
  const auto numbers = scores.to_doubles();
  const std::int64_t outer = dims.product(0, axis);
  const std::int64_t classes = dims[axis];
  const std::int64_t inner = dims.product(axis + 1, dims.rank());
  std::vector<double> rows;
  rows.reserve(numbers.size());
  for (std::int64_t place = 0; place < outer * inner; ++place) {
    const std::int64_t first = place / inner * classes * inner + place % inner;
    for (std::int64_t c = 0; c < classes; ++c) {
      rows.push_back(numbers[static_cast<std::size_t>(first + c * inner)]);
    }
  }
  return rows;
}

}  // namespace

MetricRows::MetricRows(const LossInfo& loss, std::vector<Metric> metrics)
    : loss_(loss), metrics_(std::move(metrics)) {
  for (const Metric& metric : metrics_) {
    if (!metric.function) checked_built_in(metric.name, loss.is_classifier);
  }
  needs_rows_ = metrics_need_scores(metrics_, loss);
}

namespace {

// The exponential of a loss that is a mean of -log p: no scores are kept for it.
bool is_of_loss(const Metric& metric, const LossInfo& loss) {
  return !metric.function && metric.name == "perplexity" && loss.others.empty() &&
         is_log_likelihood(loss.function);
}

}  // namespace

bool metrics_need_scores(const std::vector<Metric>& metrics, const LossInfo& loss) {
  return std::ranges::any_of(metrics,
                             [&](const Metric& metric) { return !is_of_loss(metric, loss); });
}

void MetricRows::clear() {
  scores_.clear();
  classes_.clear();
  numbers_.clear();
  weights_.clear();
}

void MetricRows::add(const Tensor& scores, const Tensor& target, std::span<const double> weights) {
  const Dims& dims = scores.dims();
  const bool has_places = loss_.is_classifier && loss_.class_axis && dims.rank() > 2;
  if (!has_places && (dims.rank() > 2 || (loss_.is_classifier && target.dims().rank() != 1))) {
    throw DataError({.what = fmt::format("metrics take scores [N] or [N, C], but '{}' is {}",
                                         loss_.scores, dims.to_string()),
                     .where = {.value = loss_.scores},
                     .hint = "Train without metrics, or compute them from predict()."});
  }
  const auto class_axis = static_cast<std::size_t>(has_places ? *loss_.class_axis : 1);
  columns_ = dims.rank() >= 2 ? dims[class_axis] : 1;
  const auto numbers = has_places ? rows_of_classes(scores, class_axis) : scores.to_doubles();
  if (!loss_.is_classifier) {
    scores_.insert(scores_.end(), numbers.begin(), numbers.end());
    const auto values = target.to_doubles();
    numbers_.insert(numbers_.end(), values.begin(), values.end());
    weights_.insert(weights_.end(), weights.begin(), weights.end());
    return;
  }
  const auto ignored = ignored_class(loss_.function);
  const std::int64_t places = dims[0] > 0 ? target.num_elements() / dims[0] : 1;
  const bool are_of_places = std::ssize(weights) == target.num_elements();
  const auto places_of_weight = static_cast<std::size_t>(are_of_places ? 1 : places);
  std::size_t row = 0;  // each position of a row counts as one
  for (const std::int64_t label : compared_classes(loss_.function, target)) {
    const auto first = numbers.begin() + static_cast<std::ptrdiff_t>(row) * columns_;
    if (label != ignored) {
      classes_.push_back(label);
      scores_.insert(scores_.end(), first, first + columns_);
      if (!weights.empty()) weights_.push_back(weights[row / places_of_weight]);
    }
    ++row;
  }
}

namespace {

template <class T>
void gather_numbers(const Workers& workers, std::vector<T>& numbers) {
  const auto parts = workers.gather(std::as_bytes(std::span(numbers)));
  numbers.clear();
  for (const std::vector<std::byte>& part : parts) {
    const std::size_t before = numbers.size();
    numbers.resize(before + part.size() / sizeof(T));
    if (!part.empty()) std::memcpy(numbers.data() + before, part.data(), part.size());
  }
}

}  // namespace

void MetricRows::gather(const Workers& workers) {
  if (!workers.has_others() || !needs_rows_) return;
  gather_numbers(workers, scores_);
  gather_numbers(workers, classes_);
  gather_numbers(workers, numbers_);
  gather_numbers(workers, weights_);
  // A worker without rows has not seen how many columns there are.
  std::vector<std::int64_t> columns{columns_};
  gather_numbers(workers, columns);
  columns_ = std::ranges::max(columns);
}

Predictions MetricRows::predictions() const {
  const auto rows = static_cast<std::int64_t>(scores_.size()) / std::max<std::int64_t>(columns_, 1);
  Predictions result;
  std::vector<double> predicted = scores_;
  std::int64_t columns = columns_;
  const auto* const one_vs_rest = std::get_if<OneVsRest>(&loss_.function);
  const bool is_sigmoid =
      std::holds_alternative<BinaryCrossEntropy>(loss_.function) ||
      (one_vs_rest != nullptr && one_vs_rest->kind == OneVsRest::Kind::kLog && columns_ == 1);
  if (is_sigmoid) std::ranges::transform(predicted, predicted.begin(), sigmoid);
  if (std::holds_alternative<SoftmaxCrossEntropy>(loss_.function) ||
      std::holds_alternative<CausalLm>(loss_.function) ||
      std::holds_alternative<MaskedLm>(loss_.function)) {
    for (std::int64_t row = 0; row < rows; ++row) {
      softmax(std::span(predicted).subspan(static_cast<std::size_t>(row * columns),
                                           static_cast<std::size_t>(columns)));
    }
  }
  const bool is_probability = is_sigmoid || std::holds_alternative<LogLoss>(loss_.function);
  if (loss_.is_classifier && columns == 1) {  // class 0 is the complement of class 1
    std::vector<double> both;
    both.reserve(2 * predicted.size());
    for (const double value : predicted) {
      both.push_back(is_probability ? 1 - value : -value);
      both.push_back(value);
    }
    predicted = std::move(both);
    columns = 2;
  }
  result.predicted = Tensor::from(predicted, Dims{rows, columns});
  result.target = loss_.is_classifier ? Tensor::from(classes_, Dims{rows})
                                      : Tensor::from(numbers_, Dims{rows, columns});
  if (!weights_.empty()) result.sample_weight = Tensor::from(weights_, Dims{rows});
  return result;
}

std::vector<double> MetricRows::values(double loss) const {
  const Predictions rows = needs_rows_ ? predictions() : Predictions{};
  std::vector<double> values;
  for (const Metric& metric : metrics_) {
    if (is_of_loss(metric, loss_)) {
      values.push_back(std::exp(loss));
      continue;
    }
    values.push_back(metric.function ? metric.function(rows) : metric_value(metric.name, rows));
  }
  return values;
}

}  // namespace train
}  // namespace onnxgrad
