#include "passes/reduction.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <string_view>

namespace onnxgrad::passes {
namespace {

struct Row {
  std::string_view op_type;
  opdef::Fold fold;
  bool is_mean;
};

using opdef::Fold;

constexpr std::array kRows = {
    Row{"ReduceSum", Fold::kSum, false}, Row{"ReduceMean", Fold::kSum, true},
    Row{"ReduceMax", Fold::kMax, false}, Row{"ReduceMin", Fold::kMin, false}};

std::optional<std::vector<std::int64_t>> reduced_axes(const ir::Node& node, std::size_t rank) {
  const ir::Value* given = node.input(1);
  std::vector<std::int64_t> axes;
  if (given != nullptr) {
    if (!given->is_constant()) return std::nullopt;
    axes = given->initializer.to_int64s();
  }
  if (axes.empty()) {
    if (node.int_attribute("noop_with_empty_axes") != 0) return std::nullopt;
    axes.resize(rank);
    std::iota(axes.begin(), axes.end(), 0);
  }
  for (std::int64_t& axis : axes) axis = normalize_axis(axis, rank);
  std::ranges::sort(axes);
  return axes;
}

}  // namespace

std::optional<Reduction> match_reduction(const ir::Node& node) {
  const auto* const row = std::ranges::find(kRows, node.op_type, &Row::op_type);
  if (row == kRows.end() || !node.domain.empty()) return std::nullopt;
  const ir::Value* input = node.input(0);
  const bool is_float =
      input->dtype() == DataType::kFloat32 || input->dtype() == DataType::kFloat64;
  const auto dims = input->type.static_dims();
  if (!is_float || !dims || dims->num_elements() == 0 || !node.outputs[0]->type.static_dims()) {
    return std::nullopt;
  }
  auto axes = reduced_axes(node, dims->rank());
  if (!axes) return std::nullopt;
  Reduction reduction{.axes = {}, .fold = row->fold};
  for (const std::int64_t axis : *axes) {
    const std::int64_t length = (*dims)[static_cast<std::size_t>(axis)];
    if (row->is_mean) reduction.factor /= static_cast<double>(length);
    if (length > 1) reduction.axes.push_back(axis);
  }
  if (reduction.axes.empty()) return std::nullopt;
  return reduction;
}

}  // namespace onnxgrad::passes
