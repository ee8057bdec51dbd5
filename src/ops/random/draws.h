#ifndef ONNXGRAD_OPS_RANDOM_DRAWS_H_
#define ONNXGRAD_OPS_RANDOM_DRAWS_H_

#include <cstdint>
#include <optional>

#include "base/philox.h"
#include "ir/graph.h"
#include "opdef/kernel.h"

namespace onnxgrad::ops {

/// The source of a node's random numbers. A draw is a function of the session's seed (or the
/// node's own, if it has the attribute), the number of the step, the node and the element:
/// it does not depend on threads, device or the order of nodes, and a resumed run repeats it.
struct DrawStream {
  std::optional<std::uint64_t> own_seed = {};
  std::uint32_t stream = 0;  ///< of the node: from opdef::random_stream()

  static DrawStream of(const ir::Node& node);

  /// Block number `block` of this step: four random words.
  base::PhiloxBlock block(const opdef::Launch& launch, std::uint64_t block) const {
    const std::uint64_t seed = own_seed                  ? *own_seed
                               : launch.cells == nullptr ? 0
                                                         : launch.cells->seed;
    const std::uint64_t step = launch.cells == nullptr ? 0 : launch.cells->step;
    // The use is below 2^8: the rest of the word holds the bits of a large block number above 2^32.
    const auto use = static_cast<std::uint32_t>(base::RandomUse::kOperator) |
                     static_cast<std::uint32_t>(block >> 32 << 8);
    return base::philox4x32(
        {static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(step), stream, use}, seed);
  }
};

/// Which draws of a batch are those of this worker's rows: each stretch of consecutive elements
/// of a tensor, and the number of its first element in the tensor of the whole batch.
struct RowStretches {
  std::int64_t stretches = 1;  ///< products of the axes before that of the rows
  std::int64_t length = 0;     ///< elements of each
  bool has_rows = false;

  static RowStretches of(const ir::Node& node, const Dims& dims);

  /// f(first element here, its number in the whole batch, elements) for each stretch.
  template <class F>
  void visit(const opdef::Launch& launch, F&& f) const {
    const opdef::StepCells* cells = launch.cells;
    if (!has_rows || cells == nullptr || cells->batch_rows == 0) {
      f(std::int64_t{0}, std::int64_t{0}, stretches * length);
      return;
    }
    const std::int64_t per_row = length / cells->rows;
    for (std::int64_t i = 0; i < stretches; ++i) {
      f(i * length, (i * cells->batch_rows + cells->first_row) * per_row, length);
    }
  }
};

}  // namespace onnxgrad::ops

#endif  // ONNXGRAD_OPS_RANDOM_DRAWS_H_
