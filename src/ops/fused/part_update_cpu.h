#ifndef ONNXGRAD_OPS_FUSED_PART_UPDATE_CPU_H_
#define ONNXGRAD_OPS_FUSED_PART_UPDATE_CPU_H_

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/check.h"
#include "device/cpu/update.h"
#include "device/cpu_options.h"
#include "opdef/fused.h"
#include "ops/kernel_support.h"

// Parts shared by kernels that update a weight: the arguments of the update, and the update of a
// block of the weight as soon as that block of the gradient is complete.

namespace onnxgrad::ops {

/// Argument indices of the operands of an update; -1: absent.
struct UpdatePlaces {
  int w = -1, m = -1, v = -1, rate = -1, epsilon = -1, shrink = -1;
  int new_w = -1, new_m = -1, new_v = -1;
  int scratch = -1;

  /// Returns the argument indices for `update`, whose operands are the last inputs of a node, from
  /// w = argument `first` on; nullptr stands for plain descent, (w, rate) -> w'.
  static UpdatePlaces of(const opdef::WeightUpdate* update, const KernelRequest& request,
                         int first) {
    const bool has_m = update != nullptr;
    const bool has_v = has_m && update->has_v();
    UpdatePlaces at;
    int next = first;
    at.w = next++;
    if (has_m) at.m = next++;
    if (has_v) at.v = next++;
    at.rate = next++;
    if (has_m && update->has_epsilon()) at.epsilon = next++;
    if (has_m && update->shrinks) at.shrink = next++;
    ONNXGRAD_ASSERT(static_cast<std::size_t>(next) == request.inputs.size());
    at.new_w = next++;
    if (has_m) at.new_m = next++;
    if (has_v) at.new_v = next++;
    at.scratch = next;
    return at;
  }

  /// Returns the (input, output) pairs that may share memory.
  std::vector<std::pair<int, int>> in_place() const {
    std::vector<std::pair<int, int>> pairs{{w, 0}};
    if (m >= 0) pairs.emplace_back(m, 1);
    if (v >= 0) pairs.emplace_back(v, 2);
    return pairs;
  }

  /// Returns the arrays, without the gradient and sizes.
  template <class T>
  device::UpdateArrays<T> arrays(KernelArgs args) const {
    return {.w = args.find<T>(w),
            .m = args.find<T>(m),
            .v = args.find<T>(v),
            .new_w = args.find<T>(new_w),
            .new_m = args.find<T>(new_m),
            .new_v = args.find<T>(new_v),
            .rate = *args.at<T>(rate),
            .epsilon = epsilon < 0 ? T(0) : *args.at<T>(epsilon),
            .shrink = shrink < 0 ? T(1) : *args.at<T>(shrink)};
  }
};

/// Update by blocks of the gradient, for float and double.
struct PartUpdate {
  opdef::WeightUpdate spec = {};
  UpdatePlaces at = {};
  device::UpdateFn<float> of_floats = nullptr;
  device::UpdateFn<double> of_doubles = nullptr;

  /// Reads the update of a node; see UpdatePlaces::of for the arguments.
  static PartUpdate of(const opdef::WeightUpdate* update, const KernelRequest& request, int first) {
    const device::Isa isa = device::isa_of(request);
    PartUpdate result{.at = UpdatePlaces::of(update, request, first)};
    if (update == nullptr) {
      result.of_floats = device::find_descent<float>(isa);
      result.of_doubles = device::find_descent<double>(isa);
      return result;
    }
    result.spec = *update;
    result.of_floats = device::find_update<float>(isa, *update);
    result.of_doubles = device::find_update<double>(isa, *update);
    return result;
  }

  template <class T>
  void apply(KernelArgs args, const device::GradientPart<T>& part) const {
    const device::UpdateArrays<T> arrays = at.arrays<T>(args).with(part);
    if constexpr (std::is_same_v<T, float>) {
      of_floats(spec, arrays);
    } else {
      of_doubles(spec, arrays);
    }
  }
};

}  // namespace onnxgrad::ops

#endif  // ONNXGRAD_OPS_FUSED_PART_UPDATE_CPU_H_
