#include "opdef/attention.h"

#include <fmt/format.h>

#include <iterator>

#include "base/check.h"

namespace onnxgrad::opdef {
namespace {

StridedView view_of(const ir::Node& node, std::string_view name) {
  return StridedView::from_ints(node.ints_attribute(name));
}

// float64, which no number attribute is.
Tensor number(double value) { return Tensor::scalar(value); }

double read_number(const ir::Node& node, std::string_view name) {
  const auto* const tensor = std::get_if<Tensor>(node.find_attribute(name));
  ONNXGRAD_ASSERT(tensor != nullptr);
  return tensor->to_doubles().front();
}

}  // namespace

std::vector<std::int64_t> StridedView::to_ints() const {
  std::vector<std::int64_t> ints{offset};
  ints.insert(ints.end(), dims.begin(), dims.end());
  ints.insert(ints.end(), strides.begin(), strides.end());
  return ints;
}

StridedView StridedView::from_ints(const std::vector<std::int64_t>& ints) {
  if (ints.empty()) return {};
  const auto rank = std::ssize(ints) / 2;
  return {.offset = ints.front(),
          .dims = {ints.begin() + 1, ints.begin() + 1 + rank},
          .strides = {ints.begin() + 1 + rank, ints.end()}};
}

Attention Attention::read(const ir::Node& node) {
  Attention op{
      .q = view_of(node, "q"),
      .k = view_of(node, "k"),
      .v = view_of(node, "v"),
      .y = view_of(node, "y"),
      .scale = read_number(node, "scale"),
      .causal = node.int_attribute("causal", 0) != 0,
      .causal_offset = node.int_attribute("causal_offset", 0),
      .dropout = read_number(node, "dropout"),
      .stores_probabilities = node.int_attribute("stores_probabilities", 0) != 0,
      .probabilities_type = static_cast<DataType>(node.int_attribute("probabilities_type", 0)),
      .rounds_gradient = node.int_attribute("rounds_gradient", 0) != 0};
  const std::vector<std::int64_t> kinds = node.ints_attribute("mask_kinds");
  const std::vector<float> fills = node.floats_attribute("mask_fills");
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    op.masks.push_back({.kind = static_cast<MaskKind>(kinds[i]),
                        .fill = fills.at(i),
                        .view = view_of(node, fmt::format("mask{}", i))});
  }
  return op;
}

std::vector<ir::Attribute> Attention::attributes() const {
  std::vector<ir::Attribute> list{
      {.name = "q", .value = q.to_ints()},       {.name = "k", .value = k.to_ints()},
      {.name = "v", .value = v.to_ints()},       {.name = "y", .value = y.to_ints()},
      {.name = "scale", .value = number(scale)}, {.name = "dropout", .value = number(dropout)}};
  if (stores_probabilities)
    list.push_back({.name = "stores_probabilities", .value = std::int64_t{1}});
  if (probabilities_type != DataType::kUndefined) {
    list.push_back(
        {.name = "probabilities_type", .value = static_cast<std::int64_t>(probabilities_type)});
  }
  if (rounds_gradient) list.push_back({.name = "rounds_gradient", .value = std::int64_t{1}});
  if (causal) {
    list.push_back({.name = "causal", .value = std::int64_t{1}});
    list.push_back({.name = "causal_offset", .value = causal_offset});
  }
  std::vector<std::int64_t> kinds;
  std::vector<float> fills;
  for (std::size_t i = 0; i < masks.size(); ++i) {
    kinds.push_back(static_cast<std::int64_t>(masks[i].kind));
    fills.push_back(masks[i].fill);
    list.push_back({.name = fmt::format("mask{}", i), .value = masks[i].view.to_ints()});
  }
  list.push_back({.name = "mask_kinds", .value = std::move(kinds)});
  list.push_back({.name = "mask_fills", .value = std::move(fills)});
  return list;
}

AttentionGradient AttentionGradient::read(const ir::Node& node) {
  return {.forward = Attention::read(node),
          .dy = view_of(node, "dy"),
          .dq = view_of(node, "dq"),
          .dk = view_of(node, "dk"),
          .dv = view_of(node, "dv")};
}

std::vector<ir::Attribute> AttentionGradient::attributes() const {
  std::vector<ir::Attribute> list = forward.attributes();
  for (const auto& [name, view] : {std::pair{"dy", &dy}, {"dq", &dq}, {"dk", &dk}, {"dv", &dv}}) {
    if (!view->dims.empty()) list.push_back({.name = name, .value = view->to_ints()});
  }
  return list;
}

}  // namespace onnxgrad::opdef
