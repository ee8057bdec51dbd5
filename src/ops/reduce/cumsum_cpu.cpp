#include "opdef/kernel.h"
#include "ops/kernel_support.h"

// Reference kernel of CumSum. The data is [outer, length, inner]; rows of `inner` elements are
// added to the row before (after, if reverse).

namespace onnxgrad::ops::cumsum_cpu {
namespace {

struct CumSumData {
  std::int64_t outer = 0;
  std::int64_t length = 0;
  std::int64_t inner = 0;
  bool is_exclusive = false;
  bool is_reverse = false;
};

// Unsigned type for signed integers, which wrap around.
template <class T>
T wrapping_add(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) return a + b;
  using Unsigned = std::make_unsigned_t<std::conditional_t<std::is_floating_point_v<T>, int, T>>;
  return static_cast<T>(static_cast<Unsigned>(a) + static_cast<Unsigned>(b));
}

template <class T>
void run_cumsum(const CumSumData& c, KernelArgs args) {
  const T* x = args.at<T>(0);
  T* y = args.at<T>(2);
  const std::int64_t step = c.is_reverse ? -c.inner : c.inner;
  for (std::int64_t o = 0; o < c.outer; ++o) {
    const std::int64_t first =
        o * c.length * c.inner + (c.is_reverse ? (c.length - 1) * c.inner : 0);
    for (std::int64_t k = 0; k < c.length; ++k) {
      const std::int64_t row = first + k * step;
      // The addend is the row itself, or the one before it if exclusive.
      const std::int64_t addend = c.is_exclusive ? row - step : row;
      for (std::int64_t i = 0; i < c.inner; ++i) {
        if (k == 0)
          y[row + i] = c.is_exclusive ? T{0} : x[row + i];
        else
          y[row + i] = wrapping_add(y[row - step + i], x[addend + i]);
      }
    }
  }
}

KernelOffer offer_cumsum(const KernelRequest& request) {
  const Dims& dims = request.inputs[0].dims;
  const auto planned = planned_ints(request, 1);
  if (!planned) return KernelOffer::decline("the axis is not known before the step runs");
  if (planned->size() != 1) return KernelOffer::decline("the axis is not one number");
  const auto axis = static_cast<std::size_t>(normalize_axis(planned->front(), dims.rank()));
  const CumSumData data{.outer = dims.product(0, axis),
                        .length = dims[axis],
                        .inner = dims.product(axis + 1, dims.rank()),
                        .is_exclusive = request.node.int_attribute("exclusive") != 0,
                        .is_reverse = request.node.int_attribute("reverse") != 0};
  return offer_for_types<float, double, std::int32_t, std::int64_t, std::uint32_t, std::uint64_t>(
      request, request.inputs[0].dtype,
      [&]<class T>(T) { return prepared<run_cumsum<T>>(data, "plain sums"); });
}

}  // namespace

void register_cumsum_cpu(opdef::KernelRegistry& registry) {
  registry.add("", "CumSum", 0, offer_cumsum);
}

}  // namespace onnxgrad::ops::cumsum_cpu
