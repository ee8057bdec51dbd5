#ifndef ONNXGRAD_OPS_RANDOM_DRAWS_H_
#define ONNXGRAD_OPS_RANDOM_DRAWS_H_

#include <cstdint>
#include <optional>

#include "base/philox.h"
#include "ir/graph.h"
#include "opdef/kernel.h"

namespace onnxgrad::ops {

/// Source of a node's random numbers. A random number is a function of the session's seed (or the
/// node's own, if it has the attribute), the step, the node and the element: it does not depend on
/// threads, device or the order of nodes, and a resumed run repeats it.
struct RandomStream {
  std::optional<std::uint64_t> own_seed = {};
  std::uint32_t stream = 0;  ///< stream of the node, from opdef::random_stream()

  static RandomStream of(const ir::Node& node);

  /// Returns block number `block` of this step: four random 32-bit words.
  base::PhiloxBlock block(const opdef::Launch& launch, std::uint64_t block) const {
    const std::uint64_t seed = own_seed                  ? *own_seed
                               : launch.cells == nullptr ? 0
                                                         : launch.cells->seed;
    const std::uint64_t step = launch.cells == nullptr ? 0 : launch.cells->step;
    // `use` is below 2^8: the rest of the word holds the bits of `block` above 2^32.
    const auto use = static_cast<std::uint32_t>(base::RandomUse::kOperator) |
                     static_cast<std::uint32_t>(block >> 32 << 8);
    return base::philox4x32(
        {static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(step), stream, use}, seed);
  }
};

/// Elements of a tensor that belong to the rows of this worker: contiguous stretches, each with the
/// index of its first element in the tensor of the whole batch.
struct RowStretches {
  std::int64_t stretches = 1;  ///< product of the axes before the batch axis
  std::int64_t length = 0;     ///< elements of each stretch
  bool has_rows = false;

  static RowStretches of(const ir::Node& node, const Dims& dims);

  /// Calls f(first element here, its index in the whole batch, number of elements) for each
  /// stretch.
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
