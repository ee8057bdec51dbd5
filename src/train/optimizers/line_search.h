#ifndef ONNXGRAD_TRAIN_OPTIMIZERS_LINE_SEARCH_H_
#define ONNXGRAD_TRAIN_OPTIMIZERS_LINE_SEARCH_H_

#include <cstdint>
#include <functional>
#include <vector>

namespace onnxgrad::train {

/// A point x + length * d on a line, with the loss f there and its slope d . grad f.
struct LinePoint {
  double length = 0;
  double loss = 0;
  double slope = 0;
  std::vector<double> gradient = {};  ///< grad f, all weights in one row
};

/// Computes the point at a length.
using LineFunction = std::function<LinePoint(double length)>;

struct LineSearchOptions {
  double sufficient_decrease = 1e-4;  ///< c1
  double curvature = 0.9;             ///< c2
  /// The search ends when it moves no weight by more than this; `largest` is max |d|.
  double change_tolerance = 1e-9;
  double largest = 0;
  std::int64_t max_evaluations = 25;
};

/// Finds a point with f(t) <= f(0) + c1 t f'(0) and |f'(t)| <= c2 |f'(0)| (strong Wolfe
/// conditions), or the best one found if a limit of the options ends the search. Nocedal and
/// Wright, Numerical Optimization, algorithms 3.5 (bracketing) and 3.6 (zoom), with cubic
/// interpolation (3.59) and the safeguards of Schmidt's minFunc. `start` has length 0 and a
/// negative slope; `first` is the first length that is tried, > 0. Lengths where f is not finite
/// are too far.
LinePoint search_line(const LineFunction& f, const LinePoint& start, double first,
                      const LineSearchOptions& options);

/// Minimum in [low, high] of the cubic through two points with their slopes; the middle if there is
/// none.
double cubic_minimum(const LinePoint& a, const LinePoint& b, double low, double high);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_OPTIMIZERS_LINE_SEARCH_H_
