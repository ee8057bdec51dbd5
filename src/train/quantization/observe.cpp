#include "train/quantization/observe.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "onnxgrad/error.h"

namespace onnxgrad::train {
namespace {

constexpr std::size_t kBins = 4096;
constexpr int kRangeTries = 80;  // shrunken ranges that are compared, by hundredths

}  // namespace

void RangeObserver::add(std::span<const float> values, std::int64_t rows) {
  if (values.empty()) return;
  row_elements_ = std::max(
      row_elements_, static_cast<std::int64_t>(values.size()) / std::max<std::int64_t>(1, rows));
  double largest = 0;
  for (const float value : values) {
    if (!std::isfinite(value)) {
      throw DataError({.what = "a value of the calibration is NaN or infinite",
                       .hint = "Check the rows, and that the model's results are finite."});
    }
    low_ = std::min(low_, static_cast<double>(value));
    high_ = std::max(high_, static_cast<double>(value));
    largest = std::max(largest, std::fabs(static_cast<double>(value)));
  }
  if (counts_.empty()) {
    counts_.assign(kBins, 0.0);
    reach_ = largest;
  }
  if (reach_ == 0) reach_ = largest;  // zeros so far, which lie in the middle of any range
  while (largest > reach_) {
    // Bins 2i and 2i + 1 of the old range, counted from the middle, are bin i.
    std::vector<double> wide(kBins, 0.0);
    for (std::size_t i = 0; i < kBins; ++i) wide[kBins / 4 + i / 2] += counts_[i];
    counts_ = std::move(wide);
    reach_ *= 2;
  }
  const double scale = reach_ == 0 ? 0 : static_cast<double>(kBins) / (2 * reach_);
  for (const float value : values) {
    const double place = static_cast<double>(value) * scale + static_cast<double>(kBins) / 2;
    counts_[std::min(kBins - 1, static_cast<std::size_t>(std::max(0.0, place)))] += 1;
  }
}

double RangeObserver::center(std::size_t bin) const {
  const double width = 2 * reach_ / static_cast<double>(kBins);
  return -reach_ + (static_cast<double>(bin) + 0.5) * width;
}

template <class Error>
Range RangeObserver::best(const Error& error) const {
  Range found{.low = low_, .high = high_};
  double least = std::numeric_limits<double>::infinity();
  const auto try_range = [&](const Range& range) {
    const double now = error(range);
    if (now < least) {
      least = now;
      found = range;
    }
  };
  for (int i = 0; i < kRangeTries; ++i) {  // both ends together
    const double factor = 1 - 0.01 * i;
    try_range({.low = factor * low_, .high = factor * high_});
  }
  const Range both = found;
  for (int i = 1; i < kRangeTries; ++i) {  // then each alone
    const double factor = 1 - 0.01 * i;
    try_range({.low = factor * low_, .high = both.high});
    try_range({.low = both.low, .high = factor * high_});
  }
  return found;
}

double RangeObserver::squared_error(const Range& range, int levels) const {
  const double step = (range.high - range.low) / (levels - 1);
  if (step <= 0) return std::numeric_limits<double>::infinity();
  double sum = 0;
  for (std::size_t i = 0; i < kBins; ++i) {
    if (counts_[i] == 0) continue;
    const double x = center(i);
    const double kept = std::clamp(std::round(x / step) * step, range.low, range.high);
    sum += counts_[i] * (x - kept) * (x - kept);
  }
  return sum;
}

// KL(P, Q): P is the histogram with what is clipped in its outermost bins; Q has the mean of P over
// the bins of each level, where P is not 0. As in TensorRT's calibration.
double RangeObserver::divergence(const Range& range, int levels) const {
  const double step = (range.high - range.low) / (levels - 1);
  if (step <= 0) return std::numeric_limits<double>::infinity();
  std::vector<double> p(kBins, 0.0);
  std::vector<std::size_t> level(kBins, 0);
  double total = 0;
  const auto bin_of = [&](double x) {
    const double place = (x + reach_) / (2 * reach_) * static_cast<double>(kBins);
    return std::min(kBins - 1, static_cast<std::size_t>(std::max(0.0, place)));
  };
  for (std::size_t i = 0; i < kBins; ++i) {
    const double x = std::clamp(center(i), range.low, range.high);
    level[i] = static_cast<std::size_t>(std::lround((x - range.low) / step));
    p[bin_of(x)] += counts_[i];
    total += counts_[i];
  }
  std::vector<double> sum(static_cast<std::size_t>(levels), 0.0);
  std::vector<double> filled(static_cast<std::size_t>(levels), 0.0);
  double inside = 0;
  for (std::size_t i = 0; i < kBins; ++i) {
    if (center(i) < range.low || center(i) > range.high) continue;
    sum[level[i]] += counts_[i];  // without what is clipped
    filled[level[i]] += counts_[i] > 0 ? 1 : 0;
    inside += counts_[i];
  }
  if (inside <= 0) return std::numeric_limits<double>::infinity();
  double result = 0;
  for (std::size_t i = 0; i < kBins; ++i) {
    if (p[i] == 0) continue;
    const double q = filled[level[i]] == 0 ? 0 : sum[level[i]] / filled[level[i]] / inside;
    result += p[i] / total * std::log(p[i] / total / std::max(q, 1e-12));
  }
  return result;
}

Range RangeObserver::range(Calibration calibration, double percentile, int levels) const {
  const Range all{.low = low_, .high = high_};
  if (counts_.empty() || high_ <= low_) return all;
  switch (calibration) {
    case Calibration::kMinMax:
      return all;
    case Calibration::kMse:
      return best([&](const Range& range) { return squared_error(range, levels); });
    case Calibration::kEntropy:
      return best([&](const Range& range) { return divergence(range, levels); });
    case Calibration::kPercentile:
      break;
  }
  double total = 0;
  for (const double count : counts_) total += count;
  const double cut = total * (1 - percentile / 100) / 2;  // at each end
  Range found = all;
  double below = 0;
  for (std::size_t i = 0; i < kBins; ++i) {
    below += counts_[i];
    if (below > cut) {
      found.low = std::clamp(center(i), low_, 0.0);
      break;
    }
  }
  double above = 0;
  for (std::size_t i = kBins; i > 0; --i) {
    above += counts_[i - 1];
    if (above > cut) {
      found.high = std::clamp(center(i - 1), 0.0, high_);
      break;
    }
  }
  return found.high > found.low ? found : all;
}

}  // namespace onnxgrad::train
