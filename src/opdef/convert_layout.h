#ifndef ONNXGRAD_OPDEF_CONVERT_LAYOUT_H_
#define ONNXGRAD_OPDEF_CONVERT_LAYOUT_H_

#include <string_view>
#include <vector>

#include "ir/graph.h"
#include "opdef/layout.h"

namespace onnxgrad::opdef {

/// `ConvertLayout` of domain `onnxgrad.fused`, (x) -> y: the elements of x, in layout `from`, in
/// layout `to`; zeros where y is padded. Only place_layouts() (runtime/layouts.h) makes such nodes.
/// A device whose kernels ask for layouts offers it.
struct ConvertLayout {
  Layout from = {};
  Layout to = {};

  static ConvertLayout read(const ir::Node& node);
  std::vector<ir::Attribute> attributes() const;
};
inline constexpr std::string_view kConvertLayout = "ConvertLayout";

}  // namespace onnxgrad::opdef

#endif  // ONNXGRAD_OPDEF_CONVERT_LAYOUT_H_
