#include "ops/index_walk_cuda.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "opdef/expr_text.h"

namespace onnxgrad::ops {

using device::cuda::TextKernel;
using device::cuda::Word;

namespace {

constexpr const char* kHelpers = R"(
struct og_place {
  og_i64 from, to;
};
// The place of element `index`. Words from `w` on: the number of axes, then size and two strides of
// each, the innermost first. Divisions of 32 bits are several times faster.
template <int n>
OG_FUNCTION og_place og_walk(const og_words<n>& a, int w, og_i64 index) {
  og_place at;
  at.from = 0;
  at.to = 0;
  const int rank = (int)a.integer(w);
  for (int k = 0; k < rank; ++k) {
    const og_i64 size = a.integer(w + 1 + 3 * k);
    const og_i64 next = (og_u64)(index | size) >> 32 == 0 ? (og_i64)((og_u32)index / (og_u32)size)
                                                          : index / size;
    const og_i64 i = index - next * size;
    index = next;
    at.from += i * a.integer(w + 2 + 3 * k);
    at.to += i * a.integer(w + 3 + 3 * k);
  }
  return at;
}
// An index in [-size, size) as one in [0, size). Others are refused and become -1.
OG_FUNCTION og_i64 og_checked(og_i64 index, og_i64 size, og_u64* cells, og_i64 record,
                              og_i64 position) {
  if (index >= -size && index < size) return index < 0 ? index + size : index;
  og_refuse(cells, record, index, position);
  return -1;
}
)";

constexpr const char* kCopy = R"(
OG_KERNEL(og_copy, 28) {
  const og_T* const x = a.pointer<const og_T>(0);
  og_T* const y = a.pointer<og_T>(1);
  for (og_i64 i = og_first(); i < a.integer(2); i += og_stride()) {
    const og_place at = og_walk(a, 3, i);
    y[at.to] = x[at.from];
  }
}
)";

constexpr const char* kBytes = R"(
OG_KERNEL(og_bytes, 3) {
  const og_T* const x = a.pointer<const og_T>(0);
  og_T* const y = a.pointer<og_T>(1);
  if (x == y) return;
  for (og_i64 i = og_first(); i < a.integer(2); i += og_stride()) y[i] = x[i];
}
)";

const char* unsigned_name(std::int64_t bytes) {
  if (bytes == 1) return "og_u8";
  if (bytes == 2) return "og_u16";
  return bytes == 4 ? "og_u32" : "og_u64";
}

// Merged axes, outermost first; none of size 1.
std::vector<WalkAxis> merged(const std::vector<WalkAxis>& axes) {
  std::vector<WalkAxis> result;
  for (const WalkAxis& axis : axes) {
    if (axis.size == 1) continue;
    if (!result.empty()) {
      WalkAxis& outer = result.back();
      if (outer.from == axis.size * axis.from && outer.to == axis.size * axis.to) {
        outer = {.size = outer.size * axis.size, .from = axis.from, .to = axis.to};
        continue;
      }
    }
    result.push_back(axis);
  }
  return result;
}

}  // namespace

bool append_walk(std::vector<Word>& words, std::vector<WalkAxis> axes) {
  axes = merged(axes);
  if (axes.size() > kWalkAxes) return false;
  words.push_back(Word::of(static_cast<std::int64_t>(axes.size())));
  std::ranges::reverse(axes);
  axes.resize(kWalkAxes);
  for (const WalkAxis& axis : axes) {
    for (const std::int64_t number : {axis.size, axis.from, axis.to}) {
      words.push_back(Word::of(number));
    }
  }
  return true;
}

std::string typed_text(const std::string& type) {
  return fmt::format("typedef {} og_T;\n{}{}", type, fault_text(), kHelpers);
}

std::string move_text(std::int64_t bytes) { return typed_text(unsigned_name(bytes)); }

std::string walk_type(DataType dtype) {
  const bool has_numbers =
      is_integer(dtype) || dtype == DataType::kFloat32 || dtype == DataType::kFloat64;
  return has_numbers ? std::string(opdef::text_type(dtype)) : std::string();
}

std::int64_t unit_of(std::int64_t run_bytes) {
  for (const std::int64_t unit : {8, 4, 2}) {
    if (run_bytes % unit == 0) return unit;
  }
  return 1;
}

std::optional<TextKernel> copy_kernel(const KernelRequest& request, CopyRequest copy,
                                      std::int64_t from_argument, std::int64_t to_argument) {
  std::vector<WalkAxis> axes;
  std::int64_t count = 1;
  for (std::size_t i = 0; i < copy.sizes.size(); ++i) {
    axes.push_back(
        {.size = copy.sizes[i], .from = copy.source_strides[i], .to = copy.target_strides[i]});
    count *= copy.sizes[i];
  }
  std::int64_t bytes = copy.element_bytes;
  if (bytes > 8) {  // elements of 16 bytes are two
    for (WalkAxis& axis : axes) {
      axis.from *= 2;
      axis.to *= 2;
    }
    axes.push_back({.size = 2, .from = 1, .to = 1});
    copy.source_offset *= 2;
    copy.target_offset *= 2;
    count *= 2;
    bytes = 8;
  }
  axes = merged(axes);
  // Runs that are dense in both views are copied in larger units.
  while (bytes < 8 && count > 0 && !axes.empty() && axes.back().from == 1 && axes.back().to == 1 &&
         axes.back().size % 2 == 0 && copy.source_offset % 2 == 0 && copy.target_offset % 2 == 0 &&
         std::all_of(axes.begin(), axes.end() - 1,
                     [](const WalkAxis& axis) { return axis.from % 2 == 0 && axis.to % 2 == 0; })) {
    for (WalkAxis& axis : axes) {
      axis.from /= 2;
      axis.to /= 2;
    }
    axes.back() = {.size = axes.back().size / 2, .from = 1, .to = 1};
    copy.source_offset /= 2;
    copy.target_offset /= 2;
    count /= 2;
    bytes *= 2;
  }
  std::vector<Word> words{Word::argument(from_argument, copy.source_offset * bytes),
                          Word::argument(to_argument, copy.target_offset * bytes), Word::of(count)};
  if (!append_walk(words, axes)) return std::nullopt;
  return text_kernel_over(request, count, move_text(bytes) + kCopy, "og_copy", std::move(words));
}

KernelOffer offer_view_on_card(const KernelRequest& request, const CopyRequest& copy) {
  if (copy.element_bytes == 0) return decline_dtype(request, request.inputs[0].dtype);
  auto kernel = copy_kernel(request, copy, 0, static_cast<std::int64_t>(request.inputs.size()));
  if (!kernel) return KernelOffer::decline("views of too many axes");
  KernelOffer offer;
  offer.kernel = prepared(*std::move(kernel), "strided copy");
  return offer;
}

TextKernel bytes_kernel(const KernelRequest& request, std::int64_t bytes,
                        std::int64_t from_argument, std::int64_t to_argument) {
  const std::int64_t unit = unit_of(bytes);
  return text_kernel_over(
      request, bytes / unit, move_text(unit) + kBytes, "og_bytes",
      {Word::argument(from_argument), Word::argument(to_argument), Word::of(bytes / unit)});
}

Refusal checked_indices(const KernelRequest& request, std::size_t input,
                        std::vector<std::int64_t> sizes) {
  const auto raise = [source = index_source(request, input), sizes = std::move(sizes)](
                         std::int64_t value, std::int64_t position) {
    const auto at = static_cast<std::size_t>(position) % std::max<std::size_t>(sizes.size(), 1);
    throw_index_error(value, sizes.empty() ? 0 : sizes[at], source, position);
  };
  return refusal(request, raise);
}

KernelOffer offer_checked(const KernelRequest& request, std::vector<TextKernel> all,
                          const Refusal& checked, std::string label, std::size_t input,
                          const std::vector<std::int64_t>& sizes) {
  for (TextKernel& kernel : all) kernel.keeps = checked.record;
  KernelOffer offer;
  offer.kernel = prepared(std::move(all), std::move(label));
  note_index_check(request, offer, input, sizes);
  return offer;
}

}  // namespace onnxgrad::ops
