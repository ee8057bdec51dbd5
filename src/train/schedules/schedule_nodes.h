#ifndef ONNXGRAD_TRAIN_SCHEDULES_SCHEDULE_NODES_H_
#define ONNXGRAD_TRAIN_SCHEDULES_SCHEDULE_NODES_H_

#include <vector>

#include "ir/builder.h"

// The types that schedule formulas are instantiated for: numbers, and nodes of a graph. Both
// support the same functions; those for numbers are in the standard library or here.

namespace onnxgrad::train {

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

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_SCHEDULES_SCHEDULE_NODES_H_
