#include "device/cpu/update.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace onnxgrad::device {
namespace {

const std::vector<WeightUpdate>& specs() {
  static const std::vector<WeightUpdate> table = [] {
    std::vector<WeightUpdate> all;
    for (const UpdateRule rule :
         {UpdateRule::kMomentum, UpdateRule::kNesterov, UpdateRule::kAdam, UpdateRule::kRoot,
          UpdateRule::kLion, UpdateRule::kVelocity, UpdateRule::kNesterovVelocity}) {
      for (const double decay : {0.0, 0.3}) {
        for (const bool shrinks : {false, true}) {
          const bool is_sum =
              rule != UpdateRule::kAdam && rule != UpdateRule::kRoot && rule != UpdateRule::kLion;
          all.push_back({.rule = rule,
                         .decay = decay,
                         .beta1 = 0.9,
                         .share1 = is_sum ? 1 : 0.1,
                         .beta2 = 0.99,
                         .share2 = is_sum ? 1 : 0.01,
                         .shrinks = shrinks});
        }
      }
    }
    // Slots that are no averages, and one average in which the gradient counts more than the slot.
    all.push_back(
        {.rule = UpdateRule::kAdam, .beta1 = 0.9, .share1 = 1, .beta2 = 0.99, .share2 = 0.5});
    all.push_back({.rule = UpdateRule::kAdam,
                   .beta1 = 0,
                   .share1 = 1,
                   .beta2 = 0.25,
                   .share2 = 0.75,
                   .shrinks = true});
    return all;
  }();
  return table;
}

template <class T>
struct Problem {
  explicit Problem(std::int64_t count, UpdateRule rule) : n(static_cast<std::size_t>(count)) {
    std::mt19937 random(static_cast<unsigned>(count) + 1);
    std::normal_distribution<double> normal;
    for (auto* row : {&g, &w, &m, &v}) {
      for (std::size_t i = 0; i < n; ++i) row->push_back(static_cast<T>(normal(random)));
    }
    for (T& x : v) x = std::abs(x);
    if (rule == UpdateRule::kRoot) {
      for (T& x : m) x = std::abs(x);  // a mean of squares
    }
    // Weights without a gradient so far.
    for (std::size_t i = 0; i < n; i += 5) g[i] = m[i] = v[i] = 0;
  }

  UpdateArrays<T> arrays(T* new_w, T* new_m, T* new_v) const {
    return {.gradient = g.data(),
            .w = w.data(),
            .m = m.data(),
            .v = v.data(),
            .new_w = new_w,
            .new_m = new_m,
            .new_v = new_v,
            .rate = static_cast<T>(0.05),
            .epsilon = static_cast<T>(1e-8),
            .shrink = static_cast<T>(0.97),
            .count = static_cast<std::int64_t>(n)};
  }

  std::size_t n;
  std::vector<T> g, w, m, v;
};

// The formulas of update.h in long double.
struct Expected {
  long double w, m, v;
};

template <class T>
Expected expected(const WeightUpdate& spec, const UpdateArrays<T>& arrays, std::size_t i) {
  const long double w = arrays.w[i];
  const long double g = arrays.gradient[i] + static_cast<long double>(spec.decay) * w;
  const long double start = spec.shrinks ? arrays.shrink * w : w;
  Expected result{};
  result.m = static_cast<long double>(spec.beta1) * arrays.m[i] +
             static_cast<long double>(spec.share1) * g;
  result.v = static_cast<long double>(spec.beta2) * arrays.v[i] +
             static_cast<long double>(spec.share2) * g * g;
  long double direction = result.m;
  if (spec.rule == UpdateRule::kNesterov) direction = g + spec.beta1 * result.m;
  if (spec.rule == UpdateRule::kAdam) {
    direction = result.m / (std::sqrt(result.v) + arrays.epsilon);
  }
  if (spec.rule == UpdateRule::kRoot) {
    result.m = static_cast<long double>(spec.beta1) * arrays.m[i] +
               static_cast<long double>(spec.share1) * g * g;
    direction = g / (std::sqrt(result.m) + arrays.epsilon);
  }
  if (spec.rule == UpdateRule::kLion) {
    direction = static_cast<long double>((direction > 0) - (direction < 0));
    result.m = static_cast<long double>(spec.beta2) * arrays.m[i] +
               static_cast<long double>(spec.share2) * g;
  }
  result.w = start - arrays.rate * direction;
  if (spec.rule == UpdateRule::kVelocity || spec.rule == UpdateRule::kNesterovVelocity) {
    const long double move = arrays.rate * g;
    result.m = static_cast<long double>(spec.beta1) * arrays.m[i] - move;
    const bool is_ahead = spec.rule == UpdateRule::kNesterovVelocity;
    result.w = start + (is_ahead ? spec.beta1 * result.m - move : result.m);
  }
  return result;
}

template <class T>
void expect_near(T found, long double value, const std::string& what) {
  const long double tolerance = 6 * static_cast<long double>(std::numeric_limits<T>::epsilon());
  EXPECT_NEAR(static_cast<double>(found), static_cast<double>(value),
              static_cast<double>(tolerance * (std::abs(value) + 1)))
      << what;
}

template <class T>
class Update : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(Update, Types);

TYPED_TEST(Update, IsTheFormula) {
  using T = TypeParam;
  for (const WeightUpdate& spec : specs()) {
    for (const std::int64_t count : {0, 1, 3, 7, 8, 15, 16, 17, 50, 131}) {
      const Problem<T> problem(count, spec.rule);
      // One element more, which nobody may write.
      std::vector<T> w(problem.n + 1, 42), m(problem.n + 1, 42), v(problem.n + 1, 42);
      const auto arrays = problem.arrays(w.data(), m.data(), v.data());
      find_update<T>(best_isa(), spec)(spec, arrays);
      for (std::size_t i = 0; i < problem.n; ++i) {
        const Expected right = expected(spec, arrays, i);
        const std::string where = "rule " + std::to_string(static_cast<int>(spec.rule)) + ", " +
                                  std::to_string(i) + " of " + std::to_string(count);
        expect_near(m[i], right.m, "m, " + where);
        if (spec.rule == UpdateRule::kAdam) expect_near(v[i], right.v, "v, " + where);
        expect_near(w[i], right.w, "w, " + where);
      }
      for (const auto* row : {&w, &m, &v}) EXPECT_EQ(row->back(), 42);
    }
  }
}

TYPED_TEST(Update, WorksInPlaceAndInParts) {
  using T = TypeParam;
  for (const WeightUpdate& spec : specs()) {
    const Problem<T> problem(75, spec.rule);
    std::vector<T> w(75), m(75), v(problem.v);
    find_update<T>(best_isa(), spec)(spec, problem.arrays(w.data(), m.data(), v.data()));
    Problem<T> in_place(75, spec.rule);
    const auto arrays = in_place.arrays(in_place.w.data(), in_place.m.data(), in_place.v.data());
    find_update<T>(best_isa(), spec)(spec, arrays.from(0, 33));
    find_update<T>(best_isa(), spec)(spec, arrays.from(33, 42));
    EXPECT_EQ(in_place.w, w);
    EXPECT_EQ(in_place.m, m);
    if (spec.rule == UpdateRule::kAdam) {
      EXPECT_EQ(in_place.v, v);
    }
  }
}

// Parts of matrices: rows of a gradient that lie closer than those of the weight.
TYPED_TEST(Update, WorksOnRows) {
  using T = TypeParam;
  constexpr std::int64_t kRows = 5, kColumns = 21, kLength = 30;
  for (const WeightUpdate& spec : specs()) {
    const Problem<T> problem(kRows * kLength, spec.rule);
    std::vector<T> w(problem.w), m(problem.m), v(problem.v), gradient;
    std::vector<T> right_w(w), right_m(m), right_v(v);
    const auto all = problem.arrays(right_w.data(), right_m.data(), right_v.data());
    for (std::int64_t i = 0; i < kRows; ++i) {
      find_update<T>(best_isa(), spec)(spec, all.from(i * kLength + 4, kColumns));
      const T* row = problem.g.data() + i * kLength + 4;
      gradient.insert(gradient.end(), row, row + kColumns);
    }
    auto part = problem.arrays(w.data(), m.data(), v.data()).from(4, kColumns);
    part.gradient = gradient.data();
    part.gradient_row = kColumns;
    part.rows = kRows;
    part.row = kLength;
    find_update<T>(best_isa(), spec)(spec, part);
    EXPECT_EQ(w, right_w);
    EXPECT_EQ(m, right_m);
    EXPECT_EQ(v, right_v);
  }
}

// The direction of Adam over many magnitudes, against the exact quotient.
TEST(AdamDirection, IsAccurateForAllMagnitudes) {
  const WeightUpdate spec{
      .rule = UpdateRule::kAdam, .beta1 = 1, .share1 = 0, .beta2 = 1, .share2 = 0};
  std::vector<float> m, v;
  for (int exponent = -36; exponent <= 36; ++exponent) {
    for (const float part : {1.0F, 1.7F, 3.3F, 7.9F}) {
      v.push_back(part * std::pow(10.0F, static_cast<float>(exponent)));
      m.push_back(0.7F * std::sqrt(v.back()));
    }
  }
  const std::vector<float> zeros(m.size(), 0);
  for (const float epsilon : {1e-12F, 1e-8F, 1e-3F}) {
    std::vector<float> w(m.size()), new_m(m.size()), new_v(m.size());
    find_update<float>(best_isa(), spec)(spec, {.gradient = zeros.data(),
                                                .w = zeros.data(),
                                                .m = m.data(),
                                                .v = v.data(),
                                                .new_w = w.data(),
                                                .new_m = new_m.data(),
                                                .new_v = new_v.data(),
                                                .rate = 1,
                                                .epsilon = epsilon,
                                                .count = static_cast<std::int64_t>(m.size())});
    for (std::size_t i = 0; i < m.size(); ++i) {
      const double exact = -static_cast<double>(m[i]) /
                           (std::sqrt(static_cast<double>(v[i])) + static_cast<double>(epsilon));
      EXPECT_NEAR(w[i], exact, 4 * std::numeric_limits<float>::epsilon() * std::abs(exact))
          << "v = " << v[i] << ", epsilon = " << epsilon;
    }
  }
}

TEST(AdamDirection, OfWeightsWithoutGradientIsZero) {
  const WeightUpdate spec{
      .rule = UpdateRule::kAdam, .beta1 = 0.9, .share1 = 0.1, .beta2 = 0.99, .share2 = 0.01};
  const std::vector<float> zeros(20, 0), ones(20, 1);
  std::vector<float> w(20), m(20), v(20);
  find_update<float>(best_isa(), spec)(spec, {.gradient = zeros.data(),
                                              .w = ones.data(),
                                              .m = zeros.data(),
                                              .v = zeros.data(),
                                              .new_w = w.data(),
                                              .new_m = m.data(),
                                              .new_v = v.data(),
                                              .rate = 1,
                                              .epsilon = 1e-8F,
                                              .count = 20});
  EXPECT_EQ(w, ones);
  EXPECT_EQ(v, zeros);
}

// A momentum that decays without a gradient ends as zero, not as a denormal number.
TYPED_TEST(Update, AveragesThatDecayEndAsZero) {
  using T = TypeParam;
  for (const UpdateRule rule : {UpdateRule::kMomentum, UpdateRule::kAdam, UpdateRule::kVelocity}) {
    const WeightUpdate spec{.rule = rule, .beta1 = 0.1, .share1 = 0.9, .beta2 = 0.1, .share2 = 0.9};
    const T smallest = std::numeric_limits<T>::min();
    const std::vector<T> zeros(20, 0), ones(20, 1), low(20, smallest);
    std::vector<T> w(20), m(20, 42), v(20, 42);
    find_update<T>(best_isa(), spec)(spec, {.gradient = zeros.data(),
                                            .w = ones.data(),
                                            .m = low.data(),
                                            .v = low.data(),
                                            .new_w = w.data(),
                                            .new_m = m.data(),
                                            .new_v = v.data(),
                                            .rate = 1,
                                            .epsilon = 1,
                                            .count = 20});
    EXPECT_EQ(m, zeros);
    if (rule == UpdateRule::kAdam) {
      EXPECT_EQ(v, zeros);
    }
    EXPECT_EQ(w, ones);
    volatile T half = smallest;
    half = half / 2;
    EXPECT_NE(half, T(0)) << "denormal numbers are there again";
  }
}

}  // namespace
}  // namespace onnxgrad::device
