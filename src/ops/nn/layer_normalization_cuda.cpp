#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ir/builder.h"
#include "opdef/fused_layer_norm.h"
#include "ops/block_text_cuda.h"
#include "ops/index_walk_cuda.h"
#include "ops/kernel_support.h"
#include "ops/kernel_support_cuda.h"
#include "ops/random_text_cuda.h"

// LayerNormalization, its gradient and the forms of the pass fuse_layer_norms. x is [rows, size]:
// a column of a block (ops/block_text_cuda.h) is a row. The gradients of scale and bias are sums
// over all rows of each place, whose parts are added up by a last kernel.

namespace onnxgrad::ops::layer_normalization_cuda {
namespace {

using device::cuda::TextKernel;
using device::cuda::Word;

constexpr const char* kStatistics = R"(
struct og_statistics { double mean, inverse; };

// `end`: 0 in threads without a row.
OG_FUNCTION og_statistics og_moments(const og_x* x, og_i64 end, og_i64 size, double epsilon) {
  double sum = 0;
  for (og_i64 i = threadIdx.y; i < end; i += blockDim.y) sum += (double)og_get(x[i]);
  const double mean = og_fold_rows<og_sum>(sum) / (double)size;
  double squares = 0;
  for (og_i64 i = threadIdx.y; i < end; i += blockDim.y) {
    const double centred = (double)og_get(x[i]) - mean;
    squares += centred * centred;
  }
  squares = og_fold_rows<og_sum>(squares);
  return {mean, 1 / sqrt(squares / (double)size + epsilon)};
}
)";

// Words: x, scale, bias, y, means, inverses, residual, sum, mask, ratio, mode; rows, size, epsilon,
// steps of scale and bias along a row, the words of random numbers, steps from row to row.
constexpr const char* kForward = R"(
OG_KERNEL(og_main, 28) {
  const og_x* x = a.pointer<og_x>(0);
  const og_t* const scale = a.pointer<og_t>(1);
  const og_t* const bias = a.pointer<og_t>(2);
  og_y* const y = a.pointer<og_y>(3);
  float* const means = a.pointer<float>(4);
  float* const inverses = a.pointer<float>(5);
  const og_x* const residual = a.pointer<og_x>(6);
  og_x* const sum = a.pointer<og_x>(7);
  og_u8* const mask = a.pointer<og_u8>(8);
  const og_i64 rows = a.integer(11), size = a.integer(12);
  for (og_i64 first = (og_i64)blockIdx.x * blockDim.x; first < rows; first += og_columns()) {
    const og_i64 row = first + threadIdx.x;
    const og_i64 end = row < rows ? size : 0;
    const og_i64 begin = row * size;
    const og_x* from = x + begin;
    if (residual != 0) {
      const og_drop drop = og_drop_of(a, 16, a.pointer<og_ratio>(9), a.pointer<og_u8>(10));
      for (og_i64 i = threadIdx.y; i < end; i += blockDim.y) {
        const bool keep = og_keeps(a, 16, drop, begin + i);
        const og_t value = (og_t)og_get(x[begin + i]);
        const og_t kept = keep ? (drop.is_on ? value * (og_t)drop.scale : value) : (og_t)0;
        og_set(sum, begin + i, kept + (og_t)og_get(residual[begin + i]));
        if (mask != 0) mask[begin + i] = keep;
      }
      from = sum + begin;
      __syncthreads();
    }
    const og_statistics s = og_moments(from, end, size, a.real(13));
    if (threadIdx.y == 0 && row < rows) {
      if (means != 0) means[row] = (float)s.mean;
      if (inverses != 0) inverses[row] = (float)s.inverse;
    }
    if (y == 0) continue;
    const og_t mean = (og_t)s.mean, inverse = (og_t)s.inverse;
    for (og_i64 i = threadIdx.y; i < end; i += blockDim.y) {
      const og_t shift =
          bias == 0 ? (og_t)0 : bias[row * a.integer(27) + i * a.integer(15)];
      og_set(y, begin + i,
             ((og_t)og_get(from[i]) - mean) * inverse *
                     scale[row * a.integer(26) + i * a.integer(14)] +
                 shift);
    }
  }
}
)";

// Words: dy, x, scale, ds, dscale, dbias, more, mask, factor, dx, sums, statistics [rows]
// (scratch), parts [3, splits, size] (scratch); rows, size, epsilon, splits.
constexpr const char* kGradient = R"(
OG_KERNEL(og_rows, 17) {
  const og_dy* const dy = a.pointer<og_dy>(0);
  const og_x* const x = a.pointer<og_x>(1);
  const og_t* const scale = a.pointer<og_t>(2);
  og_ds* const ds = a.pointer<og_ds>(3);
  const og_t* const more = a.pointer<og_t>(6);
  const og_u8* const mask = a.pointer<og_u8>(7);
  og_t* const dx = a.pointer<og_t>(9);
  og_statistics* const kept = a.pointer<og_statistics>(11);
  const og_i64 rows = a.integer(13), size = a.integer(14);
  for (og_i64 first = (og_i64)blockIdx.x * blockDim.x; first < rows; first += og_columns()) {
    const og_i64 row = first + threadIdx.x;
    const og_i64 end = row < rows ? size : 0;
    const og_i64 begin = row * size;
    const og_statistics s = og_moments(x + begin, end, size, a.real(15));
    double sum = 0, dot = 0;
    for (og_i64 i = threadIdx.y; i < end; i += blockDim.y) {
      const double h = ((double)og_get(x[begin + i]) - s.mean) * s.inverse;
      const double dh = (double)og_get(dy[begin + i]) * (double)scale[i];
      sum += dh;
      dot += dh * h;
    }
    sum = og_fold_rows<og_sum>(sum);
    dot = og_fold_rows<og_sum>(dot);
    if (threadIdx.y == 0 && row < rows) kept[row] = s;
    if (ds == 0 && dx == 0) continue;
    for (og_i64 i = threadIdx.y; i < end; i += blockDim.y) {
      const double h = ((double)og_get(x[begin + i]) - s.mean) * s.inverse;
      const double dh = (double)og_get(dy[begin + i]) * (double)scale[i];
      og_t value = (og_t)(s.inverse * (dh - (sum + h * dot) / (double)size));
      if (more != 0) value += more[begin + i];
      if (ds != 0) og_set(ds, begin + i, value);
      if (mask != 0) dx[begin + i] = value * ((og_t)mask[begin + i] * *a.pointer<og_t>(8));
    }
  }
}

// A column of a block is a place in a row.
OG_KERNEL(og_places, 17) {
  const og_dy* const dy = a.pointer<og_dy>(0);
  const og_x* const x = a.pointer<og_x>(1);
  const og_t* const dx = a.pointer<og_t>(9);
  const og_ds* const ds = a.pointer<og_ds>(3);
  const og_statistics* const kept = a.pointer<og_statistics>(11);
  double* const parts = a.pointer<double>(12);
  const og_i64 rows = a.integer(13), size = a.integer(14), splits = a.integer(16);
  const og_i64 begin = rows * blockIdx.y / splits, end = rows * (blockIdx.y + 1) / splits;
  const bool sums = a.pointer<og_t>(10) != 0;
  for (og_i64 first = (og_i64)blockIdx.x * blockDim.x; first < size; first += og_columns()) {
    const og_i64 place = first + threadIdx.x;
    double dscale = 0, dbias = 0, total = 0;
    for (og_i64 row = begin + threadIdx.y; place < size && row < end; row += blockDim.y) {
      const og_i64 i = row * size + place;
      const og_statistics s = kept[row];
      const double g = (double)og_get(dy[i]);
      dscale += g * (((double)og_get(x[i]) - s.mean) * s.inverse);
      dbias += g;
      if (sums) total += dx != 0 ? (double)dx[i] : (double)og_get(ds[i]);
    }
    dscale = og_fold_rows<og_sum>(dscale);
    dbias = og_fold_rows<og_sum>(dbias);
    if (sums) total = og_fold_rows<og_sum>(total);
    if (threadIdx.y != 0 || place >= size) continue;
    const og_i64 at = blockIdx.y * size + place;
    parts[at] = dscale;
    parts[splits * size + at] = dbias;
    parts[2 * splits * size + at] = total;
  }
}

OG_KERNEL(og_combine, 17) {
  const double* const parts = a.pointer<double>(12);
  const og_i64 size = a.integer(14), splits = a.integer(16);
  const int results[3] = {4, 5, 10};
  for (og_i64 i = og_first(); i < 3 * size; i += og_stride()) {
    const og_i64 which = i / size, place = i % size;
    og_t* const to = a.pointer<og_t>(results[which]);
    if (to == 0) continue;
    double sum = 0;
    for (og_i64 k = 0; k < splits; ++k) sum += parts[(which * splits + k) * size + place];
    to[place] = (og_t)sum;
  }
}
)";

struct Rows {
  std::int64_t count = 0;
  std::int64_t size = 0;

  Columns columns() const { return {.count = count, .length = size}; }
};

Rows rows_of(const KernelRequest& request, const Dims& x) {
  const auto axis =
      static_cast<std::size_t>(normalize_axis(request.node.int_attribute("axis"), x.rank()));
  return {.count = x.product(0, axis), .size = x.product(axis, x.rank())};
}

Word epsilon_of(const KernelRequest& request) {
  return Word::of(static_cast<double>(request.node.float_attribute("epsilon")));
}

/// The step of an operand along a row: 1 if it is one, 0 for a single element; nullopt for others.
std::optional<std::int64_t> step_along(const Dims& operand, const Dims& x, const Rows& rows) {
  const std::int64_t elements = operand.num_elements();
  if (elements == 1) return 0;
  if (elements != rows.size || operand.rank() > x.rank()) return std::nullopt;
  std::int64_t covered = 1;
  for (std::size_t i = 1; i <= operand.rank(); ++i) {
    const std::int64_t dim = operand[operand.rank() - i];
    if (dim != (covered == rows.size ? 1 : x[x.rank() - i])) return std::nullopt;
    covered *= dim;
  }
  return 1;
}

/// Scale or bias, repeated in scratch if it is no row.
struct Repeated {
  Word address = optional_argument(-1);
  std::int64_t step = 0;
  std::int64_t row_step = 0;
};

// Adds the copies of operands that are repeated to `copies`, and their bytes; nullopt: the operand
// has another shape.
std::optional<Repeated> repeated(const KernelRequest& request, int arg, const Dims& x,
                                 const Rows& rows, std::vector<TextKernel>& copies,
                                 std::int64_t& scratch_bytes) {
  if (arg < 0) return Repeated();
  const TensorDesc& desc = request.inputs[static_cast<std::size_t>(arg)];
  if (const auto step = step_along(desc.dims, x, rows)) {
    return Repeated{.address = Word::argument(arg), .step = *step};
  }
  if (desc.dims.rank() > x.rank()) return std::nullopt;
  const std::size_t missing = x.rank() - desc.dims.rank();
  const std::int64_t bytes = element_bytes(desc.dtype);
  const std::vector<std::int64_t> strides = dense_strides(desc.dims.values());
  CopyRequest copy{.element_bytes = bytes,
                   .sizes = {x.begin(), x.end()},
                   .target_strides = dense_strides(x.values()),
                   .target_offset = scratch_bytes / bytes};
  copy.source_strides.assign(x.rank(), 0);
  for (std::size_t i = missing; i < x.rank(); ++i) {
    const std::int64_t dim = desc.dims[i - missing];
    if (dim != 1 && dim != x[i]) return std::nullopt;
    if (dim != 1) copy.source_strides[i] = strides[i - missing];
  }
  const auto scratch = static_cast<std::int64_t>(request.inputs.size() + request.outputs.size());
  auto kernel = copy_kernel(request, copy, arg, scratch);
  if (!kernel) return std::nullopt;
  copies.push_back(*std::move(kernel));
  Repeated made{
      .address = Word::argument(scratch, scratch_bytes), .step = 1, .row_step = rows.size};
  scratch_bytes += round_up(x.num_elements() * bytes, std::int64_t{256});
  return made;
}

bool is_number(DataType dtype) {
  return dtype == DataType::kFloat32 || dtype == DataType::kFloat64;
}

/// The type of the computation: that of `operand`, float32 for 16 bits.
DataType numbers_of(const KernelRequest& request, std::size_t operand) {
  const DataType dtype = request.inputs[operand].dtype;
  return is_f16(dtype) ? DataType::kFloat32 : dtype;
}

bool fits(const TensorDesc& desc, DataType numbers, bool may_be_f16) {
  return !desc.is_present() || desc.dtype == numbers || (may_be_f16 && is_f16(desc.dtype));
}

struct Forward {
  int x = 0, residual = -1, scale = 1, bias = -1, ratio = -1, mode = -1;
  int means = -1, inverses = -1, sum = -1, mask = -1;
};

KernelOffer offer_forward(const KernelRequest& request, const Forward& at) {
  const Dims& x = request.inputs[0].dims;
  const Rows rows = rows_of(request, x);
  const DataType numbers = numbers_of(request, 0);
  const auto outputs = static_cast<int>(request.inputs.size());
  const auto input = [&](int i) -> const TensorDesc& {
    return request.inputs[static_cast<std::size_t>(i)];
  };
  const bool has_bias = at.bias >= 0;
  if (!is_number(numbers) || !fits(request.outputs[0], numbers, true) ||
      !fits(input(at.scale), numbers, false) ||
      (has_bias && !fits(input(at.bias), numbers, false))) {
    return KernelOffer::decline("operands of other types");
  }
  for (std::size_t i = 1; at.residual < 0 && i < request.outputs.size(); ++i) {
    if (!fits(request.outputs[i], DataType::kFloat32, false)) {
      return decline_dtype(request, request.outputs[i].dtype);
    }
  }
  std::vector<TextKernel> launches;
  std::int64_t scratch_bytes = 0;
  const auto scale = repeated(request, at.scale, x, rows, launches, scratch_bytes);
  const auto bias = repeated(request, at.bias, x, rows, launches, scratch_bytes);
  if (!scale || !bias) return KernelOffer::decline("scale or bias of another shape");
  std::vector<Word> words{Word::argument(at.x),
                          scale->address,
                          bias->address,
                          request.has_output(0) ? Word::argument(outputs) : optional_argument(-1),
                          optional_argument(at.means),
                          optional_argument(at.inverses),
                          optional_argument(at.residual),
                          optional_argument(at.sum),
                          optional_argument(at.mask),
                          optional_argument(at.ratio),
                          optional_argument(at.mode)};
  add_integers(words, {rows.count, rows.size});
  words.push_back(epsilon_of(request));
  add_integers(words, {scale->step, bias->step});
  const Refusal refused = add_dropout_words(words, request, x);
  add_integers(words, {scale->row_step, bias->row_step});
  const DataType ratio = at.ratio < 0 ? DataType::kFloat32 : input(at.ratio).dtype;
  const DataType y = request.has_output(0) ? request.outputs[0].dtype : numbers;
  const std::string text = typedefs({{"og_t", text_type(numbers)},
                                     {"og_x", text_type(request.inputs[0].dtype)},
                                     {"og_y", text_type(y)},
                                     {"og_ratio", text_type(ratio)}}) +
                           random_text() + kStatistics + kForward;
  KernelOffer offer;
  launches.push_back(column_kernel(request, rows.columns(), text, "og_main", std::move(words)));
  launches.back().keeps = refused.record;
  offer.kernel = prepared(std::move(launches), "rows of " + std::to_string(rows.size));
  offer.kernel.scratch_bytes = scratch_bytes;
  return offer;
}

KernelOffer offer_norm(const KernelRequest& request) {
  const auto first = static_cast<int>(request.inputs.size());
  return offer_forward(request, {.bias = request.has_input(2) ? 2 : -1,
                                 .means = request.has_output(1) ? first + 1 : -1,
                                 .inverses = request.has_output(2) ? first + 2 : -1});
}

KernelOffer offer_fused_norm(const KernelRequest& request) {
  const Dims& x = request.inputs[0].dims;
  const auto first = static_cast<int>(request.inputs.size());
  const bool drops = request.node.int_attribute("drops", 0) != 0;
  const auto is_scalar = [&](std::size_t i, DataType dtype) {
    return !request.has_input(i) ||
           (request.inputs[i].dims.num_elements() == 1 &&
            (dtype == DataType::kUndefined ? is_number(request.inputs[i].dtype)
                                           : request.inputs[i].dtype == dtype));
  };
  if (request.inputs[0].dtype != DataType::kFloat32 ||
      request.inputs[1].dtype != DataType::kFloat32 || request.inputs[1].dims != x ||
      !request.has_output(1) || request.outputs[1].dtype != DataType::kFloat32) {
    return KernelOffer::decline("a residual of another type or shape");
  }
  if (!is_scalar(4, DataType::kUndefined) || !is_scalar(5, DataType::kBool)) {
    return KernelOffer::decline("ratio and mode are not both scalars");
  }
  KernelOffer offer = offer_forward(request, {.residual = 1,
                                              .scale = 2,
                                              .bias = request.has_input(3) ? 3 : -1,
                                              .ratio = drops && request.has_input(4) ? 4 : -1,
                                              .mode = drops && request.has_input(5) ? 5 : -1,
                                              .sum = first + 1,
                                              .mask = request.has_output(2) ? first + 2 : -1});
  offer.kernel.in_place = {{0, 1}, {1, 1}};
  return offer;
}

KernelOffer offer_backward(const KernelRequest& request, bool is_fused) {
  const Dims& x = request.inputs[1].dims;
  const Rows rows = rows_of(request, x);
  const DataType numbers = numbers_of(request, 1);
  const auto first = static_cast<int>(request.inputs.size());
  const bool has_shapes = request.inputs[0].dims == x && request.outputs.size() >= 3 &&
                          request.inputs[2].dims.num_elements() == rows.size;
  if (!has_shapes) return KernelOffer::decline("shapes do not match");
  if (!is_number(numbers) || !fits(request.inputs[0], numbers, true) ||
      !fits(request.inputs[2], numbers, false) || !fits(request.outputs[0], numbers, true) ||
      !std::ranges::all_of(std::span(request.outputs).subspan(1), [&](const TensorDesc& output) {
        return fits(output, numbers, false);
      })) {
    return KernelOffer::decline("operands of other types");
  }
  const bool has_more = is_fused && request.has_input(3);
  const bool has_mask = is_fused && request.has_input(4);
  const bool has_sums = is_fused && request.has_output(4);
  if (has_more && (request.inputs[3].dims != x || request.inputs[3].dtype != numbers)) {
    return KernelOffer::decline("shapes do not match");
  }
  if (has_mask && (request.inputs[4].dims != x || request.inputs[4].dtype != DataType::kBool ||
                   !request.has_input(5) || request.inputs[5].dims.num_elements() != 1 ||
                   request.inputs[5].dtype != numbers || !request.has_output(3))) {
    return KernelOffer::decline("shapes do not match");
  }
  if (has_sums && !has_mask && !request.has_output(0)) {
    return KernelOffer::decline("sums of a result that is not stored");
  }
  const auto result = [&](int i) {
    return request.has_output(static_cast<std::size_t>(i)) ? Word::argument(first + i)
                                                           : optional_argument(-1);
  };
  Columns places{.count = rows.size, .length = rows.count, .are_adjacent = true};
  places.splits = splits_for(places);
  const auto scratch = first + static_cast<int>(request.outputs.size());
  const std::int64_t statistics_bytes = rows.count * 16;
  std::vector<Word> words{Word::argument(0),
                          Word::argument(1),
                          Word::argument(2),
                          result(0),
                          result(1),
                          result(2),
                          optional_argument(has_more ? 3 : -1),
                          optional_argument(has_mask ? 4 : -1),
                          optional_argument(has_mask ? 5 : -1),
                          optional_argument(has_mask ? first + 3 : -1),
                          has_sums ? result(4) : optional_argument(-1),
                          Word::argument(scratch),
                          Word::argument(scratch, statistics_bytes)};
  add_integers(words, {rows.count, rows.size});
  words.push_back(epsilon_of(request));
  words.push_back(Word::of(std::int64_t{places.splits}));
  const DataType ds = request.has_output(0) ? request.outputs[0].dtype : numbers;
  const std::string text = typedefs({{"og_t", text_type(numbers)},
                                     {"og_x", text_type(request.inputs[1].dtype)},
                                     {"og_dy", text_type(request.inputs[0].dtype)},
                                     {"og_ds", text_type(ds)}}) +
                           kStatistics + kGradient;
  std::vector<TextKernel> launches{column_kernel(request, rows.columns(), text, "og_rows", words)};
  if (request.has_output(1) || request.has_output(2) || has_sums) {
    launches.push_back(column_kernel(request, places, text, "og_places", words));
    launches.push_back(text_kernel_over(request, 3 * rows.size, std::string(block_text()) + text,
                                        "og_combine", words));
  }
  KernelOffer offer;
  offer.kernel = prepared(std::move(launches), "rows of " + std::to_string(rows.size));
  offer.kernel.scratch_bytes = statistics_bytes + std::int64_t{3} * places.splits * rows.size * 8;
  return offer;
}

KernelOffer offer_grad(const KernelRequest& request) { return offer_backward(request, false); }
KernelOffer offer_fused_grad(const KernelRequest& request) { return offer_backward(request, true); }

}  // namespace

void register_layer_normalization_cuda(opdef::KernelRegistry& registry) {
  registry.add("", "LayerNormalization", 0, offer_norm);
  registry.add(ir::kFunctionDomain, "LayerNormalizationGrad", 0, offer_grad);
  registry.add(ir::kFusedDomain, opdef::kFusedLayerNorm, 0, offer_fused_norm);
  registry.add(ir::kFusedDomain, opdef::kFusedLayerNormGrad, 0, offer_fused_grad);
}

}  // namespace onnxgrad::ops::layer_normalization_cuda
