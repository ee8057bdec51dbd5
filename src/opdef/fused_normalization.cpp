#include "opdef/fused_normalization.h"

namespace onnxgrad::opdef {

FusedNormalization FusedNormalization::read(const ir::Node& node) {
  return {.epsilon = node.float_attribute("epsilon"),
          .momentum = node.float_attribute("momentum"),
          .low = node.float_attribute("low"),
          .high = node.float_attribute("high"),
          .mask = static_cast<NormMask>(node.int_attribute("mask"))};
}

std::vector<ir::Attribute> FusedNormalization::attributes() const {
  return {{.name = "epsilon", .value = epsilon},
          {.name = "momentum", .value = momentum},
          {.name = "low", .value = low},
          {.name = "high", .value = high},
          {.name = "mask", .value = static_cast<std::int64_t>(mask)}};
}

}  // namespace onnxgrad::opdef
