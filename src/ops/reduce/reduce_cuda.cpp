#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/visit_types.h"
#include "ops/block_text_cuda.h"
#include "ops/kernel_support.h"
#include "ops/kernel_support_cuda.h"

// Reductions over any axes. Adjacent axes that are all reduced or all kept are merged; a column of
// a block (ops/block_text_cuda.h) is an element of the result. Few long columns are split among
// blocks, whose results a second kernel combines in order. Sums of floating-point numbers are
// added up in double, as on the CPU.

namespace onnxgrad::ops::reduce_cuda {
namespace {

using device::cuda::Word;

constexpr std::int64_t kMostAxes = 4;  // merged ones of each kind

struct Axes {
  std::vector<std::pair<std::int64_t, std::int64_t>> steps;  // size, stride; innermost first
  std::int64_t count = 1;

  void add_words(std::vector<Word>& words) const {
    words.push_back(Word::of(std::max<std::int64_t>(std::ssize(steps), 1)));
    for (std::size_t i = 0; i < kMostAxes; ++i) {
      const auto [size, stride] =
          i < steps.size() ? steps[i] : std::pair<std::int64_t, std::int64_t>{1, 0};
      add_integers(words, {size, stride});
    }
  }
};

struct Space {
  Axes kept, reduced;
  bool keeps_last = false;
};

Space merge_axes(const Dims& dims, const std::vector<bool>& is_reduced) {
  Space space;
  std::int64_t stride = 1;
  std::optional<bool> last;
  for (std::size_t i = dims.rank(); i-- > 0;) {
    if (dims[i] == 1) continue;
    Axes& axes = is_reduced[i] ? space.reduced : space.kept;
    if (last == is_reduced[i]) {
      axes.steps.back().first *= dims[i];
    } else {
      axes.steps.emplace_back(dims[i], stride);
    }
    if (!last) space.keeps_last = !is_reduced[i];
    last = is_reduced[i];
    axes.count *= dims[i];
    stride *= dims[i];
  }
  return space;
}

/// Formulas of a reduction; `a` and `b` are accumulators, `x` is an element, `n` the number of
/// elements, `shift` the largest one.
struct Kind {
  const char* fold = "og_sum";
  const char* map = "(og_acc)x";
  const char* finish = "a";
  bool accumulates_elements = false;  ///< in the type of x
  bool takes_logarithm_of_exp = false;
};

constexpr const char* kText = R"(
template <class W>
OG_FUNCTION og_i64 og_place(const W& a, int first, og_i64 i) {
  const int axes = (int)a.integer(first);
  og_i64 at = 0;
  for (int k = 0; k + 1 < axes; ++k) {
    const og_i64 size = a.integer(first + 1 + 2 * k);
    at += i % size * a.integer(first + 2 + 2 * k);
    i /= size;
  }
  return at + i * a.integer(first + 2 * axes);
}

// Words: x, y, parts, shifts, results, elements of each, splits, start; kept axes; reduced axes.
OG_KERNEL(og_main, 26) {
  const og_t* const x = a.pointer<og_t>(0);
  const og_i64 columns = a.integer(4), length = a.integer(5), splits = a.integer(6);
  const og_t* const shifts = a.pointer<og_t>(3);
  const og_i64 begin = length * blockIdx.y / splits, end = length * (blockIdx.y + 1) / splits;
  for (og_i64 first = (og_i64)blockIdx.x * blockDim.x; first < columns; first += og_columns()) {
    const og_i64 column = first + threadIdx.x;
    og_acc total = og_start(a);
    og_t shift = 0;
    if (column < columns) {
      if (shifts != 0) shift = og_shift(shifts[column]);
      const og_t* const from = x + og_place(a, 8, column);
      for (og_i64 r = begin + threadIdx.y; r < end; r += blockDim.y) {
        total = og_fold::of(total, og_map(from[og_place(a, 17, r)], shift));
      }
    }
    total = og_fold_rows<og_fold>(total);
    if (threadIdx.y != 0 || column >= columns) continue;
    if (splits > 1) {
      a.pointer<og_acc>(2)[blockIdx.y * columns + column] = total;
    } else {
      a.pointer<og_t>(1)[column] = og_finish(total, length, shift);
    }
  }
}

OG_KERNEL(og_combine, 26) {
  const og_acc* const parts = a.pointer<og_acc>(2);
  const og_t* const shifts = a.pointer<og_t>(3);
  const og_i64 columns = a.integer(4);
  for (og_i64 i = og_first(); i < columns; i += og_stride()) {
    og_acc total = parts[i];
    for (og_i64 k = 1; k < a.integer(6); ++k) {
      total = og_fold::of(total, parts[k * columns + i]);
    }
    const og_t shift = shifts != 0 ? og_shift(shifts[i]) : (og_t)0;
    a.pointer<og_t>(1)[i] = og_finish(total, a.integer(5), shift);
  }
}
)";

std::string text_of(const Kind& kind, DataType dtype) {
  const bool is_floating = dtype == DataType::kFloat32 || dtype == DataType::kFloat64;
  const char* wide = is_floating ? "double" : "og_u64";
  const std::string_view type = text_type(dtype);
  std::string text = typedefs({{"og_t", type},
                               {"og_acc", kind.accumulates_elements ? type : wide},
                               {"og_fold", kind.fold}});
  text += fmt::format(
      "template <class W> OG_FUNCTION og_acc og_start(const W& a) {{ return (og_acc)a.{}(7); }}\n",
      is_floating ? "real" : "integer");
  text += "OG_FUNCTION og_t og_shift(og_t x) { return ";
  text += is_floating ? "x - x == 0 ? x : (og_t)0; }\n" : "x; }\n";
  text += fmt::format("OG_FUNCTION og_acc og_map(og_t x, og_t shift) {{ return {}; }}\n", kind.map);
  text += fmt::format(
      "OG_FUNCTION og_t og_finish(og_acc a, og_i64 n, og_t shift) {{ return (og_t)({}); }}\n",
      kind.finish);
  return text + kText;
}

Word start_of(const Kind& kind, DataType dtype) {
  const std::string_view fold = kind.fold;
  if (fold == "og_sum" || fold == "og_product") {
    const int start = fold == "og_product" ? 1 : 0;
    const bool is_floating = dtype == DataType::kFloat32 || dtype == DataType::kFloat64;
    return is_floating ? Word::of(static_cast<double>(start))
                       : Word::of(static_cast<std::int64_t>(start));
  }
  const bool is_max = fold == "og_largest";
  Word word;
  base::visit_types<float, double, std::int64_t, std::int32_t, std::uint64_t, std::uint32_t,
                    std::int8_t, std::uint8_t, bool>(dtype, [&]<class T>(T) {
    using Limits = std::numeric_limits<T>;
    if constexpr (std::is_floating_point_v<T>) {
      constexpr double kInfinity = std::numeric_limits<double>::infinity();
      word = Word::of(is_max ? -kInfinity : kInfinity);
    } else {
      word = Word::of(static_cast<std::int64_t>(is_max ? Limits::lowest() : Limits::max()));
    }
  });
  return word;
}

/// Appends the launches of one reduction of input 0; `shifts`: argument, or -1.
void add_launches(const KernelRequest& request, const Kind& kind, const Space& space, int shifts,
                  std::vector<device::cuda::TextKernel>& launches, std::int64_t& scratch_bytes) {
  Columns columns{
      .count = space.kept.count, .length = space.reduced.count, .are_adjacent = space.keeps_last};
  columns.splits = splits_for(columns);
  const auto result = static_cast<std::int64_t>(request.inputs.size());
  std::vector<Word> words{Word::argument(0), Word::argument(result), Word::argument(result + 1),
                          optional_argument(shifts)};
  add_integers(words, {columns.count, columns.length, columns.splits});
  words.push_back(start_of(kind, request.inputs[0].dtype));
  space.kept.add_words(words);
  space.reduced.add_words(words);
  const std::string text = text_of(kind, request.inputs[0].dtype);
  launches.push_back(column_kernel(request, columns, text, "og_main", words));
  if (columns.splits == 1) return;
  launches.push_back(text_kernel_over(request, columns.count, std::string(block_text()) + text,
                                      "og_combine", words));
  scratch_bytes = std::max<std::int64_t>(scratch_bytes, columns.count * columns.splits * 8);
}

std::optional<std::vector<bool>> reduced_axes(const KernelRequest& request) {
  const std::size_t rank = request.inputs[0].dims.rank();
  std::vector<std::int64_t> axes;
  if (request.has_input(1)) {
    const auto planned = planned_ints(request, 1);
    if (!planned) return std::nullopt;
    axes = *planned;
  }
  const bool keeps_all = axes.empty() && request.node.int_attribute("noop_with_empty_axes") != 0;
  std::vector<bool> is_reduced(rank, axes.empty() && !keeps_all);
  for (const std::int64_t axis : axes) {
    is_reduced[static_cast<std::size_t>(normalize_axis(axis, rank))] = true;
  }
  return is_reduced;
}

constexpr Kind kMax{.fold = "og_largest", .map = "x", .accumulates_elements = true};
constexpr Kind kMin{.fold = "og_least", .map = "x", .accumulates_elements = true};

KernelOffer offer_kind(const KernelRequest& request, const Kind& kind, std::string_view types) {
  const DataType dtype = request.inputs[0].dtype;
  const std::string_view type = text_type(dtype);
  if (type.empty() ||
      types.find(std::string(" ") + std::string(type) + " ") == std::string_view::npos) {
    return decline_dtype(request, dtype);
  }
  const auto is_reduced = reduced_axes(request);
  if (!is_reduced) return KernelOffer::decline("the axes are not known before the step runs");
  const Space space = merge_axes(request.inputs[0].dims, *is_reduced);
  if (std::max(std::ssize(space.kept.steps), std::ssize(space.reduced.steps)) > kMostAxes) {
    return KernelOffer::decline("more than 4 separate groups of axes");
  }
  std::vector<device::cuda::TextKernel> launches;
  std::int64_t scratch_bytes = 0;
  const auto result = static_cast<int>(request.inputs.size());
  if (kind.takes_logarithm_of_exp) add_launches(request, kMax, space, -1, launches, scratch_bytes);
  add_launches(request, kind, space, kind.takes_logarithm_of_exp ? result : -1, launches,
               scratch_bytes);
  KernelOffer offer;
  offer.kernel = prepared(std::move(launches),
                          fmt::format("reduction of {} to {}",
                                      space.kept.count * space.reduced.count, space.kept.count));
  offer.kernel.scratch_bytes = scratch_bytes;
  return offer;
}

constexpr std::string_view kFloats = " float double ";
constexpr std::string_view kNumbers = " float double og_i64 og_i32 og_u64 og_u32 ";
constexpr std::string_view kOrdered = " float double og_i64 og_i32 og_u64 og_u32 og_i8 og_u8 ";

bool is_float(const KernelRequest& request) {
  return request.inputs[0].dtype == DataType::kFloat32 ||
         request.inputs[0].dtype == DataType::kFloat64;
}

KernelOffer offer_sum(const KernelRequest& request) { return offer_kind(request, {}, kNumbers); }

KernelOffer offer_mean(const KernelRequest& request) {
  const DataType dtype = request.inputs[0].dtype;
  const bool is_unsigned = dtype == DataType::kUint32 || dtype == DataType::kUint64;
  return offer_kind(request,
                    {.finish = is_float(request) ? "a / (double)n"
                               : is_unsigned     ? "n == 0 ? 0 : a / (og_u64)n"
                                                 : "n == 0 ? 0 : (og_i64)a / n"},
                    kNumbers);
}

KernelOffer offer_product(const KernelRequest& request) {
  return offer_kind(request, {.fold = "og_product"}, kNumbers);
}

KernelOffer offer_max(const KernelRequest& request) { return offer_kind(request, kMax, kOrdered); }
KernelOffer offer_min(const KernelRequest& request) { return offer_kind(request, kMin, kOrdered); }

KernelOffer offer_sum_square(const KernelRequest& request) {
  return offer_kind(request, {.map = "(og_acc)x * (og_acc)x"}, kNumbers);
}

KernelOffer offer_l1(const KernelRequest& request) {
  return offer_kind(request, {.map = "x < 0 ? 0 - (og_acc)x : (og_acc)x"}, kNumbers);
}

KernelOffer offer_l2(const KernelRequest& request) {
  return offer_kind(request, {.map = "(og_acc)x * (og_acc)x", .finish = "sqrt((double)a)"},
                    kNumbers);
}

KernelOffer offer_log_sum(const KernelRequest& request) {
  return offer_kind(request, {.finish = "log((double)a)"}, kFloats);
}

KernelOffer offer_log_sum_exp(const KernelRequest& request) {
  return offer_kind(request,
                    {.map = "(og_acc)og_exp(x - shift)",
                     .finish = "log(a) + (double)shift",
                     .takes_logarithm_of_exp = true},
                    kFloats);
}

}  // namespace

void register_reduce_cuda(opdef::KernelRegistry& registry) {
  registry.add("", "ReduceSum", 0, offer_sum);
  registry.add("", "ReduceMean", 0, offer_mean);
  registry.add("", "ReduceProd", 0, offer_product);
  registry.add("", "ReduceMax", 0, offer_max);
  registry.add("", "ReduceMin", 0, offer_min);
  registry.add("", "ReduceSumSquare", 0, offer_sum_square);
  registry.add("", "ReduceL1", 0, offer_l1);
  registry.add("", "ReduceL2", 0, offer_l2);
  registry.add("", "ReduceLogSum", 0, offer_log_sum);
  registry.add("", "ReduceLogSumExp", 0, offer_log_sum_exp);
}

}  // namespace onnxgrad::ops::reduce_cuda
