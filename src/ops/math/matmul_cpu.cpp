#include <fmt/format.h>
#include <cstdint>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "device/cpu/f16_gemm.h"
#include "device/cpu/gemm.h"
#include "device/cpu/scratch_layout.h"
#include "device/cpu/threads.h"
#include "device/cpu_options.h"
#include "opdef/kernel.h"
#include "ops/fused/matmul_offer_cpu.h"
#include "ops/kernel_support.h"

// MatMul: [..., m, k] x [..., k, n] with broadcast batch axes; a vector is a row (A) or a column
// (B) whose axis C lacks. Rank 1: one GEMM per matrix of the batch, for float32 and float64, and
// for float16 and bfloat16 with a result of the same type or float32. Rank 0: reference loops for
// all types that MatMul has.

namespace onnxgrad::ops::matmul_cpu {
namespace {

/// Batched GEMM: C[i] = A[a[i]] B[b[i]]; indices count matrices.
struct Batch {
  std::int64_t m = 1, n = 1, k = 0;
  std::vector<std::int64_t> a, b;
};

/// Returns the offsets, in matrices, of `dims`' batch axes broadcast to `full`.
std::vector<std::int64_t> batch_offsets(const Dims& dims, const Dims& full) {
  const std::vector<std::int64_t> own = dims.strides();
  std::vector<std::int64_t> offsets;
  offsets.reserve(static_cast<std::size_t>(full.num_elements()));
  std::vector<std::int64_t> index(full.rank(), 0);
  for (std::int64_t i = 0; i < full.num_elements(); ++i) {
    std::int64_t offset = 0;
    for (std::size_t axis = 0; axis < dims.rank(); ++axis) {
      const std::size_t at = full.rank() - dims.rank() + axis;
      if (dims[axis] != 1) offset += index[at] * own[axis];
    }
    offsets.push_back(offset);
    for (std::size_t axis = full.rank(); axis-- > 0;) {
      if (++index[axis] < full[axis]) break;
      index[axis] = 0;
    }
  }
  return offsets;
}

std::optional<Batch> find_batch(const Dims& a, const Dims& b) {
  if (a.rank() == 0 || b.rank() == 0) return std::nullopt;
  Batch batch = {};
  batch.k = a[a.rank() - 1];
  if (a.rank() > 1) batch.m = a[a.rank() - 2];
  if (b.rank() > 1) batch.n = b[b.rank() - 1];
  if (b[b.rank() > 1 ? b.rank() - 2 : 0] != batch.k) return std::nullopt;
  const auto outer = [](const Dims& dims) {
    const auto count = static_cast<std::ptrdiff_t>(dims.rank() > 2 ? dims.rank() - 2 : 0);
    return Dims(std::vector<std::int64_t>(dims.begin(), dims.begin() + count));
  };
  const Dims outer_a = outer(a);
  const Dims outer_b = outer(b);
  if (outer_b.num_elements() == 1 && outer_a.num_elements() > 0 && a.rank() > 1) {
    batch.m *= outer_a.num_elements();  // one GEMM
    batch.a = batch.b = {0};
    return batch;
  }
  const Dims full = broadcast_dims(outer_a, outer_b);
  batch.a = batch_offsets(outer_a, full);
  batch.b = batch_offsets(outer_b, full);
  return batch;
}

struct BatchData {
  Batch batch = {};
  device::PreparedGemm gemm = {};
  std::int64_t element_bytes = 0;  ///< per element of A and B
  std::int64_t result_bytes = 0;   ///< per element of C
  device::ScratchBlocks thread_scratch = {};
  int threads = 1;
};

void run_range(const BatchData& data, KernelArgs args, std::byte* scratch, std::size_t first,
               std::size_t last) {
  const Batch& batch = data.batch;
  const std::int64_t a_bytes = batch.m * batch.k * data.element_bytes;
  const std::int64_t b_bytes = batch.k * batch.n * data.element_bytes;
  const std::int64_t c_bytes = batch.m * batch.n * data.result_bytes;
  for (std::size_t i = first; i < last; ++i) {
    data.gemm({.a = args[0] + batch.a[i] * a_bytes,
               .b = args[1] + batch.b[i] * b_bytes,
               .c = args[2] + static_cast<std::int64_t>(i) * c_bytes,
               .scratch = scratch});
  }
}

void run_batch(const BatchData& batch, KernelArgs args) {
  run_range(batch, args, args[3], 0, batch.batch.a.size());
}

void run_batch_parallel(const BatchData& batch, KernelArgs args) {
  const auto count = static_cast<std::int64_t>(batch.batch.a.size());
  const std::int64_t chunks = device::chunks_of(batch.threads, count);
  device::on_threads(batch.threads, chunks, [&](const device::Chunk& chunk) {
    run_range(batch, args, batch.thread_scratch.in(args[3], chunk.thread),
              static_cast<std::size_t>(chunk.first(count)),
              static_cast<std::size_t>(chunk.last(count)));
  });
}

// Returns true for batched f16/bf16 operands; single matrices are fused by fuse_gemm.
bool multiplies_f16(const KernelRequest& request) {
  const TensorDesc& a = request.inputs[0];
  const TensorDesc& b = request.inputs[1];
  const DataType result = request.outputs[0].dtype;
  return is_f16(a.dtype) && b.dtype == a.dtype &&
         (result == a.dtype || result == DataType::kFloat32) &&
         !(a.dims.rank() >= 2 && b.dims.rank() == 2);
}

device::PreparedGemm prepare_one(const KernelRequest& request, const Batch& batch, int threads) {
  const DataType dtype = request.inputs[0].dtype;
  if (is_f16(dtype)) {
    return device::prepare_f16_gemm({.dtype = dtype,
                                     .c_dtype = request.outputs[0].dtype,
                                     .m = batch.m,
                                     .n = batch.n,
                                     .k = batch.k,
                                     .threads = threads,
                                     .cpu = device::cpu_options(request)});
  }
  return device::prepare_gemm({.dtype = dtype,
                               .m = batch.m,
                               .n = batch.n,
                               .k = batch.k,
                               .threads = threads,
                               .cpu = device::cpu_options(request)});
}

KernelOffer offer_matmul(const KernelRequest& request) {
  const DataType dtype = request.inputs[0].dtype;
  if (dtype != DataType::kFloat32 && dtype != DataType::kFloat64 && !multiplies_f16(request)) {
    return KernelOffer::decline(fmt::format("no fast product of {}", dtype_name(dtype)));
  }
  auto batch = find_batch(request.inputs[0].dims, request.inputs[1].dims);
  if (!batch) return KernelOffer::decline("shapes do not match");
  constexpr double kParallelFlops = 4e6;
  const auto count = static_cast<double>(batch->a.size());
  const double flops = 2.0 * count * static_cast<double>(batch->m) * static_cast<double>(batch->n) *
                       static_cast<double>(batch->k);
  // Threads split the batch if it has enough matrices, else each GEMM.
  const bool shares_batch = request.threads > 1 && flops > kParallelFlops &&
                            batch->a.size() >= static_cast<std::size_t>(request.threads);
  BatchData data{.batch = *std::move(batch), .threads = shares_batch ? request.threads : 1};
  data.element_bytes = element_bytes(dtype);
  data.result_bytes = element_bytes(request.outputs[0].dtype);
  data.gemm = prepare_one(request, data.batch, shares_batch ? 1 : request.threads);
  device::ScratchLayout all, own;
  own.reserve<std::byte>(data.gemm.scratch_bytes);
  data.thread_scratch = all.reserve_blocks(data.threads, own);
  KernelOffer offer;
  offer.kernel.fn = shares_batch ? kKernel<run_batch_parallel> : kKernel<run_batch>;
  offer.kernel.scratch_bytes = all.size_bytes();
  offer.kernel.flops = flops;
  offer.kernel.label = data.batch.a.size() == 1
                           ? data.gemm.label
                           : fmt::format("{} of {}", data.batch.a.size(), data.gemm.label);
  offer.kernel.data = std::make_shared<const BatchData>(std::move(data));
  return offer;
}

// Reference kernel.

template <class T>
using Sum = std::conditional_t<std::is_same_v<T, float>, double, T>;

template <class T>
void plain_matmul(const Batch& batch, KernelArgs args) {
  for (std::size_t p = 0; p < batch.a.size(); ++p) {
    const T* a = args.at<T>(0) + batch.a[p] * batch.m * batch.k;
    const T* b = args.at<T>(1) + batch.b[p] * batch.k * batch.n;
    T* c = args.at<T>(2) + static_cast<std::int64_t>(p) * batch.m * batch.n;
    for (std::int64_t i = 0; i < batch.m; ++i) {
      for (std::int64_t j = 0; j < batch.n; ++j) {
        Sum<T> sum = 0;
        for (std::int64_t k = 0; k < batch.k; ++k) {
          sum += static_cast<Sum<T>>(a[i * batch.k + k]) * static_cast<Sum<T>>(b[k * batch.n + j]);
        }
        c[i * batch.n + j] = static_cast<T>(sum);
      }
    }
  }
}

KernelOffer offer_plain(const KernelRequest& request) {
  auto batch = find_batch(request.inputs[0].dims, request.inputs[1].dims);
  if (!batch) return KernelOffer::decline("shapes do not match");
  switch (request.inputs[0].dtype) {
    case DataType::kFloat32:
      return prepared<plain_matmul<float>>(*std::move(batch), "plain");
    case DataType::kFloat64:
      return prepared<plain_matmul<double>>(*std::move(batch), "plain");
    // Integers wrap around: signed and unsigned yield the same bits.
    case DataType::kInt32:
    case DataType::kUint32:
      return prepared<plain_matmul<std::uint32_t>>(*std::move(batch), "plain");
    case DataType::kInt64:
    case DataType::kUint64:
      return prepared<plain_matmul<std::uint64_t>>(*std::move(batch), "plain");
    default:
      return decline_dtype(request, request.inputs[0].dtype);
  }
}

}  // namespace

void register_matmul_cpu(opdef::KernelRegistry& registry) {
  registry.add("", "MatMul", 1, offer_matmul);
  registry.add("", "MatMul", 0, offer_plain);
}

}  // namespace onnxgrad::ops::matmul_cpu
