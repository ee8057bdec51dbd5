#ifndef ONNXGRAD_RUNTIME_EXCHANGES_H_
#define ONNXGRAD_RUNTIME_EXCHANGES_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "ir/graph.h"
#include "runtime/views.h"

// Collectives in the plan of one of several workers: each is started as soon as its operands are
// computed, waited for as late as possible, and sends from a buffer that kernels write into.

namespace onnxgrad::runtime {

/// Whether a node is a collective that begin_exchanges() replaces.
bool is_collective(const ir::Node& node);

/// Replaces the collectives of a graph, whose shapes are known, by a start and a finish each.
/// Offsets in buffers are multiples of `alignment`.
void begin_exchanges(ir::Graph& graph, std::int64_t alignment);

/// Priority of a node among those that can run: starts come first, one after another by number, and
/// finishes last, in the same order.
struct ExchangeRole {
  enum class Kind : std::uint8_t { kNone, kStart, kFinish };
  Kind kind = Kind::kNone;
  std::int64_t number = 0;
};
ExchangeRole exchange_role(const ir::Node& node);

/// Values that lie in the buffer of an exchange.
class BufferParts {
 public:
  struct Part {
    const ir::Value* buffer = nullptr;
    std::int64_t offset = 0;
  };
  /// `order`: the nodes that kernels run. An operand is computed directly in the buffer if nothing
  /// else reads it, and if its offset is a multiple of `alignment`.
  BufferParts(const ir::Graph& graph, std::span<const ir::Node* const> order,
              const ViewRoots& roots, std::int64_t alignment);

  /// The part of the buffer that is sent for `root`, the root of a value; nullptr: none.
  const Part* find_sent(const ir::Value* root) const;
  /// Parts of the buffer that a finish returns, one for each output, in order; the offset is -1 for
  /// one that is not in it. Empty for any other node, and if a part is not aligned.
  static std::vector<Part> received(const ir::Node& node, std::int64_t alignment);

 private:
  std::unordered_map<const ir::Value*, Part> sent_;
};

}  // namespace onnxgrad::runtime

#endif  // ONNXGRAD_RUNTIME_EXCHANGES_H_
