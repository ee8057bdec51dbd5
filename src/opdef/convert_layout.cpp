#include "opdef/convert_layout.h"

#include "base/check.h"
#include "opdef/layout_order.h"

namespace onnxgrad::opdef {
namespace {

Layout layout_attribute(const ir::Node& node, std::string_view name) {
  const auto layout = layout_named(node.string_attribute(name));
  ONNXGRAD_ASSERT(layout.has_value());
  return *layout;
}

}  // namespace

ConvertLayout ConvertLayout::read(const ir::Node& node) {
  return {.from = layout_attribute(node, "from"), .to = layout_attribute(node, "to")};
}

std::vector<ir::Attribute> ConvertLayout::attributes() const {
  return {{.name = "from", .value = to_string(from)}, {.name = "to", .value = to_string(to)}};
}

}  // namespace onnxgrad::opdef
