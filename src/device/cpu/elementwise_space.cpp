#include "device/cpu/elementwise_space.h"

#include <algorithm>

namespace onnxgrad::device {
namespace {

/// Returns strides of a dense array of `dims` over the axes of `full` (right-aligned); 0 where
/// broadcast.
std::vector<std::int64_t> broadcast_strides(const Dims& dims, const Dims& full) {
  std::vector<std::int64_t> strides(full.rank(), 0);
  const std::vector<std::int64_t> own = dims.strides();
  const std::size_t skip = full.rank() - dims.rank();
  for (std::size_t axis = 0; axis < dims.rank(); ++axis) {
    if (dims[axis] != 1) strides[skip + axis] = own[axis];
  }
  return strides;
}

std::vector<std::int64_t> reduced_strides(const Dims& full, const std::vector<bool>& reduced) {
  std::vector<std::int64_t> strides(full.rank(), 0);
  std::int64_t step = 1;
  for (std::size_t axis = full.rank(); axis-- > 0;) {
    if (reduced[axis]) continue;
    strides[axis] = step;
    step *= full[axis];
  }
  return strides;
}

}  // namespace

std::int64_t Space::rows() const {
  std::int64_t count = 1;
  for (std::size_t axis = 0; axis + 1 < dims.size(); ++axis) count *= dims[axis];
  return count;
}

bool Space::is_dense(std::size_t i) const {
  std::int64_t step = 1;
  for (std::size_t axis = dims.size(); axis-- > 0;) {
    if (dims[axis] != 1 && strides[i][axis] != step) return false;
    step *= dims[axis];
  }
  return true;
}

bool Space::is_single(std::size_t i) const {
  return std::ranges::all_of(strides[i], [](std::int64_t stride) { return stride == 0; });
}

Space make_space(const Dims& full, std::span<const Dims> operands,
                 const std::vector<bool>& reduced) {
  std::vector<std::vector<std::int64_t>> strides;
  strides.reserve(operands.size() + 1);
  for (const Dims& dims : operands) strides.push_back(broadcast_strides(dims, full));
  if (!reduced.empty()) strides.push_back(reduced_strides(full, reduced));

  Space space;
  space.strides.resize(strides.size());
  for (std::size_t axis = 0; axis < full.rank(); ++axis) {
    if (full[axis] == 1) continue;
    const bool merges =
        !space.dims.empty() && std::ranges::all_of(strides, [&](const auto& operand) {
          const auto i = static_cast<std::size_t>(&operand - strides.data());
          return space.strides[i].back() == operand[axis] * full[axis];
        });
    if (merges) {
      space.dims.back() *= full[axis];
    } else {
      space.dims.push_back(full[axis]);
    }
    for (std::size_t i = 0; i < strides.size(); ++i) {
      if (merges) {
        space.strides[i].back() = strides[i][axis];
      } else {
        space.strides[i].push_back(strides[i][axis]);
      }
    }
  }
  if (space.dims.empty()) {
    space.dims.push_back(1);
    for (auto& operand : space.strides) operand.push_back(0);
  }
  return space;
}

}  // namespace onnxgrad::device
