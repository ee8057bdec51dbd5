#include "train/optimizers/lbfgs.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "train/optimizers/line_search.h"

namespace onnxgrad::train::lbfgs_test {

// 100 (y - x^2)^2 + (1 - x)^2, with its minimum 0 at (1, 1).
double rosenbrock(std::span<const double> p, std::span<double> gradient) {
  const double x = p[0];
  const double y = p[1];
  gradient[0] = -400 * x * (y - x * x) - 2 * (1 - x);
  gradient[1] = 200 * (y - x * x);
  return 100 * (y - x * x) * (y - x * x) + (1 - x) * (1 - x);
}

// sum_i i (x_i - i)^2 / 2, i from 1.
double bowl(std::span<const double> x, std::span<double> gradient) {
  double sum = 0;
  for (std::size_t k = 0; k < x.size(); ++k) {
    const auto i = static_cast<double>(k + 1);
    gradient[k] = i * (x[k] - i);
    sum += i * (x[k] - i) * (x[k] - i) / 2;
  }
  return sum;
}

TEST(Lbfgs, FindsTheMinimumOfRosenbrocksFunction) {
  LbfgsSolver solver({.max_iterations = 100}, 2);
  std::vector<double> x{-1.2, 1};
  EXPECT_NEAR(solver.step(rosenbrock, 1, x), 24.2, 1e-12);
  EXPECT_NEAR(x[0], 1, 1e-5);
  EXPECT_NEAR(x[1], 1, 1e-5);
}

TEST(Lbfgs, SmallStepsArriveToo) {
  LbfgsSolver solver({.max_iterations = 1, .history = 3}, 2);
  std::vector<double> x{-1.2, 1};
  double loss = 0;
  for (int i = 0; i < 100; ++i) loss = solver.step(rosenbrock, 1, x);
  EXPECT_LT(loss, 1e-9);  // where changes of less than change_tolerance end a step
}

TEST(Lbfgs, NeedsFewStepsInABowl) {
  LbfgsSolver solver({.max_iterations = 30}, 12);
  std::vector<double> x(12, 0);
  solver.step(bowl, 1, x);
  for (std::size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(x[i], static_cast<double>(i + 1), 1e-5);
}

TEST(Lbfgs, StopsAtItsLimits) {
  int evaluations = 0;
  const auto counted = [&](std::span<const double> x, std::span<double> gradient) {
    ++evaluations;
    return rosenbrock(x, gradient);
  };
  std::vector<double> x{-1.2, 1};
  LbfgsSolver few({.max_iterations = 100, .max_evaluations = 10}, 2);
  few.step(counted, 1, x);
  EXPECT_GE(evaluations, 10);
  EXPECT_LE(evaluations, 35);  // the last line search may continue
  evaluations = 0;
  std::vector<double> flat{1, 1};
  LbfgsSolver still({}, 2);
  EXPECT_EQ(still.step(counted, 1, flat), 0);
  EXPECT_EQ(evaluations, 1);  // the gradient is zero
  EXPECT_THAT(flat, testing::ElementsAre(1, 1));
}

TEST(Lbfgs, FixedStepsMoveByTheRate) {
  LbfgsSolver solver({.max_iterations = 1, .line_search = false}, 2);
  std::vector<double> x{3, 4};  // gradient (2, 4) of the bowl with minimum (1, 2)
  solver.step(bowl, 0.6, x);
  EXPECT_NEAR(x[0], 3 - 0.6 / 6 * 2, 1e-15);
  EXPECT_NEAR(x[1], 4 - 0.6 / 6 * 4, 1e-15);
}

TEST(Lbfgs, GoesOnFromItsState) {
  std::vector<double> x{-1.2, 1};
  LbfgsSolver solver({.max_iterations = 5, .history = 4}, 2);
  solver.step(rosenbrock, 1, x);
  LbfgsSolver other({.max_iterations = 5, .history = 4}, 2);
  for (std::size_t i = 0; i < solver.state().size(); ++i) {
    ASSERT_EQ(solver.state()[i].name, other.state()[i].name);
    const Tensor& from = solver.state()[i].tensor;
    std::memcpy(other.state()[i].tensor.mutable_raw(), from.raw(),
                static_cast<std::size_t>(from.size_bytes()));
  }
  std::vector<double> y = x;
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(solver.step(rosenbrock, 1, x), other.step(rosenbrock, 1, y));
    EXPECT_EQ(x, y);
  }
  // Without its state it is another run.
  std::vector<double> z{-1.2, 1};
  std::vector<double> again = z;
  solver.clear();
  LbfgsSolver fresh({.max_iterations = 5, .history = 4}, 2);
  EXPECT_EQ(solver.step(rosenbrock, 1, z), fresh.step(rosenbrock, 1, again));
  EXPECT_EQ(z, again);
}

TEST(Lbfgs, NonFiniteStartStaysWhereItIs) {
  const auto nan = [](std::span<const double>, std::span<double> gradient) {
    std::ranges::fill(gradient, 1.0);
    return std::nan("");
  };
  std::vector<double> x{1, 2};
  LbfgsSolver solver({}, 2);
  EXPECT_TRUE(std::isnan(solver.step(nan, 1, x)));
  EXPECT_THAT(x, testing::ElementsAre(1, 2));
}

struct LineCase {
  std::string name;
  double (*loss)(double t);
  double (*slope)(double t);
  double first;
};

// Functions with f'(0) < 0.
const std::vector<LineCase>& lines() {
  static const std::vector<LineCase> table{
      {"parabola", [](double t) { return (t - 2) * (t - 2); }, [](double t) { return 2 * (t - 2); },
       1},
      {"parabola_far", [](double t) { return (t - 2) * (t - 2); },
       [](double t) { return 2 * (t - 2); }, 1000},
      {"parabola_near", [](double t) { return (t - 2) * (t - 2); },
       [](double t) { return 2 * (t - 2); }, 1e-4},
      {"waves", [](double t) { return std::sin(5 * t) - 9 * t + t * t; },
       [](double t) { return 5 * std::cos(5 * t) - 9 + 2 * t; }, 1},
      {"log_wall", [](double t) { return t < 1 ? -std::log(1 - t) - 3 * t : std::nan(""); },
       [](double t) { return t < 1 ? 1 / (1 - t) - 3 : std::nan(""); }, 5},
      {"steep", [](double t) { return std::exp(8 * t) - 20 * t; },
       [](double t) { return 8 * std::exp(8 * t) - 20; }, 1},
  };
  return table;
}

TEST(LineSearch, EndsWhereTheStrongWolfeConditionsHold) {
  for (const LineCase& row : lines()) {
    SCOPED_TRACE(row.name);
    const auto at = [&](double t) {
      return LinePoint{.length = t, .loss = row.loss(t), .slope = row.slope(t)};
    };
    const LinePoint start = at(0);
    ASSERT_LT(start.slope, 0);
    const LinePoint found = search_line(at, start, row.first, {.largest = 1});
    EXPECT_GT(found.length, 0);
    EXPECT_LE(found.loss, start.loss + 1e-4 * found.length * start.slope);
    EXPECT_LE(std::abs(found.slope), 0.9 * std::abs(start.slope));
  }
}

TEST(LineSearch, GivesUpAtTheStart) {
  // The slope says down, the function goes up: nothing satisfies the conditions.
  const auto at = [](double t) { return LinePoint{.length = t, .loss = t, .slope = -1}; };
  const LinePoint found =
      search_line(at, at(0), 1, {.change_tolerance = 1e-3, .largest = 1, .max_evaluations = 40});
  EXPECT_LT(found.length, 0.1);
}

TEST(CubicMinimum, IsExactForCubics) {
  // t^3 - 3 t has its minimum at 1.
  const auto at = [](double t) {
    return LinePoint{.length = t, .loss = t * t * t - 3 * t, .slope = 3 * t * t - 3};
  };
  EXPECT_NEAR(cubic_minimum(at(0), at(3), 0, 3), 1, 1e-12);
  EXPECT_NEAR(cubic_minimum(at(3), at(0), 0, 3), 1, 1e-12);
  EXPECT_EQ(cubic_minimum(at(0), at(3), 1.5, 3), 1.5);
  // Falling everywhere: no minimum, the middle.
  const auto down = [](double t) {
    return LinePoint{.length = t, .loss = -t * t * t - t, .slope = -3 * t * t - 1};
  };
  EXPECT_EQ(cubic_minimum(down(-1), down(1), -1, 1), 0);
}

}  // namespace onnxgrad::train::lbfgs_test
