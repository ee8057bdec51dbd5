#ifndef ONNXGRAD_OPDEF_LAYOUT_H_
#define ONNXGRAD_OPDEF_LAYOUT_H_

#include <cstdint>

namespace onnxgrad::opdef {

/// The order of a tensor's elements in memory. Dimensions are those of ONNX in every layout: batch,
/// channels, then space.
struct Layout {
  enum class Kind : std::uint8_t {
    kPlain,         ///< dense, row-major
    kChannelsLast,  ///< dense, with the channels after space: NHWC
    kBlocked,       ///< channels in blocks that come after space: NCHW16c; the last one is padded
  };
  Kind kind = Kind::kPlain;
  std::uint8_t block = 0;  ///< channels of a block; 0 for other kinds

  bool is_plain() const { return kind == Kind::kPlain; }
  bool operator==(const Layout&) const = default;
};

}  // namespace onnxgrad::opdef

#endif  // ONNXGRAD_OPDEF_LAYOUT_H_
