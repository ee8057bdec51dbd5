#ifndef ONNXGRAD_OPS_BLOCK_TEXT_CUDA_H_
#define ONNXGRAD_OPS_BLOCK_TEXT_CUDA_H_

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "device/cuda/text_kernel.h"
#include "opdef/expr_text.h"
#include "opdef/kernel.h"

// Kernels whose blocks combine elements: reductions, normalisations, losses. A block has
// blockDim.x columns, results that are next to each other, and blockDim.y threads for the elements
// of each, whose values are folded in a fixed order.

namespace onnxgrad::ops {

/// Definitions for these texts: og_get and og_set of elements of every type, og_fold_rows<Fold>()
/// and og_fold_two<Fold>() with the folds og_sum, og_largest and og_least, og_walk over runs of
/// elements.
std::string_view block_text();

using opdef::text_type;

/// Lines `typedef <type> <name>;`.
std::string typedefs(std::initializer_list<std::pair<std::string_view, std::string_view>> types);

/// Elements of a column and how columns lie in memory.
struct Columns {
  std::int64_t count = 0;
  std::int64_t length = 0;    ///< elements of each
  bool are_adjacent = false;  ///< elements of one place of all columns are adjacent
  int splits = 1;             ///< parts of each column, for blocks of their own: blockIdx.y
};

/// Threads of a block for such columns: {columns, rows}; always 256, as small plans want.
std::array<unsigned, 2> block_of(const Columns& columns);

/// Parts that columns are split into, so that the card is busy. Depends on the columns alone.
int splits_for(const Columns& columns);

/// Prepares kernel `name` of block_text() + `text` for such columns. Their loop is
///   for (og_i64 first = (og_i64)blockIdx.x * blockDim.x; first < columns; first += og_columns())
device::cuda::TextKernel column_kernel(const opdef::KernelRequest& request, const Columns& columns,
                                       const std::string& text, const char* name,
                                       std::vector<device::cuda::Word> words);

/// Words for the addresses of arguments [first, first + count).
std::vector<device::cuda::Word> argument_words(std::int64_t first, std::int64_t count);

/// Word for an argument that may be absent: -1 is the address 0.
device::cuda::Word optional_argument(std::int64_t argument, std::int64_t offset = 0);

/// Appends integers.
void add_integers(std::vector<device::cuda::Word>& words,
                  std::initializer_list<std::int64_t> integers);

}  // namespace onnxgrad::ops

#endif  // ONNXGRAD_OPS_BLOCK_TEXT_CUDA_H_
