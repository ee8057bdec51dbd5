#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "ir/builder.h"
#include "opdef/collectives.h"
#include "ops/kernel_support.h"

// StartExchange and FinishExchange of domain onnxgrad.fused; see opdef/collectives.h. The plan
// places the x in the exchange buffer where possible, and the results always: then nothing is
// copied.

namespace onnxgrad::ops::collective_cpu {

using opdef::Collective;
using opdef::Collectives;
using opdef::Exchange;

namespace {

constexpr const char* kNotRecordable = "it exchanges data with other workers on the host";

struct Part {
  std::size_t arg = 0;
  std::int64_t offset = 0;
  std::int64_t bytes = 0;
};

/// Range of bytes in the exchange buffer.
struct Gap {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

struct ExchangeTask {
  std::vector<Part> parts = {};      ///< layout in the buffer if the exchange is sent
  std::vector<Part> old_parts = {};  ///< layout if it is not sent
  std::vector<Gap> gaps = {};        ///< ranges in no part, sent as well
  std::size_t buffer = 0;            ///< argument index
  bool is_conditional = false;
  Collective::Kind kind = Collective::Kind::kAllReduce;
  std::size_t number = 0;
  std::int64_t count = 0;
  std::vector<std::int64_t> owned = {};  ///< elements owned by each worker
  DataType dtype = DataType::kFloat32;
  bool as_bfloat16 = false;
};

bool happens(const ExchangeTask& task, KernelArgs args) {
  return !task.is_conditional || args[0][0] != std::byte{0};
}

Collectives& workers_of(const Launch& launch) {
  ONNXGRAD_ASSERT(launch.cells != nullptr && launch.cells->collectives != nullptr);
  return *launch.cells->collectives;
}

void start_exchange(const ExchangeTask& task, KernelArgs args, const Launch& launch) {
  std::byte* const buffer = args[task.buffer];
  const bool is_sent = happens(task, args);
  for (const Part& part : is_sent ? task.parts : task.old_parts) {
    if (args[part.arg] == buffer + part.offset) continue;
    std::memcpy(buffer + part.offset, args[part.arg], static_cast<std::size_t>(part.bytes));
  }
  if (!is_sent) return;
  for (const Gap& gap : task.gaps) {
    std::memset(buffer + gap.begin, 0, static_cast<std::size_t>(gap.end - gap.begin));
  }
  workers_of(launch).start(task.number, {.kind = task.kind,
                                         .data = buffer,
                                         .count = task.count,
                                         .dtype = task.dtype,
                                         .as_bfloat16 = task.as_bfloat16,
                                         .owned = task.owned});
}

void finish_exchange(const ExchangeTask& task, KernelArgs args, const Launch& launch) {
  if (happens(task, args)) workers_of(launch).wait(task.number);
  const std::byte* const buffer = args[task.buffer];
  for (const Part& part : task.parts) {
    if (args[part.arg] == nullptr || args[part.arg] == buffer + part.offset) continue;
    std::memcpy(args[part.arg], buffer + part.offset, static_cast<std::size_t>(part.bytes));
  }
}

ExchangeTask make_task(const Exchange& spec) {
  return {.is_conditional = spec.collective.is_conditional,
          .kind = spec.collective.kind,
          .number = static_cast<std::size_t>(spec.collective.number),
          .owned = spec.owned,
          .dtype = spec.dtype,
          .as_bfloat16 = spec.collective.as_bfloat16};
}

std::string label_of(const ExchangeTask& task) {
  return std::to_string(task.number) + ": " + std::to_string(task.parts.size()) + " parts";
}

// Returns the ranges that are sent but belong to no part: those of all workers, or of this one.
std::vector<Gap> gaps_of(const ExchangeTask& task, std::int64_t rank) {
  Gap sent{.begin = 0, .end = task.count};
  if (task.kind == Collective::Kind::kAllGather) {
    for (std::int64_t worker = 0; worker < rank; ++worker) {
      sent.begin += task.owned.at(static_cast<std::size_t>(worker));
    }
    sent.end = sent.begin + task.owned.at(static_cast<std::size_t>(rank));
  }
  const std::int64_t size = element_bytes(task.dtype);
  std::vector<Gap> gaps;
  std::int64_t end = sent.begin * size;
  for (const Part& part : task.parts) {
    if (part.offset > end) gaps.push_back({.begin = end, .end = part.offset});
    end = part.offset + part.bytes;
  }
  if (sent.end * size > end) gaps.push_back({.begin = end, .end = sent.end * size});
  return gaps;
}

KernelOffer offer_start(const KernelRequest& request) {
  const Exchange spec = Exchange::read(request.node);
  ExchangeTask task = make_task(spec);
  const std::size_t first = task.is_conditional ? 1 : 0;
  if (task.dtype != DataType::kFloat32 && task.dtype != DataType::kFloat64) {
    return decline_dtype(request, task.dtype);
  }
  const bool is_gather = task.kind == Collective::Kind::kAllGather;
  const auto ranges = spec.collective.own_ranges();
  const auto num_sent =
      is_gather ? static_cast<std::size_t>(std::ranges::count_if(
                      ranges, [](const Collective::Range& one) { return one.count() > 0; }))
                : request.inputs.size() - first;
  for (std::size_t i = first; i < request.inputs.size(); ++i) {
    const Part part{.arg = i,
                    .offset = spec.sent.at(i - first),
                    .bytes = request.inputs[i].dims.size_bytes(task.dtype)};
    const bool is_part = i - first < num_sent;
    if (is_part) task.parts.push_back(part);
    if (!is_gather || !is_part) task.old_parts.push_back(part);
  }
  task.buffer = request.inputs.size();
  task.count = request.outputs.at(0).dims.num_elements() / element_bytes(task.dtype);
  task.gaps = gaps_of(task, spec.collective.rank);
  std::string label = label_of(task);
  KernelOffer offer = prepared<start_exchange>(std::move(task), std::move(label));
  offer.kernel.not_recordable = kNotRecordable;
  return offer;
}

KernelOffer offer_finish(const KernelRequest& request) {
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
  std::string label = label_of(task);
  KernelOffer offer = prepared<finish_exchange>(std::move(task), std::move(label));
  offer.kernel.not_recordable = kNotRecordable;
  return offer;
}

}  // namespace

void register_collective_cpu(opdef::KernelRegistry& registry) {
  registry.add(ir::kFusedDomain, opdef::kStartExchange, 0, offer_start);
  registry.add(ir::kFusedDomain, opdef::kFinishExchange, 0, offer_finish);
}

}  // namespace onnxgrad::ops::collective_cpu
