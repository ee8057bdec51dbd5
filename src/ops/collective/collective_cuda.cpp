#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "device/cuda/card_links.h"
#include "device/cuda/libraries.h"
#include "device/device.h"
#include "ir/builder.h"
#include "ops/collective/exchange_task.h"
#include "ops/kernel_support.h"
#include "ops/kernel_support_cuda.h"

// StartExchange and FinishExchange between cards, by NCCL on a stream of its own. Sums in the order
// of ranks are made of messages as on the CPU (dist/schedule.h): each rank sends every other one
// its piece, adds up its own in the order of ranks, and sends that to all. Gradients that travel as
// bfloat16 take this way too, since NCCL would add them up in bfloat16.

namespace onnxgrad::ops::collective_cuda {
namespace {

using device::cuda::CardLinks;
using device::cuda::Handle;
using device::cuda::TextKernel;
using device::cuda::Word;
using opdef::Collective;

// Arguments of the kernels, by number.
enum Argument : std::int64_t { kBuffer, kOwn, kReceived, kRounded };

constexpr const char* kAddInOrder = R"(
// out[i] = sum over the ranks r, in order, of piece r [i]: own[i] of `rank`, received[.][i] of the
// others.
OG_KERNEL(og_add_in_order, 6) {
  const og_from* own = a.pointer<const og_from>(0);
  const og_from* received = a.pointer<const og_from>(1);
  og_to* out = a.pointer<og_to>(2);
  const og_i64 count = a.integer(3), rank = a.integer(4), size = a.integer(5);
  for (og_i64 i = og_first(); i < count; i += og_stride()) {
    og_wide sum = og_load(rank == 0 ? own[i] : received[i]);
    for (og_i64 r = 1; r < size; ++r) {
      const og_i64 place = r < rank ? r : r - 1;
      sum += og_load(r == rank ? own[i] : received[place * count + i]);
    }
    og_put(out + i, sum);
  }
}
)";

constexpr const char* kConvert = R"(
OG_KERNEL(og_convert, 3) {
  const og_from* from = a.pointer<const og_from>(0);
  og_to* to = a.pointer<og_to>(1);
  const og_i64 count = a.integer(2);
  for (og_i64 i = og_first(); i < count; i += og_stride()) og_put(to + i, og_load(from[i]));
}
)";

// Functions on values: og_u16 is bfloat16.
std::string text_of(const char* from, const char* to, const char* wide, const char* kernel) {
  return fmt::format(R"(
typedef {} og_from;
typedef {} og_to;
typedef {} og_wide;
OG_FUNCTION og_wide og_load(og_wide value) {{ return value; }}
OG_FUNCTION og_wide og_load(og_u16 value) {{ return og_from_bf16(value); }}
OG_FUNCTION void og_put(og_wide* to, og_wide value) {{ *to = value; }}
OG_FUNCTION void og_put(og_u16* to, og_wide value) {{ *to = og_to_bf16((float)value); }}
)",
                     from, to, wide) +
         kernel;
}

/// An exchange in the order of ranks: memory and kernels.
struct OrderedSum {
  std::vector<std::int64_t> counts = {};  ///< elements of the pieces of the ranks
  device::Buffer received = {};
  device::Buffer rounded = {};  ///< of bfloat16
  std::optional<TextKernel> round = {};
  TextKernel add = {};
  std::optional<TextKernel> widen = {};
};

struct CardTask {
  ExchangeTask task;
  std::shared_ptr<CardLinks> links;
  std::optional<OrderedSum> ordered = {};
  std::shared_ptr<std::byte> condition = nullptr;  ///< a copy, in pinned memory
};

device::cuda::DevicePointer address(const std::byte* pointer) {
  return static_cast<device::cuda::DevicePointer>(device::address_of(pointer));
}

void copy(std::byte* to, const std::byte* from, std::int64_t bytes, Handle stream) {
  if (to == from || bytes == 0) return;
  device::cuda::check(device::cuda::driver().MemcpyDtoDAsync(
                          address(to), address(from), static_cast<std::size_t>(bytes), stream),
                      "cuMemcpyDtoDAsync");
}

// The condition of an exchange, for which the host waits.
bool read_condition(const CardTask& one, const std::byte* condition, Handle stream) {
  device::cuda::check(
      device::cuda::driver().MemcpyDtoHAsync(one.condition.get(), address(condition), 1, stream),
      "cuMemcpyDtoHAsync");
  one.links->wait(stream);
  return *one.condition != std::byte{0};
}

void add_in_order(const CardTask& one, std::byte* buffer) {
  const OrderedSum& sum = *one.ordered;
  const std::int64_t element = sum.round ? 2 : element_bytes(one.task.dtype);
  std::byte* const sent = sum.round ? kernel_argument(sum.rounded.address) : buffer;
  std::byte* const received = kernel_argument(sum.received.address);
  std::int64_t before = 0;
  for (int r = 0; r < one.links->rank(); ++r) before += sum.counts[static_cast<std::size_t>(r)];
  const bool is_scatter = one.task.kind == Collective::Kind::kReduceScatter;
  std::byte* const own = sent + before * element;
  std::byte* const target = is_scatter ? buffer + before * element_bytes(one.task.dtype) : own;
  std::array<std::byte*, 4> args{buffer, own, received, is_scatter ? target : sent};
  const opdef::Launch launch{.stream = one.links->stream(), .cells = nullptr};
  if (sum.round) {
    args[kRounded] = sent;
    launch_text_kernel(*sum.round, args.data(), launch);
  }
  const CardLinks::Pieces pieces{.data = sent, .counts = sum.counts, .element_bytes = element};
  one.links->send_to_owners(pieces, received);
  args[kRounded] = target;
  launch_text_kernel(sum.add, args.data(), launch);
  if (is_scatter) return;
  one.links->gather(pieces);
  args[kRounded] = sent;
  if (sum.widen) launch_text_kernel(*sum.widen, args.data(), launch);
}

void exchange(const CardTask& one, std::byte* buffer) {
  const ExchangeTask& task = one.task;
  if (one.ordered) return add_in_order(one, buffer);
  const CardLinks::Pieces pieces{
      .data = buffer, .counts = task.owned, .element_bytes = element_bytes(task.dtype)};
  switch (task.kind) {
    case Collective::Kind::kAllReduce:
      return one.links->add_up(buffer, task.count, task.dtype);
    case Collective::Kind::kReduceScatter:
      return one.links->add_up_for_owners(pieces, task.dtype);
    case Collective::Kind::kAllGather:
      return one.links->gather(pieces);
  }
}

void start_exchange(const CardTask& one, KernelArgs args, const Launch& launch) {
  const ExchangeTask& task = one.task;
  std::byte* const buffer = args[task.buffer];
  const bool is_sent = !task.is_conditional || read_condition(one, args[0], launch.stream);
  for (const ExchangePart& part : is_sent ? task.parts : task.old_parts) {
    copy(buffer + part.offset, args[part.arg], part.bytes, launch.stream);
  }
  if (!is_sent) return one.links->skip(task.number);
  for (const ExchangeGap& gap : task.gaps) {
    device::cuda::check(device::cuda::driver().MemsetD8Async(
                            address(buffer + gap.begin), 0,
                            static_cast<std::size_t>(gap.end - gap.begin), launch.stream),
                        "cuMemsetD8Async");
  }
  one.links->begin(launch.stream);
  exchange(one, buffer);
  one.links->end(task.number);
}

void finish_exchange(const CardTask& one, KernelArgs args, const Launch& launch) {
  const ExchangeTask& task = one.task;
  one.links->join(task.number, launch.stream);
  for (const ExchangePart& part : task.parts) {
    if (args[part.arg] == nullptr) continue;
    copy(args[part.arg], args[task.buffer] + part.offset, part.bytes, launch.stream);
  }
}

// As evenly as possible, the first ones longer.
std::vector<std::int64_t> divide(std::int64_t count, int parts) {
  std::vector<std::int64_t> counts;
  for (int r = 0; r < parts; ++r) counts.push_back(count / parts + (r < count % parts ? 1 : 0));
  return counts;
}

OrderedSum ordered_sum(const KernelRequest& request, const ExchangeTask& task,
                       const CardLinks& links) {
  OrderedSum sum{.counts = task.owned.empty() ? divide(task.count, links.size()) : task.owned};
  const auto own = sum.counts[static_cast<std::size_t>(links.rank())];
  const bool is_scatter = task.kind == Collective::Kind::kReduceScatter;
  const char* const wide = task.dtype == DataType::kFloat64 ? "double" : "float";
  const char* const sent = task.as_bfloat16 ? "og_u16" : wide;
  const std::int64_t element = task.as_bfloat16 ? 2 : element_bytes(task.dtype);
  sum.received = request.device->allocate((links.size() - 1) * own * element);
  sum.add = text_kernel_over(
      request, own, text_of(sent, is_scatter ? wide : sent, wide, kAddInOrder), "og_add_in_order",
      {Word::argument(kOwn), Word::argument(kReceived), Word::argument(kRounded), Word::of(own),
       Word::of(std::int64_t{links.rank()}), Word::of(std::int64_t{links.size()})});
  if (!task.as_bfloat16) return sum;
  sum.rounded = request.device->allocate(task.count * 2);
  const auto convert = [&](const char* from, const char* to, Argument source, Argument target) {
    return text_kernel_over(request, task.count, text_of(from, to, wide, kConvert), "og_convert",
                            {Word::argument(source), Word::argument(target), Word::of(task.count)});
  };
  sum.round = convert(wide, sent, kBuffer, kRounded);
  if (!is_scatter) sum.widen = convert(sent, wide, kRounded, kBuffer);
  return sum;
}

std::string decline_reason(const ExchangeTask& task, const CardLinks* links) {
  if (task.route == Collective::Route::kHost) return "exchange='host'";
  if (links == nullptr) return "the cards of the workers are not connected";
  return {};
}

KernelOffer offer(const KernelRequest& request, ExchangeTask task, bool is_start) {
  std::shared_ptr<CardLinks> links = CardLinks::of(*card_of(request));
  if (const std::string reason = decline_reason(task, links.get()); !reason.empty()) {
    return KernelOffer::decline(reason);
  }
  CardTask one{.task = std::move(task), .links = std::move(links)};
  const bool is_sum = one.task.kind != Collective::Kind::kAllGather;
  if (is_start && is_sum &&
      (one.task.route == Collective::Route::kOrdered || one.task.as_bfloat16)) {
    one.ordered = ordered_sum(request, one.task, *one.links);
  }
  std::string label = one.links->library() + (one.ordered ? ", in order, " : ", ");
  label += one.task.label();
  if (one.task.is_conditional) one.condition = card_of(request)->allocate_pinned(1);
  KernelOffer made = is_start ? prepared<start_exchange>(std::move(one), std::move(label))
                              : prepared<finish_exchange>(std::move(one), std::move(label));
  // NCCL wants an exchange to be part of a graph on all ranks or on none; they record their plans
  // at different times.
  made.kernel.not_recordable = "other workers may not record it at the same time";
  return made;
}

KernelOffer offer_start(const KernelRequest& request) {
  std::optional<ExchangeTask> task = start_task(request);
  if (!task) return decline_dtype(request, opdef::Exchange::read(request.node).dtype);
  return offer(request, *std::move(task), /*is_start=*/true);
}

KernelOffer offer_finish(const KernelRequest& request) {
  return offer(request, finish_task(request), /*is_start=*/false);
}

}  // namespace

void register_collective_cuda(opdef::KernelRegistry& registry) {
  registry.add(ir::kFusedDomain, opdef::kStartExchange, 0, offer_start);
  registry.add(ir::kFusedDomain, opdef::kFinishExchange, 0, offer_finish);
}

}  // namespace onnxgrad::ops::collective_cuda
