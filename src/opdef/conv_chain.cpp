#include "opdef/conv_chain.h"

#include <charconv>
#include <string>

#include "base/check.h"

namespace onnxgrad::opdef {

// Attributes are named "0.strides", "0.pads", ..., "1.strides", ...
std::vector<ir::Attribute> ConvChain::attributes() const {
  std::vector<ir::Attribute> all;
  for (std::size_t i = 0; i < links.size(); ++i) {
    for (const ir::Attribute& attribute : links[i]) {
      all.push_back({.name = std::to_string(i) + "." + attribute.name, .value = attribute.value});
    }
  }
  return all;
}

ConvChain ConvChain::read(const ir::Node& node) {
  ConvChain chain;
  chain.links.resize((node.inputs.size() - 1) / kLinkInputs);
  for (const ir::Attribute& attribute : node.attributes) {
    const char* begin = attribute.name.data();
    const char* end = begin + attribute.name.size();
    std::size_t link = 0;
    const auto [dot, error] = std::from_chars(begin, end, link);
    ONNXGRAD_ASSERT(error == std::errc() && dot != end && link < chain.links.size());
    chain.links[link].push_back({.name = std::string(dot + 1, end), .value = attribute.value});
  }
  return chain;
}

}  // namespace onnxgrad::opdef
