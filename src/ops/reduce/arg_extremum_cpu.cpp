#include "opdef/kernel.h"
#include "ops/kernel_support.h"

// Reference kernels of ArgMax and ArgMin. The data is [outer, length, inner].

namespace onnxgrad::ops::arg_extremum_cpu {
namespace {

struct ArgData {
  std::int64_t outer = 0;
  std::int64_t length = 0;
  std::int64_t inner = 0;
  bool is_max = true;
  bool takes_last = false;
};

// Returns true if `candidate` replaces `best`, which comes earlier.
template <class T>
bool beats(T candidate, T best, const ArgData& data) {
  if (candidate == best) return data.takes_last;
  return data.is_max ? candidate > best : candidate < best;
}

template <class T>
void run_arg(const ArgData& arg, KernelArgs args) {
  const T* x = args.at<T>(0);
  auto* y = args.at<std::int64_t>(1);
  for (std::int64_t o = 0; o < arg.outer; ++o) {
    for (std::int64_t i = 0; i < arg.inner; ++i) {
      const T* column = x + o * arg.length * arg.inner + i;
      std::int64_t best = 0;
      for (std::int64_t k = 1; k < arg.length; ++k) {
        if (beats(column[k * arg.inner], column[best * arg.inner], arg)) best = k;
      }
      y[o * arg.inner + i] = best;
    }
  }
}

template <bool kIsMax>
KernelOffer offer_arg(const KernelRequest& request) {
  const Dims& dims = request.inputs[0].dims;
  const std::int64_t axis_attribute = request.node.int_attribute("axis");
  const auto axis = static_cast<std::size_t>(normalize_axis(axis_attribute, dims.rank()));
  const ArgData data{.outer = dims.product(0, axis),
                     .length = dims[axis],
                     .inner = dims.product(axis + 1, dims.rank()),
                     .is_max = kIsMax,
                     .takes_last = request.node.int_attribute("select_last_index") != 0};
  if (data.length == 0 && data.outer * data.inner > 0) {
    throw ShapeError({.what = "an empty set has no largest or smallest element",
                      .where = {.node = request.node.name, .op_type = request.node.op_type},
                      .detail = "The axis has size 0 in shape " + dims.to_string() + ".",
                      .hint = "Give an input that is not empty along this axis."});
  }
  return offer_for_types<float, double, std::int8_t, std::int16_t, std::int32_t, std::int64_t,
                         std::uint8_t, std::uint16_t, std::uint32_t, std::uint64_t>(
      request, request.inputs[0].dtype,
      [&]<class T>(T) { return prepared<run_arg<T>>(data, "plain arg"); });
}

}  // namespace

void register_arg_extremum_cpu(opdef::KernelRegistry& registry) {
  registry.add("", "ArgMax", 0, offer_arg<true>);
  registry.add("", "ArgMin", 0, offer_arg<false>);
}

}  // namespace onnxgrad::ops::arg_extremum_cpu
