#ifndef ONNXGRAD_RUNTIME_INPUT_SIZES_H_
#define ONNXGRAD_RUNTIME_INPUT_SIZES_H_

#include <cstddef>
#include <functional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ir/graph.h"
#include "runtime/execution.h"

// Checks that a named dimension (the batch, the length of a sequence) has one size in a run.
// Operators may still broadcast over different sizes, so this is checked only where sizes must
// agree, and where shapes turn out not to match.

namespace onnxgrad::runtime {

/// Checks the name of dimension `axis` of input `port`. Throws: ShapeError (inputs with different
/// sizes for it; names all of them).
void check_one_size(std::span<const Port> ports, std::span<const Dims> dims, std::size_t port,
                    std::size_t axis, const ShapeError* because = nullptr);

/// Checks every dimension of every input as check_one_size() does; `because`: the original error.
void check_sizes(std::span<const Port> ports, std::span<const Dims> dims,
                 const ShapeError& because);

/// Checks for a sequence that is longer than a table whose first rows the node of `because` adds to
/// it, such as one of positions. Throws: ShapeError (names the input, its length and the table's).
void check_tables(const ir::Graph& graph, std::span<const Port> ports, std::span<const Dims> dims,
                  const ShapeError& because);

/// Warns, once for each name, if inputs of a run have several sizes for it: exporters use
/// one name for what happened to have one size in their example.
class SizeWatch {
 public:
  using Warn = std::function<void(const std::string& message)>;

  /// `warn`: see EngineOptions::warn.
  explicit SizeWatch(Warn warn) : warn_(std::move(warn)) {}
  void look_at(std::span<const Port> ports, const std::vector<Dims>& dims);

 private:
  Warn warn_;
  std::vector<Dims> last_;
  std::set<std::string> warned_of_;  // names that it has warned about
};

}  // namespace onnxgrad::runtime

#endif  // ONNXGRAD_RUNTIME_INPUT_SIZES_H_
