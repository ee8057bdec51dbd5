#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "ir/builder.h"
#include "opdef/collectives.h"
#include "ops/kernel_support.h"

// StartExchange and FinishExchange of domain onnxgrad.fused; see opdef/collectives.h. The plan lays
// the x out in the buffer where it can, and the results in any case: then nothing is copied.

namespace onnxgrad::ops::collective_cpu {

using opdef::Collective;
using opdef::Collectives;
using opdef::Exchange;
using opdef::KernelOffer;
using opdef::KernelRequest;
using opdef::Launch;

namespace {

struct Part {
  std::size_t arg = 0;
  std::int64_t offset = 0;
  std::int64_t bytes = 0;
  std::int64_t owner = -1;  ///< the worker whose x is sent; -1: all are
};

struct ExchangeTask {
  std::vector<Part> parts = {};
  std::size_t buffer = 0;  ///< argument
  bool is_conditional = false;
  Collective::Kind kind = Collective::Kind::kAllReduce;
  std::size_t number = 0;
  std::int64_t count = 0;
  std::vector<std::int64_t> owned = {};  ///< elements of each worker
  DataType dtype = DataType::kFloat32;
  bool as_bfloat16 = false;
};

bool happens(const ExchangeTask& task, std::byte* const* args) {
  return !task.is_conditional || args[0][0] != std::byte{0};
}

Collectives& workers_of(const Launch& launch) {
  ONNXGRAD_ASSERT(launch.cells != nullptr && launch.cells->collectives != nullptr);
  return *launch.cells->collectives;
}

void start_exchange(const void* data, std::byte* const* args, const Launch& launch) {
  const auto& task = *static_cast<const ExchangeTask*>(data);
  std::byte* const buffer = args[task.buffer];
  const bool is_sent = happens(task, args);
  const int rank = is_sent ? workers_of(launch).rank() : 0;
  std::int64_t end = 0;
  for (const Part& part : task.parts) {
    // What lies between two x is sent too.
    std::memset(buffer + end, 0, static_cast<std::size_t>(part.offset - end));
    const bool is_wanted = !is_sent || part.owner < 0 || part.owner == rank;
    if (is_wanted && args[part.arg] != buffer + part.offset) {
      std::memcpy(buffer + part.offset, args[part.arg], static_cast<std::size_t>(part.bytes));
    }
    end = part.offset + part.bytes;
  }
  if (!is_sent) return;
  workers_of(launch).start(task.number, {.kind = task.kind,
                                         .data = buffer,
                                         .count = task.count,
                                         .dtype = task.dtype,
                                         .as_bfloat16 = task.as_bfloat16,
                                         .owned = task.owned});
}

void finish_exchange(const void* data, std::byte* const* args, const Launch& launch) {
  const auto& task = *static_cast<const ExchangeTask*>(data);
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
          .as_bfloat16 = spec.collective.as_bfloat16};
}

std::string label_of(const ExchangeTask& task) {
  return std::to_string(task.number) + ": " + std::to_string(task.parts.size()) + " parts";
}

// Of each worker: from its first x to that of the next one.
std::vector<std::int64_t> owned_elements(const Exchange& spec, const ExchangeTask& task) {
  const std::vector<std::int64_t>& owners = spec.collective.owners;
  std::vector<std::int64_t> owned;
  std::int64_t begin = 0;
  for (std::int64_t worker = 0; worker < spec.collective.workers; ++worker) {
    const auto next = std::ranges::upper_bound(owners, worker) - owners.begin();
    const std::int64_t end =
        next == std::ssize(owners)
            ? task.count
            : spec.offsets[static_cast<std::size_t>(next)] / element_bytes(task.dtype);
    owned.push_back(end - begin);
    begin = end;
  }
  return owned;
}

KernelOffer offer_start(const KernelRequest& request) {
  const Exchange spec = Exchange::read(request.node);
  ExchangeTask task = make_task(spec);
  const std::size_t first = task.is_conditional ? 1 : 0;
  task.dtype = request.inputs.at(first).dtype;
  if (task.dtype != DataType::kFloat32 && task.dtype != DataType::kFloat64) {
    return decline_dtype(request, task.dtype);
  }
  for (std::size_t i = first; i < request.inputs.size(); ++i) {
    task.parts.push_back({.arg = i,
                          .offset = spec.offsets.at(i - first),
                          .bytes = request.inputs[i].dims.size_bytes(task.dtype)});
    if (task.kind == Collective::Kind::kAllGather) {
      task.parts.back().owner = spec.collective.owners.at(i - first);
    }
  }
  task.buffer = request.inputs.size();
  const Part& last = task.parts.back();
  task.count = (last.offset + last.bytes) / element_bytes(task.dtype);
  if (task.kind != Collective::Kind::kAllReduce) task.owned = owned_elements(spec, task);
  std::string label = label_of(task);
  return prepared(start_exchange, std::move(task), std::move(label));
}

KernelOffer offer_finish(const KernelRequest& request) {
  const Exchange spec = Exchange::read(request.node);
  ExchangeTask task = make_task(spec);
  task.buffer = request.inputs.size() - 1;
  for (std::size_t i = 0; i < request.outputs.size(); ++i) {
    const opdef::TensorDesc& desc = request.outputs[i];
    if (!desc.is_present()) continue;
    task.parts.push_back({.arg = request.inputs.size() + i,
                          .offset = spec.offsets.at(i),
                          .bytes = desc.dims.size_bytes(desc.dtype)});
  }
  std::string label = label_of(task);
  return prepared(finish_exchange, std::move(task), std::move(label));
}

}  // namespace

void register_collective_cpu(opdef::KernelRegistry& registry) {
  registry.add(ir::kFusedDomain, opdef::kStartExchange, 0, offer_start);
  registry.add(ir::kFusedDomain, opdef::kFinishExchange, 0, offer_finish);
}

}  // namespace onnxgrad::ops::collective_cpu
