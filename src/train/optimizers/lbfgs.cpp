#include "train/optimizers/lbfgs.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numeric>

#include "train/optimizers/line_search.h"
#include "train/optimizers/table.h"

// The state is a list of tensors, so that it can be saved: the ring of pairs (s, y), the last
// direction and gradient, and some numbers. kX are indices into that list and the rows of numbers.

namespace onnxgrad::train {
namespace {

constexpr std::size_t kWeightChanges = 0;    // s [history, n]
constexpr std::size_t kGradientChanges = 1;  // y [history, n]
constexpr std::size_t kDirection = 2;        // d [n]
constexpr std::size_t kGradient = 3;         // before the last step [n]
constexpr std::size_t kNumbers = 4;
constexpr std::size_t kCounts = 5;

constexpr std::size_t kStepLength = 0;  // step length of the last iteration
constexpr std::size_t kScale = 1;       // (s . y) / (y . y) of the last pair

constexpr std::size_t kIterations = 0;
constexpr std::size_t kPairs = 1;  // pairs that are kept
constexpr std::size_t kNewest = 2;

constexpr double kSmallestCurvature = 1e-10;  // s . y of a pair that is kept

// In eight sums, so that the additions do not wait for each other.
double dot(std::span<const double> a, std::span<const double> b) {
  std::array<double, 8> sums{};
  std::size_t i = 0;
  for (; i + sums.size() <= a.size(); i += sums.size()) {
    for (std::size_t lane = 0; lane < sums.size(); ++lane) sums[lane] += a[i + lane] * b[i + lane];
  }
  for (; i < a.size(); ++i) sums[i % sums.size()] += a[i] * b[i];
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

void add_scaled(std::span<double> to, double factor, std::span<const double> x) {
  for (std::size_t i = 0; i < to.size(); ++i) to[i] += factor * x[i];
}

double largest_magnitude(std::span<const double> x) {
  double largest = 0;
  for (const double element : x) largest = std::max(largest, std::abs(element));
  return largest;
}

double sum_of_magnitudes(std::span<const double> x) {
  return std::accumulate(x.begin(), x.end(), 0.0,
                         [](double sum, double element) { return sum + std::abs(element); });
}

bool is_finite(std::span<const double> x) {
  return std::ranges::all_of(x, [](double element) { return std::isfinite(element); });
}

}  // namespace

LbfgsSolver::LbfgsSolver(const Lbfgs& spec, std::int64_t size) : spec_(spec), size_(size) {
  const auto zeros = [](const char* name, Dims dims, DataType dtype = DataType::kFloat64) {
    return NamedTensor{.name = name, .tensor = Tensor::zeros(dtype, std::move(dims))};
  };
  state_ = {zeros("lbfgs/weight_changes", Dims{spec.history, size}),
            zeros("lbfgs/gradient_changes", Dims{spec.history, size}),
            zeros("lbfgs/direction", Dims{size}),
            zeros("lbfgs/gradient", Dims{size}),
            zeros("lbfgs/numbers", Dims{2}),
            zeros("lbfgs/counts", Dims{3}, DataType::kInt64)};
}

void LbfgsSolver::clear() {
  for (NamedTensor& entry : state_) {
    std::memset(entry.tensor.mutable_raw(), 0, static_cast<std::size_t>(entry.tensor.size_bytes()));
  }
}

LbfgsSolver::Row LbfgsSolver::row(std::size_t tensor, std::int64_t i) {
  auto* data = reinterpret_cast<double*>(state_[tensor].tensor.mutable_raw());
  return {data + i * size_, static_cast<std::size_t>(size_)};
}

std::int64_t& LbfgsSolver::count(std::size_t i) {
  return reinterpret_cast<std::int64_t*>(state_[kCounts].tensor.mutable_raw())[i];
}

double& LbfgsSolver::number(std::size_t i) {
  return reinterpret_cast<double*>(state_[kNumbers].tensor.mutable_raw())[i];
}

void LbfgsSolver::keep_step() noexcept {
  can_undo_ = false;
  pairs_before_.clear();
}

void LbfgsSolver::begin_step() {
  keep_step();
  others_before_.resize(state_.size());
  for (std::size_t i = kDirection; i < state_.size(); ++i) {
    const Tensor& now = state_[i].tensor;
    Tensor& before = others_before_[i];
    if (!before.is_defined()) before = Tensor::empty(now.dtype(), now.dims());
    std::memcpy(before.mutable_raw(), now.raw(), static_cast<std::size_t>(now.size_bytes()));
  }
  can_undo_ = true;
}

void LbfgsSolver::save_pair(std::int64_t place) {
  if (std::ranges::find(pairs_before_, place, &Pair::place) != pairs_before_.end()) return;
  const Row s = row(kWeightChanges, place);
  const Row y = row(kGradientChanges, place);
  pairs_before_.push_back({.place = place, .s = {s.begin(), s.end()}, .y = {y.begin(), y.end()}});
}

void LbfgsSolver::undo_step() noexcept {
  if (!can_undo_) return;
  for (const Pair& pair : pairs_before_) {
    std::ranges::copy(pair.s, row(kWeightChanges, pair.place).begin());
    std::ranges::copy(pair.y, row(kGradientChanges, pair.place).begin());
  }
  for (std::size_t i = kDirection; i < others_before_.size(); ++i) {
    const Tensor& before = others_before_[i];
    std::memcpy(state_[i].tensor.mutable_raw(), before.raw(),
                static_cast<std::size_t>(before.size_bytes()));
  }
  keep_step();
}

// s = t d, y = g - (g before): written to the oldest slot, and counted if their product is good.
void LbfgsSolver::add_pair(std::span<const double> gradient) {
  const std::int64_t place = count(kPairs) == 0 ? 0 : (count(kNewest) + 1) % spec_.history;
  std::vector<double> y(gradient.begin(), gradient.end());
  add_scaled(y, -1, row(kGradient));
  std::vector<double> s(static_cast<std::size_t>(size_), 0);
  add_scaled(s, number(kStepLength), row(kDirection));
  const double product = dot(y, s);
  if (!(product > kSmallestCurvature)) return;
  save_pair(place);
  std::ranges::copy(s, row(kWeightChanges, place).begin());
  std::ranges::copy(y, row(kGradientChanges, place).begin());
  count(kNewest) = place;
  count(kPairs) = std::min(count(kPairs) + 1, spec_.history);
  number(kScale) = product / dot(y, y);
}

// Algorithm 7.4, the two-loop recursion: d = -H g.
void LbfgsSolver::find_direction(std::span<const double> gradient) {
  const Row d = row(kDirection);
  for (std::size_t i = 0; i < d.size(); ++i) d[i] = -gradient[i];
  const std::int64_t pairs = count(kPairs);
  if (pairs == 0) return;
  const auto place = [&](std::int64_t age) {
    return (count(kNewest) - age + spec_.history) % spec_.history;
  };
  std::vector<double> alpha(static_cast<std::size_t>(pairs));
  std::vector<double> rho(static_cast<std::size_t>(pairs));
  for (std::int64_t age = 0; age < pairs; ++age) {
    const auto i = static_cast<std::size_t>(age);
    const Row s = row(kWeightChanges, place(age));
    const Row y = row(kGradientChanges, place(age));
    rho[i] = 1 / dot(y, s);
    alpha[i] = rho[i] * dot(s, d);
    add_scaled(d, -alpha[i], y);
  }
  for (double& element : d) element *= number(kScale);
  for (std::int64_t age = pairs - 1; age >= 0; --age) {
    const auto i = static_cast<std::size_t>(age);
    const double beta = rho[i] * dot(row(kGradientChanges, place(age)), d);
    add_scaled(d, alpha[i] - beta, row(kWeightChanges, place(age)));
  }
}

double LbfgsSolver::step(const LossFunctionOf& loss, double learning_rate, std::span<double> x) {
  begin_step();
  std::int64_t evaluations = 0;
  std::vector<double> from(x.begin(), x.end());
  const auto evaluate = [&](double length) {
    ++evaluations;
    std::ranges::copy(from, x.begin());
    if (length != 0) add_scaled(x, length, row(kDirection));
    LinePoint point{.length = length, .gradient = std::vector<double>(x.size())};
    point.loss = loss(x, point.gradient);
    point.slope = dot(point.gradient, row(kDirection));
    return point;
  };
  const std::int64_t limit =
      spec_.max_evaluations > 0 ? spec_.max_evaluations : spec_.max_iterations * 5 / 4;
  LinePoint point = evaluate(0);
  const double first_loss = point.loss;
  for (std::int64_t i = 1; i <= spec_.max_iterations; ++i) {
    if (!std::isfinite(point.loss) || !is_finite(point.gradient) ||
        largest_magnitude(point.gradient) <= spec_.gradient_tolerance) {
      break;
    }
    if (count(kIterations) > 0) add_pair(point.gradient);
    find_direction(point.gradient);
    const Row d = row(kDirection);
    point.slope = dot(point.gradient, d);
    point.length = 0;
    const bool is_first = count(kIterations)++ == 0;
    const double length = is_first
                              ? learning_rate * std::min(1.0, 1 / sum_of_magnitudes(point.gradient))
                              : learning_rate;
    std::ranges::copy(point.gradient, row(kGradient).begin());
    number(kStepLength) = 0;
    if (point.slope > -spec_.change_tolerance) break;
    const double old_loss = point.loss;
    if (spec_.line_search) {
      point = search_line(
          evaluate, point, length,
          {.change_tolerance = spec_.change_tolerance, .largest = largest_magnitude(d)});
    } else {
      point = evaluate(length);
    }
    number(kStepLength) = point.length;
    add_scaled(from, point.length, d);
    const bool is_small = largest_magnitude(d) * std::abs(point.length) <= spec_.change_tolerance ||
                          std::abs(point.loss - old_loss) < spec_.change_tolerance;
    if (evaluations >= limit || is_small) break;
  }
  std::ranges::copy(from, x.begin());
  return first_loss;
}

void register_lbfgs(OptimizerTable& table) {
  table.add_without_rule(Described<Lbfgs>{
      .type = "Lbfgs",
      .python_name = "LBFGS",
      .summary = "Limited-memory BFGS, for data that fit into one batch",
      .source = "Nocedal and Wright, 2006, algorithms 7.4, 3.5 and 3.6",
      .formula = "A training step takes all rows and does up to max_iterations iterations, each "
                 "with several evaluations of loss and gradient; the line search ends where the "
                 "strong Wolfe conditions with c1 = 1e-4 and c2 = 0.9 hold.",
      .fields = {rate_field<Lbfgs>("First length that a line search tries; in the first iteration "
                                   "lr * min(1, 1 / |g|_1)."),
                 field("max_iterations", &Lbfgs::max_iterations, kAtLeastOne, "Of a step."),
                 zero_is("1.25 * max_iterations", field("max_evaluations", &Lbfgs::max_evaluations,
                                                        kAtLeastOne, "Of a step.")),
                 field("history", &Lbfgs::history, kAtLeastOne,
                       "Number of pairs of changes to keep."),
                 field("gradient_tolerance", &Lbfgs::gradient_tolerance, kAtLeastZero,
                       "A step ends when no element of the gradient is larger."),
                 field("change_tolerance", &Lbfgs::change_tolerance, kAtLeastZero,
                       "A step ends when loss or weights change by less."),
                 field("line_search", &Lbfgs::line_search,
                       "False: every iteration moves by lr times the direction.")},
      .names = {{"lbfgs", {}}},
  });
}

}  // namespace onnxgrad::train
