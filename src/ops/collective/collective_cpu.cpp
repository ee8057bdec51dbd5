#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "base/check.h"
#include "ir/builder.h"
#include "opdef/collectives.h"
#include "ops/collective/exchange_task.h"
#include "ops/kernel_support.h"

// StartExchange and FinishExchange of domain onnxgrad.fused; see opdef/collectives.h. The plan
// places the x in the exchange buffer where possible, and the results always: then nothing is
// copied.

namespace onnxgrad::ops::collective_cpu {

using opdef::Collectives;

namespace {

constexpr const char* kNotRecordable = "it exchanges data with other workers on the host";

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
  for (const ExchangePart& part : is_sent ? task.parts : task.old_parts) {
    if (args[part.arg] == buffer + part.offset) continue;
    std::memcpy(buffer + part.offset, args[part.arg], static_cast<std::size_t>(part.bytes));
  }
  if (!is_sent) return;
  for (const ExchangeGap& gap : task.gaps) {
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
  for (const ExchangePart& part : task.parts) {
    if (args[part.arg] == nullptr || args[part.arg] == buffer + part.offset) continue;
    std::memcpy(args[part.arg], buffer + part.offset, static_cast<std::size_t>(part.bytes));
  }
}

KernelOffer offer_start(const KernelRequest& request) {
  std::optional<ExchangeTask> task = start_task(request);
  if (!task) return decline_dtype(request, opdef::Exchange::read(request.node).dtype);
  std::string label = task->label();
  KernelOffer offer = prepared<start_exchange>(*std::move(task), std::move(label));
  offer.kernel.not_recordable = kNotRecordable;
  return offer;
}

KernelOffer offer_finish(const KernelRequest& request) {
  ExchangeTask task = finish_task(request);
  std::string label = task.label();
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
