#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "device/cpu/scratch_layout.h"
#include "device/cpu/threads.h"
#include "device/cpu_options.h"
#include "opdef/fused_layer_norm.h"
#include "opdef/kernel.h"
#include "ops/f16_stream_cpu.h"
#include "ops/kernel_support.h"
#include "ops/nn/norm_stretches_simd.h"
#include "ops/nn/window.h"
#include "ops/random/draws.h"
#include "ops/random/dropout_ratio.h"

// Float32 SIMD kernels of LayerNormalization and its gradient, alone and fused with their
// neighbours: the Dropout and the sum with a residual before, the sum with another cotangent and
// the masks after the gradient. x: [rows, size], where size is the product of the normalised axes;
// a row stays in the L1 cache through all phases. Threads split the rows. x, y and their cotangents
// may be f16 or bf16, which are converted in a buffer.

namespace onnxgrad::ops::fused_layer_norm_cpu {
namespace {

// Minimum number of elements for a second thread.
constexpr std::int64_t kParallelElements = 1 << 15;  // per thread

struct Rows {
  std::int64_t count = 0;
  std::int64_t size = 0;
  double epsilon = 0;
  int threads = 1;
  device::Isa isa = {};
};

struct Statistics {
  float mean = 0;
  float inverse = 0;  // 1 / standard deviation
};

// Short rows go through each phase together, so that their sums and square roots overlap; few
// enough to stay in the L1 cache.
constexpr std::int64_t kMostTogether = 8;
constexpr std::int64_t kElementsTogether = 4096;

using GroupStatistics = std::array<Statistics, kMostTogether>;

/// Computes the statistics of `count` rows, at most kMostTogether.
GroupStatistics statistics_of(const float* x, const Rows& rows, std::int64_t count) {
  const auto size = static_cast<double>(rows.size);
  std::array<double, kMostTogether> means{};
  std::array<double, kMostTogether> squares{};
  GroupStatistics statistics;
  const auto each = [count](auto f) {
    for (std::int64_t i = 0; i < count; ++i) f(i, static_cast<std::size_t>(i));
  };
  each([&](std::int64_t i, std::size_t at) {
    means[at] = stretches::sum(rows.isa, x + i * rows.size, rows.size) / size;
    statistics[at].mean = static_cast<float>(means[at]);
  });
  each([&](std::int64_t i, std::size_t at) {
    squares[at] =
        stretches::centred_square_sum(rows.isa, x + i * rows.size, statistics[at].mean, rows.size);
  });
  each([&](std::int64_t /*i*/, std::size_t at) {
    const double error = means[at] - static_cast<double>(statistics[at].mean);
    const double variance = std::max(squares[at] / size - error * error, 0.0);
    statistics[at].inverse = static_cast<float>(1 / std::sqrt(variance + rows.epsilon));
  });
  return statistics;
}

std::int64_t rows_together(const Rows& rows) {
  return std::clamp<std::int64_t>(kElementsTogether / std::max<std::int64_t>(rows.size, 1), 1,
                                  kMostTogether);
}

/// Calls f(row, count) for groups of `count` rows from `row` on, until [first, last) is covered.
template <class F>
void visit_groups(const Rows& rows, std::int64_t first, std::int64_t last, const F& f) {
  const std::int64_t together = rows_together(rows);
  for (std::int64_t row = first; row < last; row += together) {
    f(row, std::min(together, last - row));
  }
}

/// Returns the elements of a buffer for a group of rows, in whole cache lines.
std::int64_t group_elements(const Rows& rows) {
  return device::aligned_count<float>(rows_together(rows) * rows.size);
}

// ---- forward ----

/// Argument indices of the operands; -1: absent.
struct NormTask {
  Rows rows;
  F16Stream x = {}, y = {};
  int residual = -1, scale = 1, bias = -1, ratio = -1, training_mode = -1;
  int sum = -1, mask = -1, mean = -1, inverse = -1;
  int scratch = -1;  ///< buffers for groups of x and y, if f16 or bf16
  bool drops = false;
  DataType ratio_dtype = DataType::kUndefined;
  RandomStream draws = {};
  RowStretches stretches = {};
  std::string node = {};
};

/// State of a Dropout in one run; see dropout_cpu.cpp for its random numbers.
struct Drop {
  bool is_on = false;
  std::uint64_t threshold = 0;
  float scale = 1;
};

Drop drop_of(const NormTask& task, KernelArgs args) {
  const bool is_training =
      task.drops && task.training_mode >= 0 && args[task.training_mode][0] != std::byte{0};
  if (!is_training) return {};
  const std::byte* given = task.ratio < 0 ? nullptr : args[task.ratio];
  const double ratio = read_dropout_ratio(given, task.ratio_dtype, task.node);
  return {.is_on = ratio > 0,
          .threshold = static_cast<std::uint64_t>(std::ldexp(ratio, 32)),
          .scale = static_cast<float>(1 / (1 - ratio))};
}

/// Returns the index of element `at` of this worker's tensor in the tensor of the whole batch.
std::int64_t batch_number(const RowStretches& stretches, const Launch& launch, std::int64_t at) {
  const opdef::StepCells* cells = launch.cells;
  if (!stretches.has_rows || cells == nullptr || cells->batch_rows == 0) return at;
  const std::int64_t per_row = stretches.length / cells->rows;
  const std::int64_t stretch = at / stretches.length;
  return (stretch * cells->batch_rows + cells->first_row) * per_row + at % stretches.length;
}

/// Computes sum = drop(x) + residual for `count` elements; `number` is the first one's index in the
/// whole batch.
void drop_and_add(const NormTask& task, const Drop& drop, const Launch& launch, std::int64_t number,
                  const float* x, const float* residual, std::int64_t count, float* sum,
                  std::uint8_t* mask) {
  if (!drop.is_on) {
    stretches::add(task.rows.isa, x, residual, sum, count);
    if (mask != nullptr) std::fill_n(mask, count, std::uint8_t{1});
    return;
  }
  for (std::int64_t i = -(number % 4); i < count; i += 4) {
    const auto words = task.draws.block(launch, static_cast<std::uint64_t>(number + i) / 4);
    const std::int64_t end = std::min<std::int64_t>(count - i, 4);
    for (std::int64_t k = std::max<std::int64_t>(-i, 0); k < end; ++k) {
      const bool keep = words[static_cast<std::size_t>(k)] >= drop.threshold;
      sum[i + k] = (keep ? x[i + k] * drop.scale : 0.0F) + residual[i + k];
      if (mask != nullptr) mask[i + k] = keep ? 1 : 0;
    }
  }
}

/// Computes rows [first, last); `thread` has the buffers.
void norm_rows(const NormTask& task, KernelArgs args, const Launch& launch, std::int64_t first,
               std::int64_t last, std::int64_t thread) {
  const Rows& rows = task.rows;
  const float* residual = args.find<float>(task.residual);
  const float* scale = args.find<float>(task.scale);
  const float* bias = args.find<float>(task.bias);
  auto* sum = args.find<float>(task.sum);
  auto* means = args.find<float>(task.mean);
  auto* inverses = args.find<float>(task.inverse);
  auto* mask = args.find<std::uint8_t>(task.mask);
  const Drop drop = drop_of(task, args);
  const std::int64_t group = group_elements(rows);
  const bool has_y = !task.y.is_absent(args);
  float* own = task.scratch < 0 ? nullptr : args.at<float>(task.scratch) + thread * (2 * group);
  visit_groups(rows, first, last, [&](std::int64_t row, std::int64_t count) {
    const std::int64_t begin = row * rows.size;
    const std::int64_t end = begin + count * rows.size;
    const float* values = task.x.load(args, begin, end - begin, own);
    for (std::int64_t at = begin; residual != nullptr && at < end; at += rows.size) {
      drop_and_add(task, drop, launch, batch_number(task.stretches, launch, at),
                   values + (at - begin), residual + at, rows.size, sum + at,
                   mask == nullptr ? nullptr : mask + at);
    }
    if (residual != nullptr) values = sum + begin;
    const auto statistics = statistics_of(values, rows, count);
    float* y = has_y ? task.y.place(args, begin, own + group) : nullptr;
    for (std::int64_t i = 0; i < count; ++i) {
      const Statistics& s = statistics[static_cast<std::size_t>(i)];
      if (means != nullptr) means[row + i] = s.mean;
      if (inverses != nullptr) inverses[row + i] = s.inverse;
      const std::int64_t at = i * rows.size;
      if (!has_y) continue;
      stretches::scale_row(rows.isa, values + at, s.mean, s.inverse, scale, bias, y + at,
                           rows.size);
    }
    if (has_y) task.y.finish(args, begin, end - begin, y);
  });
}

void run_norm(const NormTask& task, KernelArgs args, const Launch& launch) {
  const Rows& rows = task.rows;
  const std::int64_t chunks = device::chunks_of(rows.threads, rows.count);
  device::on_threads(rows.threads, chunks, [&](const device::Chunk& chunk) {
    norm_rows(task, args, launch, chunk.first(rows.count), chunk.last(rows.count), chunk.thread);
  });
}

KernelOffer prepared_norm(NormTask task, std::string label) {
  opdef::BlockWork work{.cut = opdef::BlockCut::kRows,
                        .inputs = {0},
                        .width = task.rows.size,
                        .threads = task.rows.threads};
  work.fn = [](const void* raw, KernelArgs args, const Launch& launch, const opdef::Block& block) {
    norm_rows(*static_cast<const NormTask*>(raw), args, launch, block.row, block.row + block.rows,
              block.thread);
  };
  if (task.residual >= 0) work.inputs.push_back(task.residual);
  if (task.scratch >= 0) work.most_threads = task.rows.threads;
  KernelOffer offer = prepared<run_norm>(std::move(task), std::move(label));
  offer.kernel.in_place = {{0, 0}};  // groups of rows are read before they are written
  offer.kernel.by_blocks = std::move(work);
  return offer;
}

// ---- gradient ----

struct GradTask {
  Rows rows;
  F16Stream dy = {}, x = {}, ds = {};
  int more = -1, mask = -1, factor = -1;
  int dscale = 0, dbias = 0, dx = -1, sums = -1, scratch = 0;

  bool has_f16() const { return dy.is_f16() || x.is_f16() || ds.is_f16(); }
};

/// Buffers of a chunk: partial sums over rows, a row to work in, and groups of rows for f16 or
/// bf16 operands.
struct GradSums {
  float* row;
  float* dscale;
  float* dbias;
  float* sums;
  float* dy;
  float* x;
  float* ds;
};
constexpr std::int64_t kScratchRows = 4;

// Returns the scratch elements per chunk, in whole cache lines, so that threads never share one.
std::int64_t chunk_elements(const GradTask& task) {
  const std::int64_t groups = task.has_f16() ? 3 * group_elements(task.rows) : 0;
  return groups + device::aligned_count<float>(kScratchRows * task.rows.size);
}

GradSums sums_of(const GradTask& task, KernelArgs args, std::int64_t chunk) {
  const std::int64_t size = task.rows.size;
  const std::int64_t elements = chunk_elements(task);
  float* first = args.at<float>(task.scratch) + chunk * elements;
  const std::int64_t group = group_elements(task.rows);
  float* groups = first + elements - 3 * group;
  return {first,  first + size,   first + 2 * size,  first + 3 * size,
          groups, groups + group, groups + 2 * group};
}

/// Applies the operations after the gradient of the normalised values to one row.
void finish_row(const GradTask& task, KernelArgs args, std::int64_t at, float* row, float* sums) {
  const std::int64_t size = task.rows.size;
  const auto elements = [&](int place) { return args.at<float>(place) + at; };
  if (task.more >= 0) {
    stretches::add(task.rows.isa, row, elements(task.more), row, size);
  }
  const float* result = row;
  if (task.mask >= 0) {
    const auto* mask = args.at<std::uint8_t>(task.mask) + at;
    const float factor = *args.at<float>(task.factor);
    float* dx = elements(task.dx);
    for (std::int64_t i = 0; i < size; ++i) dx[i] = row[i] * (static_cast<float>(mask[i]) * factor);
    result = dx;
  }
  if (task.sums < 0) return;
  stretches::add(task.rows.isa, sums, result, sums, size);
}

void run_grad(const GradTask& task, KernelArgs args) {
  const Rows& rows = task.rows;
  const auto* scale = args.at<float>(2);
  const bool is_alone = task.more < 0 && task.mask < 0 && task.sums < 0;
  const bool has_ds = !task.ds.is_absent(args);
  const auto size = static_cast<double>(rows.size);
  device::on_threads(rows.threads, [&](const device::Chunk& chunk) {
    const GradSums own = sums_of(task, args, chunk.index);
    std::fill_n(own.dscale, (kScratchRows - 1) * rows.size, 0.0F);
    visit_groups(rows, chunk.first(rows.count), chunk.last(rows.count),
                 [&](std::int64_t row, std::int64_t count) {
                   const std::int64_t begin = row * rows.size;
                   const std::int64_t elements = count * rows.size;
                   const float* x = task.x.load(args, begin, elements, own.x);
                   const float* dy = task.dy.load(args, begin, elements, own.dy);
                   const auto statistics = statistics_of(x, rows, count);
                   std::array<stretches::GradSums, kMostTogether> sums;
                   for (std::int64_t i = 0; i < count; ++i) {
                     const std::int64_t at = i * rows.size;
                     const auto place = static_cast<std::size_t>(i);
                     sums[place] = stretches::scale_row_sums(
                         rows.isa, dy + at, x + at, statistics[place].mean,
                         statistics[place].inverse, scale, own.dscale, own.dbias, rows.size);
                   }
                   if (is_alone && !has_ds) return;
                   float* ds = has_ds ? task.ds.place(args, begin, own.ds) : nullptr;
                   for (std::int64_t i = 0; i < count; ++i) {
                     const std::int64_t at = i * rows.size;
                     const auto place = static_cast<std::size_t>(i);
                     float* result = has_ds ? ds + at : own.row;
                     stretches::scale_row_grad(rows.isa, dy + at, x + at, statistics[place].mean,
                                               statistics[place].inverse, scale,
                                               static_cast<float>(sums[place].dy / size),
                                               static_cast<float>(sums[place].dot / size), result,
                                               rows.size);
                     finish_row(task, args, begin + at, result, own.sums);
                   }
                   if (has_ds) task.ds.finish(args, begin, elements, ds);
                 });
  });
  const auto collect = [&](int place, auto part) {
    if (place < 0 || args[place] == nullptr) return;
    auto* to = args.at<float>(place);
    std::copy_n(part(sums_of(task, args, 0)), rows.size, to);
    for (std::int64_t i = 1; i < rows.threads; ++i) {
      const float* from = part(sums_of(task, args, i));
      for (std::int64_t j = 0; j < rows.size; ++j) to[j] += from[j];
    }
  };
  collect(task.dscale, [](const GradSums& sums) { return sums.dscale; });
  collect(task.dbias, [](const GradSums& sums) { return sums.dbias; });
  collect(task.sums, [](const GradSums& sums) { return sums.sums; });
}

// ---- offers ----

/// Returns true if `dims` are x's last dimensions, with `size` elements, possibly preceded by ones.
bool is_row(const Dims& dims, const Dims& x, std::int64_t size) {
  if (dims.num_elements() != size || dims.rank() > x.rank()) return false;
  std::int64_t covered = 1;
  for (std::size_t i = 1; i <= dims.rank(); ++i) {
    const std::int64_t dim = dims[dims.rank() - i];
    if (dim != (covered == size ? 1 : x[x.rank() - i])) return false;
    covered *= dim;
  }
  return true;
}

Rows rows_of(const KernelRequest& request, const Dims& x) {
  const auto axis =
      static_cast<std::size_t>(normalize_axis(request.node.int_attribute("axis"), x.rank()));
  Rows rows{.count = x.product(0, axis),
            .size = x.product(axis, x.rank()),
            .epsilon = static_cast<double>(request.node.float_attribute("epsilon")),
            .isa = device::isa_of(request)};
  rows.threads = device::useful_threads(x.num_elements(), kParallelElements,
                                        std::min<std::int64_t>(request.threads, rows.count));
  return rows;
}

bool is_present(const KernelRequest& request, std::size_t input) {
  return input < request.inputs.size() && request.inputs[input].is_present();
}

/// Returns "" if all present inputs and outputs are float32, except for the named ones and for the
/// first `f16_inputs` inputs and the first output, which may be f16 or bf16.
std::string wrong_type(const KernelRequest& request, std::size_t f16_inputs,
                       std::optional<std::size_t> other_output = {}) {
  constexpr std::size_t kFirstOtherInput = 4;
  const auto is_float32 = [](const TensorDesc& desc, bool may_be_f16) {
    return desc.dtype == DataType::kFloat32 || (may_be_f16 && is_f16(desc.dtype));
  };
  for (std::size_t i = 0; i < std::min(request.inputs.size(), kFirstOtherInput); ++i) {
    if (is_present(request, i) && !is_float32(request.inputs[i], i < f16_inputs)) {
      return "float32 only";
    }
  }
  for (std::size_t i = 0; i < request.outputs.size(); ++i) {
    if (request.has_output(i) && i != other_output &&
        !is_float32(request.outputs[i], i == 0 && f16_inputs > 0)) {
      return "float32 only";
    }
  }
  return {};
}

KernelOffer offer_norm(const KernelRequest& request) {
  if (auto reason = wrong_type(request, 1); !reason.empty()) return KernelOffer::decline(reason);
  const Dims& x = request.inputs[0].dims;
  const auto first = static_cast<int>(request.inputs.size());
  NormTask task{.rows = rows_of(request, x),
                .x = F16Stream::operand(device::isa_of(request), 0, request.inputs[0].dtype),
                .y = F16Stream::result(device::isa_of(request), first, request.outputs[0].dtype)};
  for (const std::size_t i : {std::size_t{1}, std::size_t{2}}) {
    if (is_present(request, i) && !is_row(request.inputs[i].dims, x, task.rows.size)) {
      return KernelOffer::decline("scale or bias is not as long as a row");
    }
  }
  if (is_present(request, 2)) task.bias = 2;
  if (request.has_output(1)) task.mean = first + 1;
  if (request.has_output(2)) task.inverse = first + 2;
  if (!task.x.is_f16() && !task.y.is_f16()) {
    return prepared_norm(std::move(task), "simd rows");
  }
  task.scratch = first + static_cast<int>(request.outputs.size());
  const std::int64_t elements = task.rows.threads * (2 * group_elements(task.rows));
  KernelOffer offer = prepared_norm(std::move(task), "simd rows by halves");
  offer.kernel.scratch_bytes = elements * static_cast<std::int64_t>(sizeof(float));
  return offer;
}

KernelOffer offer_fused_norm(const KernelRequest& request) {
  if (auto reason = wrong_type(request, 0, 2); !reason.empty()) return KernelOffer::decline(reason);
  const Dims& x = request.inputs[0].dims;
  const auto first = static_cast<int>(request.inputs.size());
  NormTask task{.rows = rows_of(request, x),
                .x = F16Stream::operand(device::isa_of(request), 0, DataType::kFloat32),
                .y = F16Stream::result(device::isa_of(request), first, DataType::kFloat32),
                .residual = 1,
                .scale = 2,
                .sum = first + 1,
                .drops = request.node.int_attribute("drops", 0) != 0,
                .node = request.node.name};
  const bool fits = request.inputs[1].dims == x && request.has_output(1) &&
                    is_row(request.inputs[2].dims, x, task.rows.size) &&
                    (!is_present(request, 3) || is_row(request.inputs[3].dims, x, task.rows.size));
  if (!fits) return KernelOffer::decline("shapes do not match");
  if (is_present(request, 3)) task.bias = 3;
  if (request.has_output(2)) task.mask = first + 2;
  if (task.drops) {
    task.draws = RandomStream::of(request.node);
    task.stretches = RowStretches::of(request.node, x);
    if (task.stretches.has_rows &&
        task.stretches.length % std::max<std::int64_t>(task.rows.size, 1)) {
      return KernelOffer::decline("the rows of the batch are within the normalised axes");
    }
    for (const std::size_t i : {std::size_t{4}, std::size_t{5}}) {
      if (is_present(request, i) && request.inputs[i].dims.num_elements() != 1) {
        return KernelOffer::decline("ratio and mode are not both scalars");
      }
    }
    if (is_present(request, 4)) {
      task.ratio = 4;
      task.ratio_dtype = request.inputs[4].dtype;
      if (task.ratio_dtype != DataType::kFloat32 && task.ratio_dtype != DataType::kFloat64) {
        return decline_dtype(request, task.ratio_dtype);
      }
    }
    if (is_present(request, 5)) task.training_mode = 5;
  }
  const char* label = task.drops ? "simd rows, dropout, residual" : "simd rows, residual";
  const bool drops = task.drops;
  KernelOffer offer = prepared_norm(std::move(task), label);
  offer.kernel.in_place = {{0, 1}, {1, 1}};  // y follows from the sum
  if (drops) note_dropout_check(request, offer, 4, 5);
  return offer;
}

KernelOffer prepared_grad(const KernelRequest& request, GradTask task, std::string label) {
  const auto first = static_cast<int>(request.inputs.size());
  task.dy = F16Stream::operand(device::isa_of(request), 0, request.inputs[0].dtype);
  task.x = F16Stream::operand(device::isa_of(request), 1, request.inputs[1].dtype);
  task.ds = F16Stream::result(device::isa_of(request), first, request.outputs[0].dtype);
  if (task.has_f16()) label += " by halves";
  task.dscale = first + 1;
  task.dbias = first + 2;
  task.scratch = first + static_cast<int>(request.outputs.size());
  KernelOffer offer = prepared<run_grad>(task, std::move(label));
  offer.kernel.scratch_bytes =
      task.rows.threads * chunk_elements(task) * static_cast<std::int64_t>(sizeof(float));
  return offer;
}

bool is_plain_grad(const KernelRequest& request, const Rows& rows) {
  return request.inputs[0].dims == request.inputs[1].dims &&
         request.inputs[2].dims.num_elements() == rows.size && request.outputs.size() >= 3;
}

KernelOffer offer_grad(const KernelRequest& request) {
  if (auto reason = wrong_type(request, 2); !reason.empty()) return KernelOffer::decline(reason);
  GradTask task{.rows = rows_of(request, request.inputs[1].dims)};
  if (!is_plain_grad(request, task.rows)) return KernelOffer::decline("shapes do not match");
  return prepared_grad(request, task, "simd rows");
}

KernelOffer offer_fused_grad(const KernelRequest& request) {
  if (auto reason = wrong_type(request, 2); !reason.empty()) return KernelOffer::decline(reason);
  const Dims& x = request.inputs[1].dims;
  const auto first = static_cast<int>(request.inputs.size());
  GradTask task{.rows = rows_of(request, x)};
  bool fits = is_plain_grad(request, task.rows);
  std::string label = "simd rows";
  if (is_present(request, 3)) {
    task.more = 3;
    fits = fits && request.inputs[3].dims == x;
    label += ", sum";
  }
  if (is_present(request, 4)) {
    task.mask = 4;
    task.factor = 5;
    task.dx = first + 3;
    fits = fits && request.inputs[4].dims == x && request.inputs[4].dtype == DataType::kBool &&
           is_present(request, 5) && request.inputs[5].dims.num_elements() == 1 &&
           request.inputs[5].dtype == DataType::kFloat32 && request.has_output(3);
    label += ", dropout";
  }
  if (request.has_output(4)) {
    task.sums = first + 4;
    fits = fits && request.outputs[4].dims.num_elements() == task.rows.size;
    label += ", sums of columns";
  }
  if (!fits) return KernelOffer::decline("shapes do not match");
  return prepared_grad(request, task, std::move(label));
}

}  // namespace

void register_fused_layer_norm_cpu(opdef::KernelRegistry& registry) {
  registry.add("", "LayerNormalization", 10, offer_norm);
  registry.add(ir::kFunctionDomain, "LayerNormalizationGrad", 10, offer_grad);
  registry.add(ir::kFusedDomain, opdef::kFusedLayerNorm, 10, offer_fused_norm);
  registry.add(ir::kFusedDomain, opdef::kFusedLayerNormGrad, 10, offer_fused_grad);
}

}  // namespace onnxgrad::ops::fused_layer_norm_cpu
