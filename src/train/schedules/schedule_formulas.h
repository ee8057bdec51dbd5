#ifndef ONNXGRAD_TRAIN_SCHEDULES_SCHEDULE_FORMULAS_H_
#define ONNXGRAD_TRAIN_SCHEDULES_SCHEDULE_FORMULAS_H_

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "ir/builder.h"
#include "onnxgrad/schedules.h"

// Formulas of schedules as functions of (parameters, r, t, T): r the rate, t the time in the
// schedule's unit, length T. S is double, or ScheduleNode to write it into a graph.
// schedules/table.cpp has their sources.

namespace onnxgrad::train {

// The types that schedule formulas are instantiated for: numbers, and nodes of a graph. Both
// support the same functions; those for numbers are in the standard library or here.

/// A float64 of rank 0 in a graph.
struct ScheduleNode {
  ir::GraphBuilder* g = nullptr;
  ir::Value* value = nullptr;

  ScheduleNode number(double x) const { return {g, g->scalar_like(value, x)}; }
};

/// A truth value in a graph.
struct ScheduleCondition {
  ir::Value* value = nullptr;
};

inline ScheduleNode operator+(ScheduleNode a, ScheduleNode b) {
  return {a.g, a.g->add(a.value, b.value)};
}
inline ScheduleNode operator-(ScheduleNode a, ScheduleNode b) {
  return {a.g, a.g->sub(a.value, b.value)};
}
inline ScheduleNode operator*(ScheduleNode a, ScheduleNode b) {
  return {a.g, a.g->mul(a.value, b.value)};
}
inline ScheduleNode operator/(ScheduleNode a, ScheduleNode b) {
  return {a.g, a.g->div(a.value, b.value)};
}
inline ScheduleNode operator+(ScheduleNode a, double b) { return a + a.number(b); }
inline ScheduleNode operator+(double a, ScheduleNode b) { return b.number(a) + b; }
inline ScheduleNode operator-(ScheduleNode a, double b) { return a - a.number(b); }
inline ScheduleNode operator-(double a, ScheduleNode b) { return b.number(a) - b; }
inline ScheduleNode operator*(ScheduleNode a, double b) { return a * a.number(b); }
inline ScheduleNode operator*(double a, ScheduleNode b) { return b.number(a) * b; }
inline ScheduleNode operator/(ScheduleNode a, double b) { return a / a.number(b); }
inline ScheduleNode operator/(double a, ScheduleNode b) { return b.number(a) / b; }

inline ScheduleNode pow(ScheduleNode base, double exponent) {
  return {base.g, base.g->pow(base.value, base.number(exponent).value)};
}
inline ScheduleNode pow(double base, ScheduleNode exponent) {
  return {exponent.g, exponent.g->pow(exponent.number(base).value, exponent.value)};
}
inline ScheduleNode floor(ScheduleNode x) { return {x.g, x.g->op("Floor", {x.value})}; }
inline ScheduleNode cos(ScheduleNode x) { return {x.g, x.g->op("Cos", {x.value})}; }
inline ScheduleNode log(ScheduleNode x) { return {x.g, x.g->log(x.value)}; }

/// `x` clamped to [0, 1].
inline double clamp_share(double x) { return x < 0 ? 0 : x > 1 ? 1 : x; }
inline ScheduleNode clamp_share(ScheduleNode x) {
  return {x.g, x.g->op("Clip", {x.value, x.number(0).value, x.number(1).value})};
}

/// a <= b.
inline bool at_most(double a, double b) { return a <= b; }
inline ScheduleCondition at_most(ScheduleNode a, double b) {
  return {a.g->op("LessOrEqual", {a.value, a.number(b).value})};
}
inline ScheduleCondition at_most(double a, ScheduleNode b) {
  return {b.g->op("LessOrEqual", {b.number(a).value, b.value})};
}
inline ScheduleCondition at_most(ScheduleNode a, ScheduleNode b) {
  return {a.g->op("LessOrEqual", {a.value, b.value})};
}

/// condition ? a : b; for nodes both are computed.
inline double select(bool condition, double a, double b) { return condition ? a : b; }
inline ScheduleNode select(ScheduleCondition condition, ScheduleNode a, ScheduleNode b) {
  return {a.g, a.g->where(condition.value, a.value, b.value)};
}

/// `x` in the type of `like`.
inline double number_like(double /*like*/, double x) { return x; }
inline ScheduleNode number_like(ScheduleNode like, double x) { return like.number(x); }

using std::cos;
using std::floor;
using std::log;
using std::pow;

template <class S>
S formula(const ConstantRate& spec, S r, S /*t*/, double /*length*/) {
  return r * spec.factor;
}

template <class S>
S formula(const InverseScaling& spec, S r, S t, double /*length*/) {
  return r / pow(t + 1.0, spec.power);
}

template <class S>
S formula(const OptimalRate& spec, S r, S t, double /*length*/) {
  const double a = std::pow(spec.alpha, -0.25);
  const double first = spec.first_is_rate ? a / std::max(1.0, 2 * (1 + a)) : a;
  const S value = 1.0 / (spec.alpha * (1 / (spec.alpha * first) + t));
  return spec.first_is_rate ? r * (value / first) : value;
}

template <class S>
S formula(const StepDecay& spec, S r, S t, double /*length*/) {
  return r * pow(spec.factor, floor(t / static_cast<double>(spec.every)));
}

template <class S>
S formula(const MultiStepDecay& spec, S r, S t, double /*length*/) {
  S passed = number_like(t, 0);
  for (const std::int64_t milestone : spec.milestones) {
    const auto is_passed = at_most(static_cast<double>(milestone), t);
    passed = select(is_passed, passed + 1.0, passed);
  }
  return r * pow(spec.factor, passed);
}

template <class S>
S formula(const ExponentialDecay& spec, S r, S t, double /*length*/) {
  return r * pow(spec.factor, t);
}

/// Interpolates from a to b along half a cosine; `share` is in [0, 1].
template <class S>
S along_cosine(S a, S b, S share) {
  return b + (a - b) * (1.0 + cos(std::numbers::pi * share)) / 2.0;
}

template <class S>
S share_of(S t, double length) {
  return length > 0 ? clamp_share(t / length) : number_like(t, 1);
}

template <class S>
S formula(const CosineDecay& spec, S r, S t, double length) {
  return along_cosine(r, r * spec.minimum_factor, share_of(t, length));
}

template <class S>
S formula(const CosineRestarts& spec, S r, S t, double length) {
  // Round i begins at T (q^i - 1) / (q - 1) and has length T q^i.
  const double q = spec.length_factor;
  const auto begin_of = [&](S i) {
    return q == 1 ? i * length : length * (pow(q, i) - 1.0) / (q - 1);
  };
  S round = q == 1 ? floor(t / length) : floor(log(t * (q - 1) / length + 1.0) / std::log(q));
  if (q != 1) {  // rounding
    const S next = round + 1.0;
    round = select(at_most(begin_of(next), t), next, round);
  }
  const S top = r * pow(spec.restart_factor, round);
  const S share = clamp_share((t - begin_of(round)) / (length * pow(q, round)));
  return along_cosine(top, r * spec.minimum_factor, share);
}

template <class S>
S formula(const OneCycle& spec, S r, S t, double length) {
  const double turn = spec.rise * length - 1;
  const double fall = std::max(turn, 0.0);  // start of the fall
  const S start = r / spec.start_divisor;
  const S last = start / spec.end_divisor;
  const auto between = [&](S a, S b, S share) {
    return spec.linear ? a + (b - a) * share : along_cosine(a, b, share);
  };
  const S rising = between(start, r, turn > 0 ? t / turn : number_like(t, 1));
  const S falling = between(r, last, share_of(t - fall, length - 1 - fall));
  return select(at_most(t, turn), rising, falling);
}

template <class S>
S formula(const LinearRate& spec, S r, S t, double length) {
  return r * (spec.start_factor + (spec.end_factor - spec.start_factor) * share_of(t, length));
}

template <class S>
S formula(const PolynomialDecay& spec, S r, S t, double length) {
  const S left = pow(1.0 - share_of(t, length), spec.power);
  return r * (spec.end_factor + (1 - spec.end_factor) * left);
}

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_SCHEDULES_SCHEDULE_FORMULAS_H_
