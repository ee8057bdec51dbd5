#ifndef ONNXGRAD_BASE_PACKED_H_
#define ONNXGRAD_BASE_PACKED_H_

#include <optional>
#include <span>
#include <vector>

#include "onnxgrad/tensor.h"

// Packed form of sequences and optionals that are not resolved: one tensor of bytes, uint8 [n],
// which goes through plans, loops and branches like any other. It is as long as a power of two, so
// that few different shapes occur.

namespace onnxgrad::base {

/// Packs a sequence of these tensors, an optional that holds one, or a map as keys and values.
/// Copies them.
Tensor pack(std::span<const Tensor> elements);
/// Packs an empty optional.
Tensor pack_nothing();

/// Unpacks the elements, copied; nullopt: an empty optional. Throws: DataError (other bytes).
std::optional<std::vector<Tensor>> unpack(const Tensor& packed);

}  // namespace onnxgrad::base

#endif  // ONNXGRAD_BASE_PACKED_H_
