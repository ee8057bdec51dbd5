#include <fmt/format.h>
#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>

#include "device/cpu/f16_gemm.h"
#include "device/cpu/flush_denormals.h"
#include "device/cpu/gemm.h"
#include "device/cpu/gemm_cost.h"
#include "device/cpu/gemm_plan.h"
#include "device/cpu/scratch_layout.h"
#include "device/cpu/threads.h"
#include "device/cpu/update.h"
#include "device/cpu_options.h"
#include "ir/builder.h"
#include "opdef/fused.h"
#include "opdef/kernel.h"
#include "ops/candidate_cpu.h"
#include "ops/fused/matmul_offer_cpu.h"
#include "ops/fused/part_update_cpu.h"
#include "ops/kernel_support.h"

// onnxgrad.WeightUpdate and onnxgrad.fused.GemmWeightUpdate; opdef/fused.h has operands and
// formulas. GemmWeightUpdate never stores the whole gradient. A small GEMM is computed in blocks of
// rows that stay in the L1 cache until the update has read them, a large one passes each finished
// block of the gradient to the update as its consumer (GemmSpec::has_consumer); threads split the
// blocks. f16/bf16 operands that are multiplied in float32 are converted first, as a whole if that
// needs little memory.

namespace onnxgrad::ops::weight_update_cpu {
namespace {

using device::UpdateArrays;
using device::UpdateFn;
using opdef::WeightUpdate;

constexpr std::int64_t kBlockBytes = 8192;             // block of a product between updates
constexpr std::int64_t kF16BlockBytes = 384LL * 1024;  // f16/bf16 block, in the L2 cache
constexpr std::int64_t kLineBytes = 64;                // bytes of a cache line
constexpr std::int64_t kParallelElements = std::int64_t{1} << 16;  // minimum per thread
// Minimum multiply-adds per thread.
constexpr std::int64_t kSharedWork = std::int64_t{1} << 17;

template <class T>
struct UpdateData {
  WeightUpdate spec;
  UpdateFn<T> update = nullptr;
  int gradient = 0;  ///< argument index; of A for a product
  int b = -1;
  UpdatePlaces at;
  std::int64_t count = 0;
  int threads = 1;
  // GEMM in blocks of `block_rows` rows; the last one may have fewer.
  device::PreparedGemm gemm;
  device::PreparedGemm last_gemm;
  std::int64_t rows = 0, columns = 0, block_rows = 0;
  std::int64_t a_step = 0;               ///< bytes of A from block to block
  device::ScratchArray<T> product = {};  ///< one block of it, in scratch
  device::ScratchArray<std::byte> product_scratch = {};
  bool has_consumer = false;
  int block_threads = 1;  ///< threads that split the blocks
  device::ScratchBlocks thread_scratch = {};
};

template <class T>
UpdateArrays<T> arrays_of(const UpdateData<T>& data, KernelArgs args) {
  UpdateArrays<T> arrays = data.at.template arrays<T>(args);
  arrays.gradient = args.at<const T>(data.gradient);
  arrays.count = data.count;
  return arrays;
}

template <class T>
void update_range(const UpdateData<T>& data, const UpdateArrays<T>& arrays) {
  constexpr std::int64_t kBlock = 64;  // threads get multiples of this many elements
  device::parallel_blocks(data.threads, arrays.count, kBlock,
                          [&](std::int64_t first, std::int64_t last) {
                            data.update(data.spec, arrays.from(first, last - first));
                          });
}

template <class T>
void run_update(const UpdateData<T>& data, KernelArgs args) {
  update_range(data, arrays_of(data, args));
}

/// Computes blocks [first, last) of the product and updates them.
template <class T>
void update_blocks(const UpdateData<T>& data, UpdateArrays<T> block, const std::byte* a,
                   const std::byte* b, std::byte* scratch, std::int64_t first, std::int64_t last) {
  T* product = data.product.in(scratch);
  block.gradient = product;
  block.skip(first * data.block_rows * data.columns);
  const device::FlushDenormals flush;  // once, not by each update
  for (std::int64_t i = first; i < last; ++i) {
    const std::int64_t row = i * data.block_rows;
    const bool is_whole = row + data.block_rows <= data.rows;
    (is_whole ? data.gemm : data.last_gemm)({.a = a + i * data.a_step,
                                             .b = b,
                                             .c = product,
                                             .scratch = data.product_scratch.in(scratch)});
    block.count = (is_whole ? data.block_rows : data.rows - row) * data.columns;
    update_range(data, block);
    block.skip(block.count);
  }
}

template <class T>
void run_matmul_and_update(const UpdateData<T>& data, KernelArgs args) {
  UpdateArrays<T> arrays = arrays_of(data, args);
  arrays.gradient = nullptr;
  std::byte* scratch = args[data.at.scratch];
  const std::byte* a = args[data.gradient];
  const std::byte* b = args[data.b];
  const std::int64_t blocks = ceil_div(data.rows, data.block_rows);
  const std::int64_t chunks = device::chunks_of(data.block_threads, blocks);
  device::on_threads(data.block_threads, chunks, [&](const device::Chunk& chunk) {
    update_blocks(data, arrays, a, b, data.thread_scratch.in(scratch, chunk.thread),
                  chunk.first(blocks), chunk.last(blocks));
  });
}

/// Context of the consumer of gradient blocks.
template <class T>
struct UpdateContext {
  const UpdateData<T>* data = nullptr;
  UpdateArrays<T> arrays;
};

template <class T>
void update_part(const void* context, const device::GemmBlock& block) {
  const auto& update = *static_cast<const UpdateContext<T>*>(context);
  const std::int64_t columns = update.data->columns;
  update.data->update(update.data->spec,
                      update.arrays.with({.gradient = static_cast<const T*>(block.c),
                                          .gradient_row = block.c_row,
                                          .first = block.row * columns + block.column,
                                          .rows = block.rows,
                                          .columns = block.columns,
                                          .row = columns}));
}

template <class T>
void run_matmul_with_updates(const UpdateData<T>& data, KernelArgs args) {
  UpdateContext<T> update{&data, arrays_of(data, args)};
  update.arrays.gradient = nullptr;
  data.gemm({.a = args[data.gradient],
             .b = args[data.b],
             .scratch = args[data.at.scratch],
             .finished = update_part<T>,
             .context = &update,
             .reads_next = {update.arrays.w, update.arrays.m, update.arrays.v}});
}

/// GEMM whose sums have the weight's type.
struct Product {
  device::GemmSpec gemm;
  bool rounds_b = false;  ///< B is float32 and rounded to A's type
};

device::F16GemmSpec f16_spec(const Product& product) {
  device::F16GemmSpec spec = device::f16_gemm_spec(product.gemm);
  spec.rounds_b = product.rounds_b;
  return spec;
}

device::PreparedGemm prepare_block(const Product& product) {
  return is_f16(product.gemm.dtype) ? device::prepare_f16_gemm(f16_spec(product))
                                    : device::prepare_gemm(product.gemm);
}

/// Prepares a GEMM that passes finished blocks to a consumer; without function if that is not
/// possible.
device::PreparedGemm prepare_parts(const Product& product) {
  if (is_f16(product.gemm.dtype)) {
    device::F16GemmSpec half = f16_spec(product);
    half.has_consumer = true;
    return device::can_have_consumer(half) ? device::prepare_f16_gemm(half)
                                           : device::PreparedGemm();
  }
  device::GemmSpec spec = product.gemm;
  spec.has_consumer = true;
  return device::can_have_consumer(spec) ? device::prepare_gemm(spec) : device::PreparedGemm();
}

/// Returns the bytes of a block of the product; 0: the whole product. An f16/bf16 GEMM packs B for
/// each block, which therefore has many rows.
std::int64_t block_bytes(const device::GemmSpec& gemm) {
  if (is_f16(gemm.dtype)) return kF16BlockBytes;
  const device::GemmChoice choice = device::choose_gemm(gemm, device::machine_of(gemm.cpu));
  return choice == device::GemmChoice::kTiles ? kBlockBytes : 0;
}

/// Rounds the rows per block so that each block starts at a cache line of the weight and its slots.
std::int64_t in_whole_lines(std::int64_t rows, std::int64_t row_bytes, std::int64_t most_bytes) {
  const std::int64_t unit = kLineBytes / std::gcd(kLineBytes, row_bytes);
  const std::int64_t above = round_up(rows, unit);
  if (above * row_bytes <= most_bytes) return above;
  const std::int64_t below = rows / unit * unit;
  return below > 0 ? below : rows;
}

/// Returns the number of blocks of at most `most` bytes of a product; decides whether threads split
/// them, with equal numbers for each.
template <class T>
std::int64_t plan_blocks(const device::GemmSpec& gemm, std::int64_t most, UpdateData<T>& data) {
  const std::int64_t row_bytes = gemm.n * static_cast<std::int64_t>(sizeof(T));
  const std::int64_t blocks = std::min(gemm.m, ceil_div(gemm.m * row_bytes, most));
  const std::int64_t work = gemm.m * gemm.n * gemm.k;
  const std::int64_t threads = std::min({std::int64_t{gemm.threads}, gemm.m, work / kSharedWork});
  if (is_f16(gemm.dtype) || threads <= 1) return blocks;
  data.block_threads = static_cast<int>(threads);
  data.threads = 1;
  return std::min(gemm.m, round_up(blocks, threads));
}

/// Splits the product into blocks of rows; returns the scratch bytes.
template <class T>
std::int64_t plan_matmul(Product product, UpdateData<T>& data) {
  device::GemmSpec& gemm = product.gemm;
  data.rows = gemm.m;
  data.columns = gemm.n;
  data.gemm = prepare_parts(product);
  data.has_consumer = data.gemm.fn != nullptr;
  if (data.has_consumer) return data.gemm.scratch_bytes;
  const auto row_bytes = gemm.n * static_cast<std::int64_t>(sizeof(T));
  const std::int64_t most = block_bytes(gemm);
  const bool in_blocks = gemm.n > 1 && most > 0 && gemm.m * row_bytes > most;
  std::int64_t blocks = 1;
  if (in_blocks) {
    blocks = plan_blocks(gemm, most, data);
    gemm.choice = device::GemmChoice::kTiles;
    gemm.a_row_length = gemm.transpose_a ? gemm.m : gemm.k;
    if (data.block_threads > 1) gemm.threads = 1;
  }
  data.block_rows = std::max<std::int64_t>(ceil_div(gemm.m, blocks), 1);
  if (blocks > 1) data.block_rows = in_whole_lines(data.block_rows, row_bytes, most);
  data.a_step = data.block_rows * (gemm.transpose_a ? 1 : gemm.k) * ops::element_bytes(gemm.dtype);
  const std::int64_t rest = gemm.m % data.block_rows;
  std::int64_t scratch = 0;
  if (rest > 0) {
    gemm.m = rest;
    data.last_gemm = prepare_block(product);
    scratch = data.last_gemm.scratch_bytes;
  }
  gemm.m = data.block_rows;
  data.gemm = prepare_block(product);
  device::ScratchLayout all, own;
  data.product = own.reserve<T>(data.block_rows * gemm.n);
  data.product_scratch = own.reserve<std::byte>(std::max(scratch, data.gemm.scratch_bytes));
  data.thread_scratch = all.reserve_blocks(data.block_threads, own);
  return all.size_bytes();
}

template <class T>
KernelOffer offer_typed(const KernelRequest& request, const std::optional<Product>& product) {
  auto data = std::make_shared<UpdateData<T>>();
  data->spec = WeightUpdate::read(request.node);
  if (product) data->b = 1;
  data->at = UpdatePlaces::of(&data->spec, request, product ? 2 : 1);
  data->update = device::find_update<T>(device::isa_of(request), data->spec);
  data->count = request.outputs[0].dims.num_elements();
  data->threads = static_cast<int>(
      std::clamp<std::int64_t>(data->count / kParallelElements, 1, request.threads));
  KernelOffer offer;
  offer.kernel.label = fmt::format("{} {}", opdef::update_rule_name(data->spec.rule),
                                   request.outputs[0].dims.to_string());
  offer.kernel.fn = kKernel<run_update<T>>;
  if (product) {
    offer.kernel.scratch_bytes = plan_matmul(*product, *data);
    offer.kernel.fn = data->has_consumer ? kKernel<run_matmul_with_updates<T>>
                                         : kKernel<run_matmul_and_update<T>>;
    offer.kernel.label += fmt::format(" + {}", data->gemm.label);
    offer.kernel.flops =
        2.0 * static_cast<double>(data->count) * static_cast<double>(product->gemm.k);
  }
  offer.kernel.in_place = data->at.in_place();
  offer.kernel.data = std::move(data);
  return offer;
}

KernelOffer offer_any(const KernelRequest& request, const std::optional<Product>& product) {
  // A scalar joins the surrounding element-wise kernel.
  if (request.outputs[0].dims.rank() == 0) {
    return KernelOffer::decline("the weight has rank 0");
  }
  const DataType dtype = request.outputs[0].dtype;
  const bool is_real = dtype == DataType::kFloat32 || dtype == DataType::kFloat64;
  if (request.is_candidate && is_real) return accept_candidate();
  if (dtype == DataType::kFloat32) return offer_typed<float>(request, product);
  if (dtype == DataType::kFloat64) return offer_typed<double>(request, product);
  return KernelOffer::decline(fmt::format("no update of {}", dtype_name(dtype)));
}

KernelOffer offer_update(const KernelRequest& request) { return offer_any(request, std::nullopt); }

KernelOffer offer_matmul_and_update(const KernelRequest& request) {
  const auto op = opdef::GemmWeightUpdate::read(request.node);
  const auto gemm = matmul_shape(request, 0, 1, op.transpose_a, op.transpose_b);
  if (!gemm || request.outputs[0].dims.num_elements() != gemm->m * gemm->n) {
    return KernelOffer::decline(request.node.describe() + ": shapes do not match");
  }
  const DataType dtype = request.outputs[0].dtype;
  const bool is_of_f16 = is_f16(gemm->dtype) && dtype == DataType::kFloat32;
  const bool rounds_b = is_of_f16 && request.inputs[1].dtype == DataType::kFloat32;
  if ((request.inputs[1].dtype != gemm->dtype && !rounds_b) ||
      (gemm->dtype != dtype && !is_of_f16)) {
    return decline_dtype(request, gemm->dtype);
  }
  return offer_any(request, Product{.gemm = *gemm, .rounds_b = rounds_b});
}

}  // namespace

void register_weight_update_cpu(opdef::KernelRegistry& registry) {
  registry.add(ir::kFunctionDomain, opdef::kWeightUpdate, 1, offer_update);
  registry.add(ir::kFusedDomain, opdef::kGemmWeightUpdate, 1, offer_matmul_and_update);
}

}  // namespace onnxgrad::ops::weight_update_cpu
