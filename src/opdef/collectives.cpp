#include "opdef/collectives.h"

#include <algorithm>
#include <iterator>

#include "ir/kept_nodes.h"
#include "opdef/registry.h"

namespace onnxgrad::opdef {

std::string_view Collective::op_type() const {
  return kCollectives[static_cast<std::size_t>(kind)];
}

Collective Collective::read(const ir::Node& node) {
  // In plans the kind is an attribute, before it is the operator.
  const auto* const name = std::ranges::find(kCollectives, base_name(node.domain, node.op_type));
  const auto of_operator = name == std::end(kCollectives) ? 0 : name - std::begin(kCollectives);
  return {.kind = static_cast<Kind>(node.int_attribute("kind", of_operator)),
          .number = node.int_attribute("number", 0),
          .is_conditional = node.int_attribute("conditional", 0) != 0,
          .is_for_others = ir::runs_for_others(node),
          .as_bfloat16 = node.int_attribute("bfloat16", 0) != 0,
          .workers = node.int_attribute("workers", 1),
          .owners = node.ints_attribute("owners")};
}

std::vector<ir::Attribute> Collective::attributes() const {
  return {{.name = "number", .value = number},
          {.name = "conditional", .value = std::int64_t{is_conditional}},
          {.name = std::string(ir::kForOthers), .value = std::int64_t{is_for_others}},
          {.name = "bfloat16", .value = std::int64_t{as_bfloat16}},
          {.name = "workers", .value = workers},
          {.name = "owners", .value = owners}};
}

Exchange Exchange::read(const ir::Node& node) {
  return {.collective = Collective::read(node), .offsets = node.ints_attribute("offsets")};
}

std::vector<ir::Attribute> Exchange::attributes() const {
  std::vector<ir::Attribute> all = collective.attributes();
  all.push_back({.name = "kind", .value = static_cast<std::int64_t>(collective.kind)});
  all.push_back({.name = "offsets", .value = offsets});
  return all;
}

}  // namespace onnxgrad::opdef
