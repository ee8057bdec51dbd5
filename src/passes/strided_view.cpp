#include "passes/strided_view.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "ir/pattern.h"

namespace onnxgrad::passes {
namespace {

constexpr std::size_t kMaxChain = 16;

std::optional<std::vector<std::int64_t>> static_dims_of(const ir::Value* value) {
  if (value == nullptr) return std::nullopt;
  const auto dims = value->type.static_dims();
  if (!dims || dims->num_elements() == 0) return std::nullopt;
  return std::vector<std::int64_t>(dims->begin(), dims->end());
}

std::vector<std::int64_t> permutation_of(const ir::Node& node, std::size_t rank) {
  std::vector<std::int64_t> reversed(rank);
  std::iota(reversed.rbegin(), reversed.rend(), 0);
  return node.ints_attribute("perm", reversed);
}

std::size_t axis_of(std::int64_t axis, std::size_t rank) {
  return static_cast<std::size_t>(axis < 0 ? axis + static_cast<std::int64_t>(rank) : axis);
}

std::optional<AxisView> sliced_by(const ir::Node& node, AxisView view,
                                  const std::vector<std::int64_t>& dims) {
  const auto numbers = [&](std::size_t input) {
    const ir::Value* value = node.input(input);
    const bool is_fixed = value != nullptr && value->is_constant();
    return is_fixed ? ir::constant_integers(value) : std::vector<std::int64_t>{};
  };
  const std::vector<std::int64_t> starts = numbers(1);
  std::vector<std::int64_t> axes = numbers(3);
  std::vector<std::int64_t> steps = numbers(4);
  const bool is_known = !starts.empty() && (node.input(3) == nullptr || !axes.empty()) &&
                        (node.input(4) == nullptr || !steps.empty());
  const auto to = static_dims_of(node.output(0));
  if (!is_known || !to) return std::nullopt;
  if (axes.empty()) {
    axes.resize(starts.size());
    std::iota(axes.begin(), axes.end(), 0);
  }
  if (steps.empty()) steps.assign(starts.size(), 1);
  if (axes.size() != starts.size() || steps.size() != starts.size()) return std::nullopt;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    const std::size_t axis = axis_of(axes[i], dims.size());
    if (axis >= dims.size() || steps[i] < 1) return std::nullopt;
    const std::int64_t size = dims[axis];
    const std::int64_t first =
        std::clamp<std::int64_t>(starts[i] < 0 ? starts[i] + size : starts[i], 0, size);
    const auto part = view.sliced(axis, first, (*to)[axis], steps[i]);
    if (!part) return std::nullopt;
    view = *part;
  }
  return view;
}

std::optional<AxisView> split_by(const ir::Node& node, int output, const AxisView& view,
                                 const std::vector<std::int64_t>& dims) {
  const std::size_t axis = axis_of(node.int_attribute("axis", 0), dims.size());
  std::int64_t first = 0;
  for (int i = 0; i <= output; ++i) {
    const auto part = static_dims_of(node.output(static_cast<std::size_t>(i)));
    if (!part || axis >= part->size()) return std::nullopt;
    if (i == output) return view.sliced(axis, first, (*part)[axis], 1);
    first += (*part)[axis];
  }
  return std::nullopt;
}

std::optional<AxisView> selected_by(const ir::Node& node, const AxisView& view,
                                    const std::vector<std::int64_t>& dims) {
  const ir::Value* index = node.input(1);
  const std::vector<std::int64_t> number = ir::constant_integers(index);
  const std::size_t axis = axis_of(node.int_attribute("axis", 0), dims.size());
  if (number.size() != 1 || axis >= dims.size() || index->type.rank() != 0 || index->is_input) {
    return std::nullopt;
  }
  return view.selected(axis, number[0] < 0 ? number[0] + dims[axis] : number[0]);
}

// The view of a node's output, given the view of its input; nullopt: none.
std::optional<AxisView> moved(const ir::Node& node, int output, const AxisView& view) {
  const auto from = static_dims_of(node.input(0));
  const auto to = static_dims_of(node.output(static_cast<std::size_t>(output)));
  if (!node.domain.empty() || !from || !to) return std::nullopt;
  if (node.op_type == "Transpose") return view.permuted(permutation_of(node, from->size()));
  if (is_reshape(node)) return view.reshaped(*to);
  if (node.op_type == "Expand") return view.broadcast(*to);
  if (node.op_type == "Slice") return sliced_by(node, view, *from);
  if (node.op_type == "Split") return split_by(node, output, view, *from);
  if (node.op_type == "Gather") return selected_by(node, view, *from);
  return std::nullopt;
}

}  // namespace

AxisView::AxisView(std::span<const std::int64_t> dims) : axes_(dims.size()) {
  std::int64_t stride = 1;
  for (std::size_t i = dims.size(); i-- > 0;) {
    append(axes_[i], {.size = dims[i], .stride = stride});
    stride *= dims[i];
  }
}

void AxisView::append(Axis& axis, Part part) {
  if (part.size == 1) return;
  if (!axis.empty() && axis.back().stride == part.size * part.stride) {
    part.size *= axis.back().size;
    axis.back() = part;
  } else {
    axis.push_back(part);
  }
}

std::optional<AxisView> AxisView::reshaped(std::span<const std::int64_t> dims) const {
  std::vector<Part> parts;
  for (const Axis& axis : axes_) parts.insert(parts.end(), axis.begin(), axis.end());
  AxisView result;
  result.offset_ = offset_;
  result.axes_.resize(dims.size());
  // From the last axis to the first: each takes whole parts, or the inner piece of one.
  for (std::size_t i = dims.size(); i-- > 0;) {
    Axis reversed;
    for (std::int64_t left = dims[i]; left > 1;) {
      if (parts.empty()) return std::nullopt;
      Part& last = parts.back();
      const std::int64_t taken = std::gcd(left, last.size);
      if (taken != left && taken != last.size) return std::nullopt;
      reversed.push_back({.size = taken, .stride = last.stride});
      left /= taken;
      last.stride *= taken;
      last.size /= taken;
      if (last.size == 1) parts.pop_back();
    }
    for (auto part = reversed.rbegin(); part != reversed.rend(); ++part) {
      append(result.axes_[i], *part);
    }
  }
  if (!parts.empty()) return std::nullopt;
  return result;
}

AxisView AxisView::permuted(std::span<const std::int64_t> perm) const {
  AxisView result;
  result.offset_ = offset_;
  for (const std::int64_t axis : perm) {
    result.axes_.push_back(axes_[static_cast<std::size_t>(axis)]);
  }
  return result;
}

AxisView AxisView::with_last_axes_swapped() const {
  AxisView result = *this;
  std::swap(result.axes_[rank() - 1], result.axes_[rank() - 2]);
  return result;
}

AxisView AxisView::broadcast(std::span<const std::int64_t> dims) const {
  AxisView result;
  result.offset_ = offset_;
  result.axes_.resize(dims.size());
  const std::size_t added = dims.size() - axes_.size();
  for (std::size_t i = 0; i < dims.size(); ++i) {
    if (i >= added && !axes_[i - added].empty()) {
      result.axes_[i] = axes_[i - added];
    } else {
      append(result.axes_[i], {.size = dims[i], .stride = 0});
    }
  }
  return result;
}

std::optional<AxisView> AxisView::sliced(std::size_t axis, std::int64_t first, std::int64_t count,
                                         std::int64_t step) const {
  AxisView result = *this;
  Axis& parts = result.axes_[axis];
  if (parts.size() > 1) return std::nullopt;
  if (parts.empty()) return result;
  const std::int64_t stride = parts.front().stride;
  result.offset_ += first * stride;
  parts.clear();
  append(parts, {.size = count, .stride = stride * step});
  return result;
}

std::optional<AxisView> AxisView::selected(std::size_t axis, std::int64_t index) const {
  auto result = sliced(axis, index, 1, 1);
  if (result) result->axes_.erase(result->axes_.begin() + static_cast<std::ptrdiff_t>(axis));
  return result;
}

std::optional<opdef::StridedView> AxisView::matrices() const {
  if (rank() < 2) return std::nullopt;
  opdef::StridedView view{.offset = offset_};
  for (std::size_t i = 0; i < rank(); ++i) {
    const bool is_leading = i + 2 < rank();
    if (!is_leading && axes_[i].size() > 1) return std::nullopt;
    if (!is_leading && axes_[i].empty()) {
      view.dims.push_back(1);
      view.strides.push_back(1);
    }
    for (const Part& part : axes_[i]) {
      view.dims.push_back(part.size);
      view.strides.push_back(part.stride);
    }
  }
  return view;
}

bool is_reshape(const ir::Node& node) {
  return ir::is_op(node, {"Reshape", "Flatten", "Squeeze", "Unsqueeze"});
}

std::vector<ValueView> views_of(ir::Value* value) {
  std::vector<ValueView> views;
  const auto dims = static_dims_of(value);
  if (!dims) return views;
  views.push_back({.base = value, .view = AxisView(*dims)});
  struct Step {
    const ir::Node* node;
    int output;
  };
  std::vector<Step> chain;
  ir::Value* base = value;
  while (base->producer != nullptr && chain.size() < kMaxChain) {
    chain.push_back({.node = base->producer, .output = base->output_index});
    base = base->producer->input(0);
    const auto base_dims = static_dims_of(base);
    if (!base_dims) break;
    std::optional<AxisView> view(AxisView{*base_dims});
    for (auto step = chain.rbegin(); step != chain.rend() && view; ++step) {
      view = moved(*step->node, step->output, *view);
    }
    if (!view) break;
    views.push_back({.base = base, .view = *std::move(view)});
  }
  std::ranges::reverse(views);
  return views;
}

std::optional<AxisView> undo(const ir::Node& node, const AxisView& output) {
  const auto dims = static_dims_of(node.input(0));
  if (!node.domain.empty() || !dims) return std::nullopt;
  if (is_reshape(node)) return output.reshaped(*dims);
  if (node.op_type != "Transpose") return std::nullopt;
  const std::vector<std::int64_t> perm = permutation_of(node, dims->size());
  std::vector<std::int64_t> inverse(perm.size());
  for (std::size_t i = 0; i < perm.size(); ++i) {
    inverse[static_cast<std::size_t>(perm[i])] = static_cast<std::int64_t>(i);
  }
  return output.permuted(inverse);
}

}  // namespace onnxgrad::passes
