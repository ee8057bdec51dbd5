#ifndef ONNXGRAD_DEVICE_CPU_ELEMENTWISE_PLAN_H_
#define ONNXGRAD_DEVICE_CPU_ELEMENTWISE_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "device/cpu/convert.h"
#include "device/cpu/elementwise_code.h"
#include "device/cpu/elementwise_space.h"
#include "device/cpu/scratch_layout.h"
#include "opdef/kernel.h"

// The plan of an element-wise kernel: prepare_elementwise makes it, run_elementwise reads it.
//
// A tile is either a part of one run of the space or, if runs are short, several whole runs: a
// block. In a block, operands that are not dense are expanded into buffers.

namespace onnxgrad::device {

/// Address in a slot at the start of a call: args[arg] + offset, or the constants + offset if arg
/// == kConstants.
struct SlotBase {
  static constexpr std::int32_t kConstants = -1;
  std::int32_t arg = 0;
  std::int64_t offset = 0;
};

/// A slot that follows the tiles through memory.
struct Mover {
  std::int32_t slot = 0;
  std::int32_t arg = 0;
  std::int64_t element_bytes = 0;
  std::vector<std::int64_t> strides;  ///< in elements, per axis of the space
};

/// An operand that is converted or expanded, or a result that is converted.
struct Transfer {
  ConvertFn convert = nullptr;  ///< nullptr: same type
  std::int32_t slot = 0;        ///< a cell or a buffer
  Mover memory;                 ///< of the operand or output; its own `slot` is not used
  bool is_dense = false;
  bool once = false;  ///< done once for all tiles
};

/// A result that is reduced.
struct Reduction {
  Fold fold = Fold::kSum;
  std::int32_t slot = 0;                ///< of the value in a tile
  ScratchArray<std::byte> totals = {};  ///< in a chunk's scratch
  bool is_wide = false;                 ///< floats whose totals are doubles until the end
  /// The result, when there is no second program: args[arg], converted.
  std::int32_t arg = -1;
  ConvertFn convert = nullptr;
};

struct ElementwisePlan {
  Space space;  ///< operands, then the reduced result if there is one
  std::int64_t rows = 0, run = 0;
  bool in_blocks = false;
  std::int64_t tile = 0;  ///< elements per tile, a part of a run
  std::int64_t tiles_per_row = 0;
  std::int64_t rows_per_block = 0;
  std::int64_t tiles = 0;

  Code code;
  std::int64_t element_bytes = 0;  ///< bytes of an element of the computation's type
  TileTable table;
  std::vector<SlotBase> slots;
  std::vector<Mover> movers;
  std::vector<Transfer> call_loads, row_loads, tile_loads, stores;

  std::vector<Reduction> reductions;
  std::int64_t reduced_size = 0;
  bool run_is_reduced = false;
  bool fold_once = false;              ///< one tile covers everything: its folds are the results
  ScratchArray<std::byte> folds = {};  ///< results of a tile's folds, in a thread's scratch

  opdef::PreparedKernel post;  ///< fn == nullptr: none
  std::vector<std::int32_t>
      post_args;  ///< per argument of `post` after the reduced results, in args
  ScratchArray<std::byte*> post_table = {};  ///< its arguments
  ScratchArray<std::byte> post_scratch = {};

  std::int32_t scratch_arg = 0;
  ScratchBlocks thread_scratch = {}, chunk_scratch = {};
  int threads = 1;
  std::int64_t block_parts = 0;  ///< with totals of their own, as chunks
  Isa isa = {};
  bool flush_denormals = false;
};

void run_elementwise(const void* data, opdef::KernelArgs args, const opdef::Launch& launch);
/// Runs the kernel on `plan.threads` threads.
void run_elementwise_parallel(const void* data, opdef::KernelArgs args,
                              const opdef::Launch& launch);

/// Runs a block of the results, with the scratch of `block.thread` and the totals of `block.part`.
/// For plans without blocks of runs, and without reductions but of columns.
void run_elementwise_block(const void* data, opdef::KernelArgs args, const opdef::Launch& launch,
                           const opdef::Block& block);
/// Adds up the parts' totals.
void finish_elementwise_blocks(const void* data, opdef::KernelArgs args,
                               const opdef::Launch& launch);

}  // namespace onnxgrad::device

#endif  // ONNXGRAD_DEVICE_CPU_ELEMENTWISE_PLAN_H_
