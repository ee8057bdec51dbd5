#include "ops/tensor/sorted_scatter_cuda.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/rounding.h"
#include "ops/kernel_support_cuda.h"

namespace onnxgrad::ops {

using device::cuda::TextKernel;
using device::cuda::Word;

namespace {

constexpr std::int64_t kRun = 512;   // elements that a block sorts
constexpr std::int64_t kPiece = 16;  // sorted updates that a thread combines
constexpr std::int64_t kMerged = 8;  // elements that a thread merges

constexpr const char* kSort = R"(
// Runs of og_run targets, sorted by merging in shared memory, with the numbers of their updates.
OG_KERNEL(og_sort, 3 + og_target_words) {
  OG_SHARED og_i64 keys[og_run];
  OG_SHARED og_u16 places[og_run];
  const og_i64 count = a.integer(2);
  for (og_i64 first = (og_i64)blockIdx.x * og_run; first < count;
       first += (og_i64)gridDim.x * og_run) {
    for (int k = threadIdx.x; k < og_run; k += 256) {
      keys[k] = first + k < count ? og_target(a, 3, first + k) : 0x7fffffffffffffffll;
      places[k] = (og_u16)k;
    }
    __syncthreads();
    for (int width = 1; width < og_run; width *= 2) {
      og_i64 key[og_run / 256];
      og_u16 place[og_run / 256];
      int to[og_run / 256];
      for (int i = 0; i < og_run / 256; ++i) {
        const int k = threadIdx.x + i * 256;
        key[i] = keys[k];
        place[i] = places[k];
        const bool is_left = k / width % 2 == 0;
        const int other = k / width * width + (is_left ? width : -width);
        int low = 0, high = width;  // elements of the other run that precede this one
        while (low < high) {
          const int half = (low + high) / 2;
          const og_i64 compared = keys[other + half];
          if (compared < key[i] || (!is_left && compared == key[i])) low = half + 1;
          else high = half;
        }
        to[i] = (is_left ? k : k - width) + low;
      }
      __syncthreads();
      for (int i = 0; i < og_run / 256; ++i) {
        keys[to[i]] = key[i];
        places[to[i]] = place[i];
      }
      __syncthreads();
    }
    for (int k = threadIdx.x; k < og_run && first + k < count; k += 256) {
      a.pointer<og_i64>(0)[first + k] = keys[k];
      a.pointer<og_i64>(1)[first + k] = first + places[k];
    }
  }
}
)";

constexpr const char* kMerge = R"(
// Two sorted runs of `width` elements become one; a thread finds where its elements begin.
OG_KERNEL(og_merge, 6) {
  const og_i64* const keys = a.pointer<const og_i64>(0);
  const og_i64* const order = a.pointer<const og_i64>(1);
  const og_i64 count = a.integer(4), width = a.integer(5);
  for (og_i64 t = og_first(); t * og_merged < count; t += og_stride()) {
    const og_i64 first = t * og_merged;
    const og_i64 begin = first / (2 * width) * (2 * width);
    const og_i64 middle = begin + width < count ? begin + width : count;
    const og_i64 end = middle + width < count ? middle + width : count;
    const og_i64 ahead = first - begin;
    og_i64 low = ahead > end - middle ? ahead - (end - middle) : 0;
    og_i64 high = ahead < middle - begin ? ahead : middle - begin;
    while (low < high) {
      const og_i64 half = (low + high) / 2;
      if (keys[begin + half] <= keys[middle + ahead - half - 1]) low = half + 1;
      else high = half;
    }
    og_i64 left = begin + low, right = middle + ahead - low;
    for (og_i64 place = first; place < first + og_merged && place < end; ++place) {
      const bool is_left = left < middle && (right >= end || keys[left] <= keys[right]);
      const og_i64 from = is_left ? left : right;
      if (is_left) ++left;
      else ++right;
      a.pointer<og_i64>(2)[place] = keys[from];
      a.pointer<og_i64>(3)[place] = order[from];
    }
  }
}
)";

constexpr const char* kApply = R"(
// Words of both: keys, order, result, parts of places that began before a piece, parts of places
// that go on after it; updates, elements of a block, pieces.
OG_KERNEL(og_apply, 8 + og_more_words) {
  const og_i64* const keys = a.pointer<const og_i64>(0);
  const og_i64* const order = a.pointer<const og_i64>(1);
  og_T* const y = a.pointer<og_T>(2);
  const og_i64 count = a.integer(5), block = a.integer(6);
  for (og_i64 i = og_first(); i < a.integer(7) * block; i += og_stride()) {
    const og_i64 piece = i / block, column = i % block;
    const og_i64 end = (piece + 1) * og_piece < count ? (piece + 1) * og_piece : count;
    for (og_i64 k = piece * og_piece; k < end;) {
      const og_i64 target = keys[k];
      const bool begins = k == 0 || keys[k - 1] != target;
      og_T total = og_update(a, 8, order[k], column);
      for (++k; k < end && keys[k] == target; ++k) {
        total = og_reduce(total, og_update(a, 8, order[k], column));
      }
      if (target < 0) continue;
      if (!begins) {
        a.pointer<og_T>(3)[i] = total;
      } else if (k < count && keys[k] == target) {
        a.pointer<og_T>(4)[i] = total;
      } else {
        og_T& result = y[og_element(a, 8, target, column)];
        result = og_finish(a, 8, result, total);
      }
    }
  }
}

// Places whose updates are in several pieces.
OG_KERNEL(og_join, 8 + og_more_words) {
  const og_i64* const keys = a.pointer<const og_i64>(0);
  og_T* const y = a.pointer<og_T>(2);
  const og_T* const more = a.pointer<const og_T>(3);
  const og_i64 count = a.integer(5), block = a.integer(6);
  for (og_i64 i = og_first(); i < (a.integer(7) - 1) * block; i += og_stride()) {
    og_i64 piece = i / block;
    const og_i64 column = i % block;
    og_i64 end = (piece + 1) * og_piece;
    const og_i64 target = keys[end - 1];
    if (target < 0 || keys[end] != target) continue;
    if (piece > 0 && keys[end - og_piece - 1] == target) continue;  // it began before
    og_T total = a.pointer<const og_T>(4)[i];
    while (end < count && keys[end] == target) {
      ++piece;
      total = og_reduce(total, more[piece * block + column]);
      end = end + og_piece < count ? end + og_piece : count;
    }
    og_T& result = y[og_element(a, 8, target, column)];
    result = og_finish(a, 8, result, total);
  }
}
)";

}  // namespace

std::string dense_updates_text() {
  return R"(
template <class W>
OG_FUNCTION og_T og_update(const W& a, int w, og_i64 t, og_i64 column) {
  return a.template pointer<const og_T>(w)[t * a.integer(w + 1) + column];
}
template <class W>
OG_FUNCTION og_i64 og_element(const W& a, int w, og_i64 target, og_i64 column) {
  return target + column;
}
)";
}

std::int64_t append_scatter(const opdef::KernelRequest& request, const SortedScatter& scatter,
                            std::vector<TextKernel>& launches) {
  std::int64_t bytes = scatter.scratch_bytes;
  if (scatter.count == 0 || scatter.block == 0) return bytes;
  const auto reserve = [&](std::int64_t wanted) {
    const Word word = Word::argument(scatter.scratch, bytes);
    bytes += base::round_up(wanted, std::int64_t{64});
    return word;
  };
  const std::int64_t list = scatter.count * 8;
  Word keys = reserve(list);
  Word order = reserve(list);
  const std::int64_t pieces = base::ceil_div(scatter.count, kPiece);
  const std::int64_t part = pieces > 1 ? pieces * scatter.block * scatter.element_bytes : 0;
  const Word before = reserve(part);
  const Word after = reserve(part);
  const std::string sort = scatter.text +
                           fmt::format("enum {{ og_run = {}, og_target_words = {} }};\n", kRun,
                                       scatter.target_words.size()) +
                           kSort;
  std::vector<Word> words{keys, order, Word::of(scatter.count)};
  words.insert(words.end(), scatter.target_words.begin(), scatter.target_words.end());
  launches.push_back(text_kernel_over(request, base::ceil_div(scatter.count, kRun) * 256, sort,
                                      "og_sort", std::move(words)));
  if (scatter.count > kRun) {
    const std::string merge = fmt::format("enum {{ og_merged = {} }};\n", kMerged) + kMerge;
    Word to_keys = reserve(list);
    Word to_order = reserve(list);
    for (std::int64_t width = kRun; width < scatter.count; width *= 2) {
      launches.push_back(text_kernel_over(
          request, base::ceil_div(scatter.count, kMerged), merge, "og_merge",
          {keys, order, to_keys, to_order, Word::of(scatter.count), Word::of(width)}));
      std::swap(keys, to_keys);
      std::swap(order, to_order);
    }
  }
  const std::string apply = scatter.text +
                            fmt::format("enum {{ og_piece = {}, og_more_words = {} }};\n", kPiece,
                                        scatter.apply_words.size()) +
                            kApply;
  std::vector<Word> apply_words{keys,
                                order,
                                scatter.result,
                                before,
                                after,
                                Word::of(scatter.count),
                                Word::of(scatter.block),
                                Word::of(pieces)};
  apply_words.insert(apply_words.end(), scatter.apply_words.begin(), scatter.apply_words.end());
  launches.push_back(
      text_kernel_over(request, pieces * scatter.block, apply, "og_apply", apply_words));
  if (pieces > 1) {
    launches.push_back(
        text_kernel_over(request, (pieces - 1) * scatter.block, apply, "og_join", apply_words));
  }
  return bytes;
}

}  // namespace onnxgrad::ops
