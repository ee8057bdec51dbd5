#ifndef ONNXGRAD_RUNTIME_INPUT_SIZES_H_
#define ONNXGRAD_RUNTIME_INPUT_SIZES_H_

#include <cstddef>
#include <span>
#include <vector>

#include "runtime/executor.h"

// A named dimension (the batch, the length of a sequence) has one size in a run. Operators may
// still broadcast over different sizes, so this is checked only where sizes must agree, and where
// shapes turn out not to match.

namespace onnxgrad::runtime {

/// Throws: ShapeError (inputs with different sizes for the name of dimension `axis` of input
/// `port`; it names all of them).
void check_one_size(std::span<const Port> ports, std::span<const Dims> dims, std::size_t port,
                    std::size_t axis, const ShapeError* because = nullptr);

/// The same for every dimension of every input; `because` is what went wrong.
void check_sizes(std::span<const Port> ports, std::span<const Dims> dims,
                 const ShapeError& because);

}  // namespace onnxgrad::runtime

#endif  // ONNXGRAD_RUNTIME_INPUT_SIZES_H_
