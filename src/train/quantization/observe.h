#ifndef ONNXGRAD_TRAIN_QUANTIZATION_OBSERVE_H_
#define ONNXGRAD_TRAIN_QUANTIZATION_OBSERVE_H_

#include <cstdint>
#include <span>
#include <vector>

#include "onnxgrad/quantization.h"

// Ranges of values, from batches of them.

namespace onnxgrad::train {

/// The numbers that the first and the last of some integers represent.
struct Range {
  double low = 0;
  double high = 0;
};

/// Collects values in one pass: their extremes, and a histogram over [-reach, reach] whose reach
/// doubles when a value exceeds it.
class RangeObserver {
 public:
  /// Adds values; `rows` is the first dimension of their tensor. Throws: DataError (one is not
  /// finite).
  void add(std::span<const float> values, std::int64_t rows);

  /// A range that includes 0, for `levels` integers. Of no values: [0, 0].
  Range range(Calibration calibration, double percentile, int levels = 256) const;
  /// Values per row, at least 1.
  std::int64_t row_elements() const { return row_elements_; }

 private:
  double center(std::size_t bin) const;
  /// The inner range with the least error(range) among shrunken ones.
  template <class Error>
  Range best(const Error& error) const;
  double squared_error(const Range& range, int levels) const;
  double divergence(const Range& range, int levels) const;

  std::vector<double> counts_;  // empty: no values yet
  double reach_ = 0;
  double low_ = 0;
  double high_ = 0;
  std::int64_t row_elements_ = 1;
};

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_QUANTIZATION_OBSERVE_H_
