#include <algorithm>
#include <array>
#include <cmath>

#include "opdef/kernel.h"
#include "ops/fused/scalar_expr.h"
#include "ops/kernel_support.h"

// Reference kernels of the reductions. Adjacent axes that are all reduced or all kept are merged,
// so that the data is [.., kept, reduced, kept, ..] and is read once, in order, in runs along the
// last merged axis. Floating-point sums are accumulated in double in a fixed order.

namespace onnxgrad::ops::reduce_cpu {
namespace {

struct Layout {
  struct Axis {
    std::int64_t size = 1;
    std::int64_t output_stride = 0;  // 0: reduced
  };
  std::vector<Axis> axes;        // outermost first, at least one
  std::int64_t num_inputs = 0;   // elements of x
  std::int64_t num_outputs = 0;  // elements of y
  double count = 0;              // elements of x per element of y
};

Layout merge_axes(const Dims& dims, const std::vector<bool>& is_reduced) {
  Layout layout{.axes = {}, .num_inputs = dims.num_elements(), .num_outputs = 1};
  std::vector<bool> merged_reduced;
  for (std::size_t i = 0; i < dims.rank(); ++i) {
    if (dims[i] == 1) continue;
    if (!merged_reduced.empty() && merged_reduced.back() == is_reduced[i]) {
      layout.axes.back().size *= dims[i];
    } else {
      layout.axes.push_back({dims[i], 0});
      merged_reduced.push_back(is_reduced[i]);
    }
  }
  if (layout.axes.empty()) {
    layout.axes.push_back({1, 0});
    merged_reduced.push_back(true);
  }
  for (std::size_t i = layout.axes.size(); i-- > 0;) {
    if (merged_reduced[i]) continue;
    layout.axes[i].output_stride = layout.num_outputs;
    layout.num_outputs *= layout.axes[i].size;
  }
  const auto groups = static_cast<double>(std::max<std::int64_t>(layout.num_outputs, 1));
  layout.count = static_cast<double>(layout.num_inputs) / groups;
  return layout;
}

// Calls f(run, output) for each run of the innermost axis: `run` points to axes.back().size
// elements, `output` is the index of the output element of the first one.
template <class T, class Function>
void for_each_run(const Layout& layout, const T* x, const Function& f) {
  if (layout.num_inputs == 0) return;
  const std::size_t outer = layout.axes.size() - 1;
  const std::int64_t length = layout.axes.back().size;
  std::array<std::int64_t, Dims::kMaxRank> position;
  std::fill_n(position.begin(), outer, 0);
  std::int64_t output = 0;
  while (true) {
    f(x, output);
    x += length;
    std::size_t axis = outer;
    while (axis > 0) {
      const Layout::Axis& step = layout.axes[axis - 1];
      output += step.output_stride;
      if (++position[axis - 1] < step.size) break;
      output -= step.output_stride * step.size;
      position[axis - 1] = 0;
      --axis;
    }
    if (axis == 0) return;
  }
}

// Accumulator: integers are added and multiplied modulo 2^64, as hardware does; floats in double.
template <class T>
using Wide = std::conditional_t<std::is_floating_point_v<T>, double, std::uint64_t>;

template <class T>
Wide<T> widen(T x) {
  return static_cast<Wide<T>>(x);
}

template <class T>
T narrow(Wide<T> x) {
  return static_cast<T>(x);
}

// Kind of reduction: Acc is the accumulator, start() its initial value.
template <class T>
struct Sum {
  using Acc = Wide<T>;
  static Acc start() { return 0; }
  static Acc map(T x) { return widen(x); }
  static Acc combine(Acc a, Acc b) { return a + b; }
  static T finish(Acc a, double) { return narrow<T>(a); }
};
template <class T>
struct Mean : Sum<T> {
  static T finish(Wide<T> a, double count) {
    if constexpr (std::is_floating_point_v<T>) {
      return static_cast<T>(a / count);
    } else {
      using Quotient = std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>;
      const auto n = static_cast<Quotient>(count);
      return n == 0 ? T{0} : static_cast<T>(static_cast<Quotient>(a) / n);
    }
  }
};
template <class T>
struct SumSquare : Sum<T> {
  static Wide<T> map(T x) { return widen(x) * widen(x); }
};
template <class T>
struct L1 : Sum<T> {
  static Wide<T> map(T x) { return x < T{0} ? Wide<T>{0} - widen(x) : widen(x); }
};
template <class T>
struct L2 : SumSquare<T> {
  static T finish(Wide<T> a, double) { return static_cast<T>(std::sqrt(static_cast<double>(a))); }
};
template <class T>
struct LogSum : Sum<T> {
  static T finish(Wide<T> a, double) { return static_cast<T>(std::log(static_cast<double>(a))); }
};
template <class T>
struct Prod {
  using Acc = Wide<T>;
  static Acc start() { return 1; }
  static Acc map(T x) { return widen(x); }
  static Acc combine(Acc a, Acc b) { return a * b; }
  static T finish(Acc a, double) { return narrow<T>(a); }
};
// NaN wins over every number, as in NumPy.
template <class T>
struct Max {
  using Acc = T;
  static Acc start() { return fold_start<T>(opdef::Fold::kMax); }
  static Acc map(T x) { return x; }
  static Acc combine(Acc a, Acc b) { return maximum(a, b); }
  static T finish(Acc a, double) { return a; }
};
template <class T>
struct Min : Max<T> {
  static T start() { return fold_start<T>(opdef::Fold::kMin); }
  static T combine(T a, T b) { return minimum(a, b); }
};

// Four independent accumulators, so that an addition does not wait for the previous one.
template <class Kind, class T>
typename Kind::Acc reduce_run(const T* run, std::int64_t length) {
  typename Kind::Acc part[4] = {Kind::start(), Kind::start(), Kind::start(), Kind::start()};
  std::int64_t i = 0;
  for (; i + 4 <= length; i += 4) {
    for (std::int64_t k = 0; k < 4; ++k) {
      part[k] = Kind::combine(part[k], Kind::map(run[i + k]));
    }
  }
  for (; i < length; ++i) part[0] = Kind::combine(part[0], Kind::map(run[i]));
  return Kind::combine(Kind::combine(part[0], part[1]), Kind::combine(part[2], part[3]));
}

template <class Kind, class T>
void accumulate(const Layout& layout, const T* x, typename Kind::Acc* acc) {
  std::fill_n(acc, layout.num_outputs, Kind::start());
  const std::int64_t length = layout.axes.back().size;
  if (layout.axes.back().output_stride == 0) {
    for_each_run(layout, x, [&](const T* run, std::int64_t output) {
      acc[output] = Kind::combine(acc[output], reduce_run<Kind>(run, length));
    });
  } else {
    for_each_run(layout, x, [&](const T* run, std::int64_t output) {
      typename Kind::Acc* target = acc + output;
      for (std::int64_t i = 0; i < length; ++i) {
        target[i] = Kind::combine(target[i], Kind::map(run[i]));
      }
    });
  }
}

// args: x, axes or nothing, y, scratch [num_outputs] of Acc; the axes are already in the layout.
struct ReduceData {
  Layout layout;
  std::size_t output_arg = 1;
};

template <class T, class Kind>
void run_reduce(const ReduceData& data, KernelArgs args) {
  const auto& [layout, output_arg] = data;
  const T* x = args.at<T>(0);
  T* y = args.at<T>(output_arg);
  auto* acc = args.at<typename Kind::Acc>(output_arg + 1);
  accumulate<Kind, T>(layout, x, acc);
  for (std::int64_t i = 0; i < layout.num_outputs; ++i) y[i] = Kind::finish(acc[i], layout.count);
}

// y = m + ln sum e^(x - m) with m = max x, so that nothing overflows.
template <class T>
void run_log_sum_exp(const ReduceData& data, KernelArgs args) {
  const auto& [layout, output_arg] = data;
  const T* x = args.at<T>(0);
  T* y = args.at<T>(output_arg);
  auto* acc = args.at<double>(output_arg + 1);
  accumulate<Max<T>, T>(layout, x, y);
  for (std::int64_t i = 0; i < layout.num_outputs; ++i) {
    if (!std::isfinite(y[i])) y[i] = 0;
    acc[i] = 0;
  }
  const Layout::Axis& last = layout.axes.back();
  const std::int64_t step = last.output_stride == 0 ? 0 : 1;
  for_each_run(layout, x, [&](const T* run, std::int64_t output) {
    for (std::int64_t i = 0; i < last.size; ++i) {
      const std::int64_t o = output + i * step;
      acc[o] += static_cast<double>(std::exp(run[i] - y[o]));
    }
  });
  for (std::int64_t i = 0; i < layout.num_outputs; ++i) {
    y[i] = static_cast<T>(std::log(acc[i]) + static_cast<double>(y[i]));
  }
}

// Returns which axes of input 0 the node reduces; nullopt if not known at plan time.
std::optional<std::vector<bool>> reduced_axes(const KernelRequest& request) {
  const std::size_t rank = request.inputs[0].dims.rank();
  const bool has_axes = request.has_input(1);
  std::vector<std::int64_t> axes;
  if (has_axes) {
    const auto planned = planned_ints(request, 1);
    if (!planned) return std::nullopt;
    axes = *planned;
  }
  const bool keeps_all = axes.empty() && request.node.int_attribute("noop_with_empty_axes") != 0;
  std::vector<bool> is_reduced(rank, axes.empty() && !keeps_all);
  for (const std::int64_t axis : axes) {
    is_reduced[static_cast<std::size_t>(normalize_axis(axis, rank))] = true;
  }
  return is_reduced;
}

struct Choice {
  opdef::KernelFn fn = nullptr;
  std::int64_t acc_bytes = 0;
};

template <template <class> class Kind, class... Types>
Choice choose(DataType dtype) {
  Choice choice;
  const auto consider = [&]<class T>(T) {
    if (dtype == dtype_of<T>()) {
      choice = {kKernel<run_reduce<T, Kind<T>>>,
                static_cast<std::int64_t>(sizeof(typename Kind<T>::Acc))};
    }
  };
  (consider(Types{}), ...);
  return choice;
}

// Types that have a kernel for sums, and types that have one for comparisons.
template <template <class> class Kind>
Choice choose_number(DataType dtype) {
  return choose<Kind, float, double, std::int64_t, std::int32_t, std::uint64_t, std::uint32_t>(
      dtype);
}

template <template <class> class Kind>
Choice choose_ordered(DataType dtype) {
  return choose<Kind, float, double, std::int64_t, std::int32_t, std::uint64_t, std::uint32_t,
                std::int8_t, std::uint8_t, bool>(dtype);
}

Choice choose_log_sum_exp(DataType dtype) {
  if (dtype == DataType::kFloat32) return {kKernel<run_log_sum_exp<float>>, sizeof(double)};
  if (dtype == DataType::kFloat64) return {kKernel<run_log_sum_exp<double>>, sizeof(double)};
  return {};
}

template <Choice (*kChoose)(DataType)>
KernelOffer offer_reduce(const KernelRequest& request) {
  const Choice choice = kChoose(request.inputs[0].dtype);
  if (choice.fn == nullptr) return decline_dtype(request, request.inputs[0].dtype);
  const auto is_reduced = reduced_axes(request);
  if (!is_reduced) return KernelOffer::decline("the axes are not known before the step runs");
  Layout layout = merge_axes(request.inputs[0].dims, *is_reduced);
  const std::int64_t scratch_bytes = layout.num_outputs * choice.acc_bytes;
  KernelOffer offer =
      prepared(choice.fn, ReduceData{std::move(layout), request.inputs.size()}, "plain reduction");
  offer.kernel.scratch_bytes = scratch_bytes;
  return offer;
}

}  // namespace

void register_reduce_cpu(opdef::KernelRegistry& registry) {
  const auto add = [&registry](std::string_view op_type, opdef::KernelOfferFn offer) {
    registry.add("", op_type, 0, offer);
  };
  add("ReduceSum", offer_reduce<choose_number<Sum>>);
  add("ReduceMean", offer_reduce<choose_number<Mean>>);
  add("ReduceProd", offer_reduce<choose_number<Prod>>);
  add("ReduceMax", offer_reduce<choose_ordered<Max>>);
  add("ReduceMin", offer_reduce<choose_ordered<Min>>);
  add("ReduceSumSquare", offer_reduce<choose_number<SumSquare>>);
  add("ReduceL1", offer_reduce<choose_number<L1>>);
  add("ReduceL2", offer_reduce<choose_number<L2>>);
  add("ReduceLogSum", offer_reduce<choose<LogSum, float, double>>);
  add("ReduceLogSumExp", offer_reduce<choose_log_sum_exp>);
}

}  // namespace onnxgrad::ops::reduce_cpu
