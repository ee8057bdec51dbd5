#ifndef ONNXGRAD_OPDEF_FOLLOWER_H_
#define ONNXGRAD_OPDEF_FOLLOWER_H_

#include <cstdint>
#include <limits>
#include <vector>

#include "opdef/kernel_args.h"

// Kernels that run block by block with the kernel before them. A product, say, completes its result
// in blocks, each on one thread; the kernel after it, if it needs no more than the same block of
// that result, computes its own block there and then. The threads do not meet in between, and the
// block is still in the cache.

namespace onnxgrad::opdef {

struct Launch;  // opdef/kernel.h

/// A part of a matrix that one thread computes.
struct Block {
  std::int64_t row = 0, rows = 0;
  std::int64_t column = 0, columns = 0;
  std::int64_t width = 0;   ///< columns of the matrix
  std::int64_t part = 0;    ///< of the rows, below BlockResult::parts
  std::int64_t thread = 0;  ///< below BlockResult::threads

  /// Calls f(first, last) for ranges of its elements.
  template <class F>
  void visit_ranges(const F& f) const {
    if (columns == width) return f(row * width, (row + rows) * width);
    for (std::int64_t i = row; i < row + rows; ++i) {
      f(i * width + column, i * width + column + columns);
    }
  }
};

/// Blocks that a kernel completes, or that it needs.
enum class BlockCut : std::uint8_t {
  kNone,
  kAny,
  kRows  ///< with all columns of their rows
};

/// How a kernel completes output 0, which it passes to Launch::complete() block by block: each
/// element once, and each column of each part of the rows, even if the part has none.
struct BlockResult {
  BlockCut cut = BlockCut::kNone;
  std::int64_t width = 0;  ///< of the output as a matrix
  std::int64_t parts = 1;  ///< of the rows
  int threads = 1;         ///< that the kernel takes
};

/// Computes a block of all outputs on the calling thread, several at a time on several threads.
using BlockFn = void (*)(const void* data, KernelArgs args, const Launch& launch,
                         const Block& block);

/// Completes what depends on all blocks, which have been computed.
using FinishFn = void (*)(const void* data, KernelArgs args, const Launch& launch);

/// How a kernel computes blocks of its outputs, matrices of the same size. Output 0 is complete in
/// the blocks that are computed.
struct BlockWork {
  BlockFn fn = nullptr;            ///< nullptr: it does not
  FinishFn finish = nullptr;       ///< nullptr: nothing is left to do
  BlockCut cut = BlockCut::kNone;  ///< what it needs
  std::vector<int> inputs = {};    ///< of which it needs the same block; of others, everything
  std::int64_t width = 0;          ///< 0: any
  int threads = 1;                 ///< that the kernel takes if it runs alone
  int most_threads = std::numeric_limits<int>::max();  ///< that it has scratch for
};

/// A kernel that runs with the one before it, and those that run with it in turn.
struct Follower {
  BlockFn fn = nullptr;
  const void* data = nullptr;
  KernelArgs args = nullptr;
  const Follower* next = nullptr;
};

}  // namespace onnxgrad::opdef

#endif  // ONNXGRAD_OPDEF_FOLLOWER_H_
