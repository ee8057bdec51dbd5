#include <fmt/format.h>
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <type_traits>
#include <utility>

#include "device/cpu/threads.h"
#include "device/cpu_options.h"
#include "ir/builder.h"
#include "opdef/attention.h"
#include "opdef/kernel.h"
#include "ops/fused/attention_backward_cpu.h"
#include "ops/fused/attention_forward_cpu.h"
#include "ops/fused/attention_worker_cpu.h"
#include "ops/kernel_support.h"

// Attention and its gradient (opdef/attention.h). For each key head, K and V are packed once; then
// blocks of rows of scores are computed, consumed and discarded: they stay in the L2 cache and are
// never stored in memory. The gradient recomputes them from the statistics of each row. (Rabe and
// Staats, 2021; Dao et al., FlashAttention, 2022, whose D is sum(dy y) of a row, `along` here.)

namespace onnxgrad::ops::fused_attention_cpu {
namespace {

template <class T>
void run_forward(const Task<T>& task, KernelArgs args, const Launch& launch) {
  std::byte* scratch = args[3 + task.masks.size() + 2];
  const std::int64_t key_heads = task.k.count();
  const std::int64_t blocks = task.groups * ceil_div(task.queries(), task.block_rows);
  // With few heads, threads split the blocks of each head, and all of them pack its keys and
  // values.
  const std::int64_t pieces = task.threads == 1 || key_heads >= task.threads
                                  ? 1
                                  : std::min<std::int64_t>(blocks, task.threads);
  const std::int64_t total = key_heads * pieces;
  const auto run_part = [&](const device::Chunk& chunk) {
    Forward<T> forward(task, args, task.thread_scratch.in(scratch, chunk.thread), launch);
    for (std::int64_t i = chunk.first(total); i < chunk.last(total); ++i) {
      const std::int64_t piece = i % pieces;
      forward.run(i / pieces, blocks * piece / pieces, blocks * (piece + 1) / pieces);
    }
  };
  device::on_threads(task.threads, device::chunks_of(task.threads, total), run_part);
}

template <class T>
void run_backward(const Task<T>& task, KernelArgs args, const Launch& launch) {
  std::byte* scratch = args[6 + task.masks.size() + 4];
  const std::int64_t total = task.k.count();
  const auto run_part = [&](const device::Chunk& chunk) {
    Backward<T> backward(task, args, task.thread_scratch.in(scratch, chunk.thread), launch);
    for (std::int64_t i = chunk.first(total); i < chunk.last(total); ++i) {
      backward.run(i);
    }
  };
  device::on_threads(task.threads, device::chunks_of(task.threads, total), run_part);
}

/// Chooses the rows per block so that its scores fill part of the L2 cache; fewer with a causal
/// mask, whose triangle the blocks approximate by steps.
std::int64_t choose_rows(std::int64_t queries, std::int64_t row_bytes, bool is_causal) {
  constexpr std::int64_t kFewest = 24;
  const std::int64_t block_bytes = is_causal ? 32 << 10 : 128 << 10;
  const std::int64_t most = std::max(kFewest, block_bytes / row_bytes / kFewest * kFewest);
  const std::int64_t blocks = ceil_div(queries, most);
  const std::int64_t rows = ceil_div(queries, blocks);
  return std::min(queries, round_up(rows, 6));
}

template <class T>
void plan_common(const KernelRequest& request, const opdef::Attention& op, Task<T>& task) {
  task.isa = device::isa_of(request);
  task.q = Heads::of(op.q);
  task.k = Heads::of(op.k);
  task.v = Heads::of(op.v);
  task.y = Heads::of(op.y);
  for (const opdef::AttentionMask& mask : op.masks) {
    task.masks.push_back({.kind = mask.kind, .fill = mask.fill, .heads = Heads::of(mask.view)});
  }
  task.scale = static_cast<T>(op.scale);
  task.causal = op.causal;
  task.causal_offset = op.causal_offset;
  task.stores_probabilities = op.stores_probabilities;
  if (op.probabilities_type != DataType::kUndefined) {
    task.narrow = device::find_conversion(task.isa, DataType::kFloat32, op.probabilities_type);
    task.widen = device::find_conversion(task.isa, op.probabilities_type, DataType::kFloat32);
    task.rounds_forward = !op.rounds_gradient;
  }
  if (op.dropout > 0) {
    task.dropped = static_cast<std::uint64_t>(std::ldexp(op.dropout, 32));
    task.kept = static_cast<T>(1 / (1 - op.dropout));
    task.draws = RandomStream::of(request.node);
  }
  task.groups = task.q.count() / task.k.count();
  task.score_row = device::aligned_count<T>(task.keys());
  task.block_rows =
      choose_rows(task.queries(), task.score_row * static_cast<std::int64_t>(sizeof(T)), op.causal);
}

double matmul_flops(std::int64_t heads, std::int64_t queries, std::int64_t keys,
                    std::int64_t size) {
  return 2.0 * static_cast<double>(heads) * static_cast<double>(queries) *
         static_cast<double>(keys) * static_cast<double>(size);
}

template <class T>
KernelOffer offer(Task<T> task, opdef::KernelFn fn, const ScratchLayout& scratch, double flops,
                  int threads, bool shares_blocks) {
  constexpr double kParallelFlops = 2e6;
  const std::int64_t most = shares_blocks ? threads : task.k.count();
  task.threads =
      flops < kParallelFlops ? 1 : static_cast<int>(std::min<std::int64_t>(threads, most));
  ScratchLayout all;
  task.thread_scratch = all.reserve_blocks(task.threads, scratch);
  const std::string label =
      fmt::format("{} of {}x{}x{}{}{}", task.q.count(), task.queries(), task.keys(), task.q.columns,
                  task.causal ? " causal" : "", task.amx != nullptr ? " tiles AMX" : "");
  KernelOffer made = prepared(fn, std::move(task), label);
  made.kernel.scratch_bytes = all.size_bytes();
  made.kernel.flops = flops;
  return made;
}

/// Reserves space for a float32 copy of an f16 or bf16 operand.
template <class T>
void plan_widened(const KernelRequest& request, std::size_t input, std::int64_t rows, Heads& heads,
                  ScratchLayout& scratch, ScratchArray<T>& copy) {
  if (input >= request.inputs.size() || !is_f16(request.inputs[input].dtype)) return;
  heads.widen = device::find_conversion(device::isa_of(request), request.inputs[input].dtype,
                                        DataType::kFloat32);
  copy = scratch.reserve<T>(rows * heads.columns);
}

/// Returns true if the matrix products can run in bfloat16 on AMX: operands are bfloat16 and
/// probabilities are rounded to it. Only keys may be stored column-major.
template <class T>
bool can_use_vnni(const KernelRequest& request, std::initializer_list<std::size_t> operands,
                  const opdef::Attention& op, const Task<T>& task) {
  constexpr std::int64_t kFewest = 32;
  const bool is_bfloat16 = std::all_of(operands.begin(), operands.end(), [&](std::size_t i) {
    return request.inputs[i].dtype == DataType::kBfloat16;
  });
  const auto has_rows = [](const Heads& heads) { return !heads.is_present() || heads.column == 1; };
  return std::is_same_v<T, float> && is_bfloat16 && has_rows(task.q) && has_rows(task.v) &&
         has_rows(task.dy) && op.probabilities_type == DataType::kBfloat16 && task.rounds_forward &&
         task.dropped == 0 && task.block_rows >= kFewest / 2 && task.keys() >= kFewest &&
         task.q.columns >= kFewest / 2 && device::cpu_options(request).amx != nullptr;
}

template <class T>
void plan_vnni(const KernelRequest& request, ScratchLayout& scratch, Task<T>& task) {
  using device::VnniGemm;
  const std::int64_t size = std::max(task.q.columns, task.v.columns);
  const std::int64_t longest = std::max({size, task.keys(), task.block_rows});
  const std::int64_t probabilities = task.block_rows * VnniGemm::padded(task.keys());
  task.amx = device::cpu_options(request).amx;
  task.vnni_keys = {
      .steps = task.q.columns, .columns = task.keys(), .amx = task.amx, .isa = task.isa};
  task.vnni_values.amx = task.amx;
  task.vnni_values.isa = task.isa;
  task.vnni_k = scratch.reserve<std::uint32_t>(task.vnni_keys.packed_size());
  task.vnni_v = scratch.reserve<std::uint32_t>(task.vnni_values.packed_size());
  task.vnni_lines = scratch.reserve<std::uint32_t>(16 * VnniGemm::padded(longest));
  task.vnni_q = scratch.reserve<std::uint16_t>(task.block_rows * VnniGemm::padded(size));
  task.vnni_probabilities = scratch.reserve<std::uint16_t>(probabilities);
}

template <class T>
void plan_gradient_vnni(const KernelRequest& request, ScratchLayout& scratch, Task<T>& task) {
  using device::VnniGemm;
  task.vnni_values = {.steps = task.v.columns, .columns = task.keys()};
  plan_vnni(request, scratch, task);
  task.vnni_sum_keys = {
      .steps = task.keys(), .columns = task.k.columns, .amx = task.amx, .isa = task.isa};
  task.vnni_k_rows = scratch.reserve<std::uint32_t>(task.vnni_sum_keys.packed_size());
  const std::int64_t rows = VnniGemm::padded(task.block_rows);
  task.vnni_dscores =
      scratch.reserve<std::uint16_t>(task.block_rows * VnniGemm::padded(task.keys()));
  task.vnni_columns = scratch.reserve<std::uint16_t>(task.keys() * rows);
  const VnniGemm widest{.steps = task.block_rows,
                        .columns = std::max(task.q.columns, task.v.columns)};
  task.vnni_rows = scratch.reserve<std::uint32_t>(widest.packed_size());
}

template <class T>
KernelOffer offer_forward(const KernelRequest& request) {
  Task<T> task;
  const auto op = opdef::Attention::read(request.node);
  plan_common(request, op, task);
  task.times_keys = PackedGemm<T>::prepare(task.isa, task.q.columns, task.keys());
  task.sum_values = PackedGemm<T>::prepare(task.isa, task.keys(), task.v.columns);
  ScratchLayout scratch;
  task.packed_k_columns = scratch.reserve<T>(task.times_keys.packed_size());
  task.packed_v_rows = scratch.reserve<T>(task.sum_values.packed_size());
  task.scores = scratch.reserve<T>(task.block_rows * task.score_row);
  task.dscores = scratch.reserve<T>(task.block_rows);  // 1 / sum of each row
  plan_widened<T>(request, 0, task.block_rows, task.q, scratch, task.wide_q);
  plan_widened<T>(request, 1, task.keys(), task.k, scratch, task.wide_k);
  plan_widened<T>(request, 2, task.keys(), task.v, scratch, task.wide_v);
  task.keep = scratch.reserve<T>(task.dropped > 0 ? task.score_row : 0);
  task.probabilities = scratch.reserve<T>(task.narrow != nullptr ? task.score_row : 0);
  if (can_use_vnni(request, {0, 1, 2}, op, task)) {
    task.vnni_values = {.steps = task.keys(), .columns = task.v.columns};
    plan_vnni(request, scratch, task);
  }
  const double flops =
      matmul_flops(task.q.count(), task.queries(), task.keys(), task.q.columns + task.v.columns);
  return offer(std::move(task), kKernel<run_forward<T>>, scratch, flops, request.threads, true);
}

template <class T>
KernelOffer offer_backward(const KernelRequest& request) {
  Task<T> task;
  const auto op = opdef::AttentionGradient::read(request.node);
  plan_common(request, op.forward, task);
  task.dy = Heads::of(op.dy);
  task.dq = Heads::of(op.dq);
  task.dk = Heads::of(op.dk);
  task.dv = Heads::of(op.dv);
  task.times_keys = PackedGemm<T>::prepare(task.isa, task.q.columns, task.keys());
  task.times_values = PackedGemm<T>::prepare(task.isa, task.v.columns, task.keys());
  task.sum_keys = PackedGemm<T>::prepare(task.isa, task.keys(), task.k.columns);
  task.sum_q = PackedGemm<T>::prepare(task.isa, task.block_rows, task.q.columns);
  task.sum_dy = PackedGemm<T>::prepare(task.isa, task.block_rows, task.v.columns);
  ScratchLayout scratch;
  task.packed_k_columns = scratch.reserve<T>(task.times_keys.packed_size());
  task.packed_v_columns = scratch.reserve<T>(task.times_values.packed_size());
  task.packed_k_rows = scratch.reserve<T>(task.sum_keys.packed_size());
  task.packed_q = scratch.reserve<T>(task.sum_q.packed_size());
  task.packed_dy = scratch.reserve<T>(task.sum_dy.packed_size());
  task.scores = scratch.reserve<T>(task.block_rows * task.score_row);
  task.dscores = scratch.reserve<T>(task.block_rows * task.score_row);
  plan_widened<T>(request, 0, task.block_rows, task.dy, scratch, task.wide_dy);
  plan_widened<T>(request, 1, 1, task.y, scratch, task.wide_y);
  plan_widened<T>(request, 3, task.block_rows, task.q, scratch, task.wide_q);
  plan_widened<T>(request, 4, task.keys(), task.k, scratch, task.wide_k);
  plan_widened<T>(request, 5, task.keys(), task.v, scratch, task.wide_v);
  task.keep = scratch.reserve<T>(task.dropped > 0 ? task.score_row : 0);
  task.probabilities = scratch.reserve<T>(task.narrow != nullptr ? 2 * task.score_row : 0);
  if (can_use_vnni(request, {0, 3, 4, 5}, op.forward, task))
    plan_gradient_vnni(request, scratch, task);
  const double flops =
      matmul_flops(task.q.count(), task.queries(), task.keys(),
                   (task.stores_probabilities ? 2 : 3) * task.q.columns + 2 * task.v.columns);
  return offer(std::move(task), kKernel<run_backward<T>>, scratch, flops, request.threads, false);
}

/// Returns the type of the computation, or kUndefined. If it is float32, operands from `first_view`
/// on and the two before the probabilities may be f16 or bf16; masks, from `masks` on, may not.
DataType computed_type(const KernelRequest& request, std::size_t first_view, std::size_t masks) {
  const auto type_of = [](DataType stored) { return is_f16(stored) ? DataType::kFloat32 : stored; };
  const DataType type = type_of(request.inputs[0].dtype);
  for (std::size_t i = 0; i < request.inputs.size(); ++i) {
    const TensorDesc& input = request.inputs[i];
    if (!input.is_present() || input.dtype == DataType::kBool) continue;
    const bool is_view = i < masks && (i < 2 || i >= first_view);
    if (is_view ? type_of(input.dtype) != type : i >= masks && input.dtype != type) {
      return DataType::kUndefined;
    }
  }
  // The statistics or probabilities of the forward pass come after y.
  for (std::size_t i = 0; i < (first_view == 0 ? 1 : request.outputs.size()); ++i) {
    if (request.outputs[i].is_present() && request.outputs[i].dtype != type) {
      return DataType::kUndefined;
    }
  }
  return type;
}

// Probabilities per head that are stored for the gradient at most; more are computed again.
constexpr std::int64_t kMostStored = std::int64_t{1} << 16;

KernelOffer offer_attention(const KernelRequest& request) {
  if (request.is_candidate && request.has_output(1)) {
    const auto op = opdef::Attention::read(request.node);
    const std::int64_t keys = request.outputs[1].dims[1];
    if (op.stores_probabilities && op.q.dims[op.q.dims.size() - 2] * keys > kMostStored) {
      return KernelOffer::decline(fmt::format(
          "more than {} probabilities per head are faster computed again", kMostStored));
    }
  }
  switch (computed_type(request, 0, 3)) {
    case DataType::kFloat32:
      return offer_forward<float>(request);
    case DataType::kFloat64:
      return offer_forward<double>(request);
    default:
      return decline_dtype(request, request.inputs[0].dtype);
  }
}

KernelOffer offer_attention_gradient(const KernelRequest& request) {
  switch (computed_type(request, 3, 6)) {
    case DataType::kFloat32:
      return offer_backward<float>(request);
    case DataType::kFloat64:
      return offer_backward<double>(request);
    default:
      return decline_dtype(request, request.inputs[0].dtype);
  }
}

}  // namespace

void register_fused_attention_cpu(opdef::KernelRegistry& registry) {
  registry.add(ir::kFusedDomain, opdef::kAttention, 0, offer_attention);
  registry.add(ir::kFusedDomain, opdef::kAttentionGradient, 0, offer_attention_gradient);
}

}  // namespace onnxgrad::ops::fused_attention_cpu
