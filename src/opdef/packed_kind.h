#ifndef ONNXGRAD_OPDEF_PACKED_KIND_H_
#define ONNXGRAD_OPDEF_PACKED_KIND_H_

#include <cstdint>

namespace onnxgrad::opdef {

/// The type of an operand of a sequence kernel before it became a tensor of bytes, if it did;
/// attribute "kinds" of such a node (runtime/packed_graph.h).
enum class PackedKind : std::uint8_t {
  kAbsent,
  kTensor,  ///< not packed
  kSequence,
  kOptionalTensor,
  kOptionalSequence,
};

}  // namespace onnxgrad::opdef

#endif  // ONNXGRAD_OPDEF_PACKED_KIND_H_
