#include "ops/block_text_cuda.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "ops/kernel_support_cuda.h"

namespace onnxgrad::ops {

using device::cuda::TextKernel;
using device::cuda::Word;

std::string_view block_text() {
  return R"(
struct og_f16 { og_u16 bits; };
struct og_bf16 { og_u16 bits; };

OG_FUNCTION float og_get(float a) { return a; }
OG_FUNCTION double og_get(double a) { return a; }
OG_FUNCTION float og_get(og_f16 a) { return og_from_f16(a.bits); }
OG_FUNCTION float og_get(og_bf16 a) { return og_from_bf16(a.bits); }
template <class V>
OG_FUNCTION void og_set(float* to, og_i64 i, V a) { to[i] = (float)a; }
template <class V>
OG_FUNCTION void og_set(double* to, og_i64 i, V a) { to[i] = (double)a; }
template <class V>
OG_FUNCTION void og_set(og_f16* to, og_i64 i, V a) { to[i].bits = og_to_f16(og_odd(a)); }
template <class V>
OG_FUNCTION void og_set(og_bf16* to, og_i64 i, V a) { to[i].bits = og_to_bf16(og_odd(a)); }

OG_FUNCTION float og_nan() { return og_bits<float>(0x7fc00000u); }
OG_FUNCTION float og_infinity() { return og_bits<float>(0x7f800000u); }

struct og_sum {
  template <class T>
  OG_FUNCTION_MEMBER static T of(T a, T b) { return a + b; }
};
struct og_largest {
  template <class T>
  OG_FUNCTION_MEMBER static T of(T a, T b) { return og_max(a, b); }
};
struct og_least {
  template <class T>
  OG_FUNCTION_MEMBER static T of(T a, T b) { return og_min(a, b); }
};
struct og_product {
  template <class T>
  OG_FUNCTION_MEMBER static T of(T a, T b) { return a * b; }
};

// A value of at most 8 bytes for each thread of a block of 256.
OG_FUNCTION void* og_parts() {
  OG_SHARED og_u64 part[256];
  return part;
}

// The fold of the values of a column's threads, for all of them; blockDim.y is a power of two.
template <class Fold, class T>
OG_FUNCTION T og_fold_rows(T value) {
  T* const part = (T*)og_parts();
  const unsigned at = threadIdx.y * blockDim.x + threadIdx.x;
  __syncthreads();
  part[at] = value;
  for (unsigned n = blockDim.y / 2; n > 0; n /= 2) {
    __syncthreads();
    if (threadIdx.y < n) part[at] = Fold::of(part[at], part[at + n * blockDim.x]);
  }
  __syncthreads();
  return part[threadIdx.x];
}

// Two folds that wait together, with the bits of og_fold_rows.
template <class Fold, class T>
OG_FUNCTION void og_fold_two(T& first, T& second) {
  OG_SHARED og_u64 more[256];
  T* const one = (T*)og_parts();
  T* const two = (T*)(void*)more;
  const unsigned at = threadIdx.y * blockDim.x + threadIdx.x;
  __syncthreads();
  one[at] = first;
  two[at] = second;
  for (unsigned n = blockDim.y / 2; n > 0; n /= 2) {
    __syncthreads();
    if (threadIdx.y < n) {
      one[at] = Fold::of(one[at], one[at + n * blockDim.x]);
      two[at] = Fold::of(two[at], two[at + n * blockDim.x]);
    }
  }
  __syncthreads();
  first = one[threadIdx.x];
  second = two[threadIdx.x];
}

OG_FUNCTION og_i64 og_columns() { return (og_i64)gridDim.x * blockDim.x; }

// Places of a thread's elements among runs of `length` elements, `stride` apart.
struct og_walk {
  og_i64 length, stride, run, i, runs, rest;
  OG_FUNCTION_MEMBER og_walk(og_i64 length, og_i64 stride) : length(length), stride(stride) {
    run = threadIdx.y / length;
    i = threadIdx.y % length;
    runs = blockDim.y / length;
    rest = blockDim.y % length;
  }
  OG_FUNCTION_MEMBER og_i64 at() const { return run * stride + i; }
  OG_FUNCTION_MEMBER void next() {
    run += runs;
    i += rest;
    if (i >= length) {
      i -= length;
      ++run;
    }
  }
};
)";
}

std::string typedefs(std::initializer_list<std::pair<std::string_view, std::string_view>> types) {
  std::string text;
  for (const auto& [name, type] : types) text += fmt::format("typedef {} {};\n", type, name);
  return text;
}

std::array<unsigned, 2> block_of(const Columns& columns) {
  constexpr unsigned kThreads = 256;
  const auto power = [](std::int64_t most, std::int64_t wanted) {
    return std::bit_ceil(static_cast<unsigned>(std::clamp<std::int64_t>(wanted, 1, most)));
  };
  if (columns.are_adjacent) {
    const unsigned x = power(32, columns.count);
    return {x, kThreads / x};
  }
  const unsigned y = power(kThreads, columns.length);
  return {kThreads / y, y};
}

int splits_for(const Columns& columns) {
  constexpr std::int64_t kMost = 64;
  constexpr std::int64_t kBlocks = 512;   // keep a card busy
  constexpr std::int64_t kElements = 16;  // of a thread at least
  const auto [x, y] = block_of(columns);
  const std::int64_t blocks = (columns.count + x - 1) / x;
  if (blocks == 0) return 1;
  return static_cast<int>(std::clamp<std::int64_t>(
      std::min(kBlocks / blocks, columns.length / (kElements * y)), 1, kMost));
}

TextKernel column_kernel(const opdef::KernelRequest& request, const Columns& columns,
                         const std::string& text, const char* name, std::vector<Word> words) {
  TextKernel kernel =
      text_kernel(request, std::string(block_text()) + text, name, std::move(words));
  const auto [x, y] = block_of(columns);
  kernel.block = {x, y, 1};
  kernel.grid = {device::cuda::num_blocks(columns.count, static_cast<int>(x)),
                 static_cast<unsigned>(columns.splits), 1};
  return kernel;
}

std::vector<Word> argument_words(std::int64_t first, std::int64_t count) {
  std::vector<Word> words;
  for (std::int64_t i = first; i < first + count; ++i) words.push_back(Word::argument(i));
  return words;
}

Word optional_argument(std::int64_t argument, std::int64_t offset) {
  return argument < 0 ? Word::of(std::int64_t{0}) : Word::argument(argument, offset);
}

void add_integers(std::vector<Word>& words, std::initializer_list<std::int64_t> integers) {
  for (const std::int64_t integer : integers) words.push_back(Word::of(integer));
}

}  // namespace onnxgrad::ops
