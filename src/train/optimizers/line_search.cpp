#include "train/optimizers/line_search.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace onnxgrad::train {
namespace {

bool is_finite(const LinePoint& point) {
  return std::isfinite(point.loss) && std::isfinite(point.slope);
}

class LineSearch {
 public:
  LineSearch(const LineFunction& f, const LinePoint& start, const LineSearchOptions& options)
      : f_(f), start_(start), options_(options) {}

  LinePoint run(double first) {
    bracket(first);
    if (!done_) zoom();
    return std::move(low_);
  }

 private:
  bool decreases_enough(const LinePoint& point) const {
    return point.loss <= start_.loss + options_.sufficient_decrease * point.length * start_.slope;
  }

  bool is_flat_enough(const LinePoint& point) const {
    return std::abs(point.slope) <= -options_.curvature * start_.slope;
  }

  LinePoint evaluate(double length) {
    ++evaluations_;
    LinePoint point = f_(length);
    point.length = length;
    return point;
  }

  bool has_evaluations() const { return evaluations_ < options_.max_evaluations; }

  // The nearer of two points is kept as low_ if its loss is lower.
  void set_bracket(LinePoint a, LinePoint b) {
    const bool a_is_low = a.loss <= b.loss;
    low_ = a_is_low ? std::move(a) : LinePoint(b);
    high_ = a_is_low ? std::move(b) : std::move(a);
  }

  // Halves the distance to a length where the loss is not finite.
  LinePoint evaluate_finite(double from, double length) {
    LinePoint point = evaluate(length);
    while (!is_finite(point) && has_evaluations()) {
      length = from + (length - from) / 2;
      point = evaluate(length);
    }
    return point;
  }

  // Sets low_ and high_ around a good point, or low_ to one (done_).
  void bracket(double first) {
    LinePoint previous = start_;
    LinePoint point = evaluate_finite(0, first);
    for (int round = 0;; ++round) {
      if (!is_finite(point)) {
        low_ = std::move(previous);
        done_ = true;
        return;
      }
      if (!decreases_enough(point) || (round > 1 && point.loss >= previous.loss)) break;
      if (is_flat_enough(point)) {
        low_ = std::move(point);
        done_ = true;
        return;
      }
      if (point.slope >= 0) break;
      if (!has_evaluations()) {
        previous = start_;
        break;
      }
      const double nearest = point.length + 0.01 * (point.length - previous.length);
      const double next = cubic_minimum(previous, point, nearest, 10 * point.length);
      previous = std::move(point);
      point = evaluate_finite(previous.length, next);
    }
    set_bracket(std::move(previous), std::move(point));
  }

  // The minimum of the cubic, but not so near to an end that the bracket would hardly shrink.
  double inner_length() {
    const double left = std::min(low_.length, high_.length);
    const double right = std::max(low_.length, high_.length);
    const bool low_first = low_.length <= high_.length;
    double length = cubic_minimum(low_first ? low_ : high_, low_first ? high_ : low_, left, right);
    const double margin = 0.1 * (right - left);
    if (std::min(right - length, length - left) >= margin) {
      is_slow_ = false;
    } else if (is_slow_ || length >= right || length <= left) {
      length = std::abs(length - right) < std::abs(length - left) ? right - margin : left + margin;
      is_slow_ = false;
    } else {
      is_slow_ = true;
    }
    return length;
  }

  // Shrinks the bracket; low_ has the lowest loss so far.
  void zoom() {
    while (has_evaluations()) {
      const double width = std::abs(high_.length - low_.length);
      if (width * options_.largest < options_.change_tolerance) return;
      LinePoint point = evaluate(inner_length());
      if (!is_finite(point) || !decreases_enough(point) || point.loss >= low_.loss) {
        high_ = std::move(point);
        // Next to a non-finite loss nothing can be interpolated: the middle is tried next.
        if (!(low_.loss <= high_.loss) && is_finite(high_)) std::swap(low_, high_);
        continue;
      }
      if (is_flat_enough(point)) {
        low_ = std::move(point);
        return;
      }
      if (point.slope * (high_.length - low_.length) >= 0) high_ = std::move(low_);
      low_ = std::move(point);
    }
  }

  const LineFunction& f_;
  const LinePoint& start_;
  const LineSearchOptions& options_;
  LinePoint low_;
  LinePoint high_;
  bool done_ = false;
  bool is_slow_ = false;  // the last inner length was near an end
  std::int64_t evaluations_ = 0;
};

}  // namespace

double cubic_minimum(const LinePoint& a, const LinePoint& b, double low, double high) {
  const double d1 = a.slope + b.slope - 3 * (a.loss - b.loss) / (a.length - b.length);
  const double square = d1 * d1 - a.slope * b.slope;
  if (!(square >= 0)) return (low + high) / 2;
  const double d2 = std::sqrt(square);
  const double minimum =
      a.length <= b.length
          ? b.length - (b.length - a.length) * ((b.slope + d2 - d1) / (b.slope - a.slope + 2 * d2))
          : a.length - (a.length - b.length) * ((a.slope + d2 - d1) / (a.slope - b.slope + 2 * d2));
  if (std::isnan(minimum)) return (low + high) / 2;
  return std::clamp(minimum, low, high);
}

LinePoint search_line(const LineFunction& f, const LinePoint& start, double first,
                      const LineSearchOptions& options) {
  return LineSearch(f, start, options).run(first);
}

}  // namespace onnxgrad::train
