#ifndef ONNXGRAD_OPDEF_LAYOUT_ORDER_H_
#define ONNXGRAD_OPDEF_LAYOUT_ORDER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "onnxgrad/dims.h"
#include "onnxgrad/dtype.h"
#include "opdef/layout.h"

// Memory of a tensor [N, C, space...] in a layout. With P the product of space, element (n, c, p)
// is
//   plain          at (n C + c) P + p
//   channels last  at (n P + p) C + c
//   blocked by b   at ((n B + c / b) P + p) b + c mod b,  B = C / b rounded up
// Places of a last block that no channel has are padding: kernels neither rely on what is there nor
// have to write it.

namespace onnxgrad::opdef {

/// The shape of the memory: [N, space..., C] for channels last, [N, B, space..., b] for blocked.
/// Throws: ShapeError (too large).
Dims stored_dims(const Dims& dims, Layout layout);
/// Bytes of the memory, padding included. Throws: ShapeError.
std::int64_t stored_bytes(const Dims& dims, DataType dtype, Layout layout);

/// The simplest layout in which a tensor of this shape has the same bytes: plain if there is no
/// space, one channel, or less than two axes. Two layouts of a value are compared in this form.
Layout simplest(Layout layout, const Dims& dims);

/// Offset in elements of an element of plain order, number `index` of a tensor.
std::int64_t stored_offset(std::int64_t index, const Dims& dims, Layout layout);

/// "plain", "channels_last", "blocked_16".
std::string to_string(Layout layout);
/// The layout of that name; nullopt: there is none.
std::optional<Layout> layout_named(std::string_view name);

}  // namespace onnxgrad::opdef

#endif  // ONNXGRAD_OPDEF_LAYOUT_ORDER_H_
