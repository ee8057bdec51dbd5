#ifndef ONNXGRAD_OPDEF_CONV_CHAIN_H_
#define ONNXGRAD_OPDEF_CONV_CHAIN_H_

#include <cstddef>
#include <string_view>
#include <vector>

#include "ir/graph.h"

namespace onnxgrad::opdef {

/// `ConvChain` of domain `onnxgrad.fused`, (x, then w, b?, residual? of each link) -> y: nodes
/// `Conv` of the same domain (passes/fuse_convolutions.cpp), each of which convolves the result of
/// the one before. Float32, at least two links. Residuals come from outside the chain.
struct ConvChain {
  static constexpr std::size_t kLinkInputs = 3;

  std::vector<std::vector<ir::Attribute>> links = {};  ///< attributes of each link

  static ConvChain read(const ir::Node& node);
  std::vector<ir::Attribute> attributes() const;
};
inline constexpr std::string_view kConvChain = "ConvChain";

}  // namespace onnxgrad::opdef

#endif  // ONNXGRAD_OPDEF_CONV_CHAIN_H_
