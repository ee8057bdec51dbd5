#include "ops/collective/exchange_task.h"

#include <algorithm>

namespace onnxgrad::ops {
namespace {

using opdef::Collective;
using opdef::Exchange;
using opdef::TensorDesc;

std::int64_t bytes_of(DataType dtype) { return dtype == DataType::kFloat64 ? 8 : 4; }

ExchangeTask make_task(const Exchange& spec) {
  return {.is_conditional = spec.collective.is_conditional,
          .kind = spec.collective.kind,
          .route = spec.collective.route,
          .number = static_cast<std::size_t>(spec.collective.number),
          .owned = spec.owned,
          .dtype = spec.dtype,
          .as_bfloat16 = spec.collective.as_bfloat16};
}

// Returns the ranges that are sent but belong to no part: those of all workers, or of this one.
std::vector<ExchangeGap> gaps_of(const ExchangeTask& task, std::int64_t rank) {
  ExchangeGap sent{.begin = 0, .end = task.count};
  if (task.kind == Collective::Kind::kAllGather) {
    for (std::int64_t worker = 0; worker < rank; ++worker) {
      sent.begin += task.owned.at(static_cast<std::size_t>(worker));
    }
    sent.end = sent.begin + task.owned.at(static_cast<std::size_t>(rank));
  }
  const std::int64_t size = bytes_of(task.dtype);
  std::vector<ExchangeGap> gaps;
  std::int64_t end = sent.begin * size;
  for (const ExchangePart& part : task.parts) {
    if (part.offset > end) gaps.push_back({.begin = end, .end = part.offset});
    end = part.offset + part.bytes;
  }
  if (sent.end * size > end) gaps.push_back({.begin = end, .end = sent.end * size});
  return gaps;
}

}  // namespace

std::string ExchangeTask::label() const {
  return std::to_string(number) + ": " + std::to_string(parts.size()) + " parts";
}

std::optional<ExchangeTask> start_task(const opdef::KernelRequest& request) {
  const Exchange spec = Exchange::read(request.node);
  ExchangeTask task = make_task(spec);
  if (task.dtype != DataType::kFloat32 && task.dtype != DataType::kFloat64) return std::nullopt;
  const std::size_t first = task.is_conditional ? 1 : 0;
  const bool is_gather = task.kind == Collective::Kind::kAllGather;
  const auto ranges = spec.collective.own_ranges();
  const auto num_sent =
      is_gather ? static_cast<std::size_t>(std::ranges::count_if(
                      ranges, [](const Collective::Range& one) { return one.count() > 0; }))
                : request.inputs.size() - first;
  for (std::size_t i = first; i < request.inputs.size(); ++i) {
    const ExchangePart part{.arg = i,
                            .offset = spec.sent.at(i - first),
                            .bytes = request.inputs[i].dims.size_bytes(task.dtype)};
    const bool is_part = i - first < num_sent;
    if (is_part) task.parts.push_back(part);
    if (!is_gather || !is_part) task.old_parts.push_back(part);
  }
  task.buffer = request.inputs.size();
  task.count = request.outputs.at(0).dims.num_elements() / bytes_of(task.dtype);
  task.gaps = gaps_of(task, spec.collective.rank);
  return task;
}

ExchangeTask finish_task(const opdef::KernelRequest& request) {
  const Exchange spec = Exchange::read(request.node);
  ExchangeTask task = make_task(spec);
  task.buffer = request.inputs.size() - 1;
  for (std::size_t i = 0; i < request.outputs.size(); ++i) {
    const TensorDesc& desc = request.outputs[i];
    if (!desc.is_present() || spec.received.at(i) < 0) continue;
    task.parts.push_back({.arg = request.inputs.size() + i,
                          .offset = spec.received[i],
                          .bytes = desc.dims.size_bytes(desc.dtype)});
  }
  return task;
}

}  // namespace onnxgrad::ops
