#include "runtime/segments.h"

#include <cstddef>

namespace onnxgrad::runtime {
namespace {

Segment segment_of(const PlanStep& step, std::size_t at) {
  using Kind = Segment::Kind;
  if (step.is_on_host) return {.kind = Kind::kHost, .begin = at, .end = at + 1};
  if (step.kernel.not_recordable.empty()) return {.begin = at, .end = at + 1};
  return {.kind = Kind::kSubmitted,
          .begin = at,
          .end = at + 1,
          .reason = step.op_type + ": " + step.kernel.not_recordable};
}

}  // namespace

void add_segments(Plan& plan) {
  plan.segments.clear();
  for (std::size_t i = 0; i < plan.steps.size(); ++i) {
    Segment next = segment_of(plan.steps[i], i);
    if (!plan.segments.empty() && plan.segments.back().kind == next.kind) {
      plan.segments.back().end = next.end;
    } else {
      plan.segments.push_back(std::move(next));
    }
  }
}

}  // namespace onnxgrad::runtime
