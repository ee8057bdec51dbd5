#include "opdef/collectives.h"

#include <algorithm>
#include <iterator>

#include "ir/kept_nodes.h"
#include "opdef/registry.h"

namespace onnxgrad::opdef {

std::string_view Collective::op_type() const {
  return kCollectives[static_cast<std::size_t>(kind)];
}

std::vector<Collective::Range> Collective::own_ranges() const {
  const auto at = static_cast<std::size_t>(rank);
  std::vector<Range> ranges;
  std::int64_t begin = 0;
  for (const std::int64_t size : sizes) {
    const std::int64_t first = std::clamp<std::int64_t>(bounds.at(at) - begin, 0, size);
    const std::int64_t last = std::clamp<std::int64_t>(bounds.at(at + 1) - begin, first, size);
    ranges.push_back({.begin = first, .end = last});
    begin += size;
  }
  return ranges;
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
          .route = static_cast<Route>(node.int_attribute("route", 0)),
          .rank = node.int_attribute("rank", 0),
          .sizes = node.ints_attribute("sizes"),
          .bounds = node.ints_attribute("bounds")};
}

std::vector<ir::Attribute> Collective::attributes() const {
  return {{.name = "number", .value = number},
          {.name = "conditional", .value = std::int64_t{is_conditional}},
          {.name = std::string(ir::kForOthers), .value = std::int64_t{is_for_others}},
          {.name = "bfloat16", .value = std::int64_t{as_bfloat16}},
          {.name = "route", .value = static_cast<std::int64_t>(route)},
          {.name = "rank", .value = rank},
          {.name = "sizes", .value = sizes},
          {.name = "bounds", .value = bounds}};
}

Exchange Exchange::read(const ir::Node& node) {
  return {.collective = Collective::read(node),
          .sent = node.ints_attribute("sent"),
          .received = node.ints_attribute("received"),
          .owned = node.ints_attribute("owned"),
          .dtype = static_cast<DataType>(node.int_attribute("dtype", 1))};
}

std::vector<ir::Attribute> Exchange::attributes() const {
  std::vector<ir::Attribute> all = collective.attributes();
  all.push_back({.name = "kind", .value = static_cast<std::int64_t>(collective.kind)});
  all.push_back({.name = "sent", .value = sent});
  all.push_back({.name = "received", .value = received});
  all.push_back({.name = "owned", .value = owned});
  all.push_back({.name = "dtype", .value = static_cast<std::int64_t>(dtype)});
  return all;
}

}  // namespace onnxgrad::opdef
