#include <algorithm>
#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "device/cpu/convert.h"
#include "device/cpu/threads.h"
#include "ops/kernel_support.h"
#include "ops/nn/conv/conv_units_cpu.h"

// Convolutions of f16/bf16 images with float32 weights: a unit of work, some images or some
// channels of one, is converted to float32, computed by a float32 kernel and rounded again while it
// is in the L2 cache. Memory traffic is thus 16-bit only, and every kernel can be used. Start
// reading at run_unit.

namespace onnxgrad::ops::conv_f16 {
namespace {

// Float32 size of a unit: half of the L2 cache; and if all threads compute each unit together.
constexpr std::int64_t kUnitBytes = std::int64_t{512} * 1024;
constexpr std::int64_t kSharedUnitBytes = std::int64_t{16} * 1024 * 1024;
// Channels of a unit are a multiple of this, so that vectors are full.
constexpr std::int64_t kChannels = 16;
constexpr std::size_t kMostArgs = 8;

/// Operand x, y or residual.
struct Images {
  int arg = -1;
  bool is_result = false;
  std::int64_t elements = 0;            ///< per group and image
  std::int64_t element_bytes = 0;       ///< bytes of a stored element
  device::ConvertFn convert = nullptr;  ///< nullptr: float32
  ScratchArray<float> copy = {};        ///< in a unit's scratch
};

struct F16ConvPlan {
  ConvTask task;
  int threads = 1;
  bool is_shared = false;  ///< all threads compute each unit; false: each has its own units
  std::int64_t groups = 0;
  ConvUnits units;  ///< groups: `unit_groups` of the convolution's
  std::int64_t unit_groups = 0;
  std::vector<Images> tensors;
  std::int64_t group_weights = 0, group_bias = 0;  ///< elements
  /// Kernels by whether the unit has the last images, and the last groups.
  std::array<std::array<opdef::PreparedKernel, 2>, 2> kernels = {};
  ScratchBlocks thread_scratch = {};
  ScratchArray<float> sums = {};     ///< weights summed over units
  ScratchArray<float> partial = {};  ///< weights of one unit
  ScratchArray<std::byte> kernel_scratch = {};
  std::int64_t scratch_bytes = 0;

  bool is_sum() const { return task.pass == ConvTask::Pass::kBackwardWeight; }
  std::int64_t weights() const { return groups * group_weights; }
};

/// Images and groups of a unit.
struct Unit : ConvUnits::Unit {
  std::int64_t groups = 0;
  const opdef::PreparedKernel* kernel = nullptr;

  Unit(const F16ConvPlan& plan, std::int64_t index) : ConvUnits::Unit(plan.units.at(index)) {
    group *= plan.unit_groups;
    groups = std::min(plan.unit_groups, plan.groups - group);
    const bool is_last_image = images < plan.units.images;
    const bool is_last_group = groups < plan.unit_groups;
    kernel = &plan.kernels[is_last_image ? 1 : 0][is_last_group ? 1 : 0];
  }

  std::int64_t first(const F16ConvPlan& plan, const Images& tensor) const {
    return (image * plan.groups + group) * tensor.elements;
  }
  std::int64_t count(const Images& tensor) const { return images * groups * tensor.elements; }
};

/// Splits [0, count) among all threads: calls f(first, last) for each chunk.
struct OnAllThreads {
  int threads = 1;

  template <class F>
  void operator()(std::int64_t count, const F& f) const {
    device::parallel_ranges(threads, count, f);
  }
};

struct OnThisThread {
  template <class F>
  void operator()(std::int64_t count, const F& f) const {
    f(std::int64_t{0}, count);
  }
};

/// Runs a unit; if the weights are the result, they are written to `weights`.
template <class Split>
void run_unit(const F16ConvPlan& plan, const Unit& unit, KernelArgs args, std::byte* own,
              std::byte* weights, const Split& split, const Launch& launch) {
  constexpr auto kFloat = static_cast<std::int64_t>(sizeof(float));
  const ConvTask& task = plan.task;
  std::array<std::byte*, kMostArgs> inner = {};
  const auto argument = [&](int index) -> std::byte*& {
    return inner[static_cast<std::size_t>(index)];
  };
  for (int i = 0; i < task.scratch; ++i) argument(i) = args[i];
  const auto stored = [&](const Images& tensor, std::int64_t i) {
    return args[tensor.arg] + (unit.first(plan, tensor) + i) * tensor.element_bytes;
  };
  for (const Images& tensor : plan.tensors) {
    argument(tensor.arg) = tensor.convert == nullptr
                               ? stored(tensor, 0)
                               : reinterpret_cast<std::byte*>(tensor.copy.in(own));
    if (tensor.convert == nullptr || tensor.is_result) continue;
    split(unit.count(tensor), [&](std::int64_t first, std::int64_t last) {
      tensor.convert(tensor.copy.in(own) + first, stored(tensor, first), last - first);
    });
  }
  argument(task.w) =
      plan.is_sum() ? weights : args[task.w] + unit.group * plan.group_weights * kFloat;
  if (task.bias >= 0) argument(task.bias) = args[task.bias] + unit.group * plan.group_bias * kFloat;
  argument(task.scratch) = plan.kernel_scratch.in(own);
  unit.kernel->fn(unit.kernel->data.get(), inner.data(), launch);
  for (const Images& tensor : plan.tensors) {
    if (tensor.convert == nullptr || !tensor.is_result) continue;
    split(unit.count(tensor), [&](std::int64_t first, std::int64_t last) {
      tensor.convert(stored(tensor, first), tensor.copy.in(own) + first, last - first);
    });
  }
}

void add(const float* from, std::int64_t first, std::int64_t last, float* to) {
  for (std::int64_t i = first; i < last; ++i) to[i] += from[i];
}

/// Computes one unit after the other on all threads. Units have all groups.
void run_together(const F16ConvPlan& plan, KernelArgs args, const Launch& launch) {
  std::byte* own = args[plan.task.scratch];
  auto* w = args.at<float>(plan.task.w);
  const OnAllThreads split{plan.threads};
  for (std::int64_t u = 0; u < plan.units.count(); ++u) {
    float* to = u == 0 ? w : plan.partial.in(own);
    run_unit(plan, Unit(plan, u), args, own, reinterpret_cast<std::byte*>(to), split, launch);
    if (!plan.is_sum() || u == 0) continue;
    split(plan.weights(), [&](std::int64_t first, std::int64_t last) { add(to, first, last, w); });
  }
}

/// Computes separate units on each thread; sums are added in the order of units, then of threads.
void run_apart(const F16ConvPlan& plan, KernelArgs args, const Launch& launch) {
  std::byte* scratch = args[plan.task.scratch];
  auto* w = args.at<float>(plan.task.w);
  device::on_threads(plan.threads, [&](const device::Chunk& chunk) {
    std::byte* own = plan.thread_scratch.in(scratch, chunk.index);
    float* sums = chunk.index == 0 ? w : plan.sums.in(own);
    float* partial = plan.partial.in(own);
    const std::int64_t begin = chunk.first(plan.units.count());
    const std::int64_t end = chunk.last(plan.units.count());
    // The first unit with all weights initializes the sums.
    const bool are_whole = plan.units.groups == 1 && begin < end;
    if (plan.is_sum() && !are_whole) std::fill_n(sums, plan.weights(), 0.0F);
    for (std::int64_t u = begin; u < end; ++u) {
      const Unit unit(plan, u);
      float* to = are_whole && u == begin ? sums : partial;
      run_unit(plan, unit, args, own, reinterpret_cast<std::byte*>(to), OnThisThread(), launch);
      if (!plan.is_sum() || to == sums) continue;
      add(partial, 0, unit.groups * plan.group_weights, sums + unit.group * plan.group_weights);
    }
  });
  if (!plan.is_sum() || plan.threads == 1) return;
  device::on_threads(plan.threads, [&](const device::Chunk& chunk) {
    for (std::int64_t other = 1; other < chunk.count; ++other) {
      add(plan.sums.in(plan.thread_scratch.in(scratch, other)), chunk.first(plan.weights()),
          chunk.last(plan.weights()), w);
    }
  });
}

void run(const F16ConvPlan& plan, KernelArgs args, const Launch& launch) {
  if (plan.is_shared) {
    run_together(plan, args, launch);
  } else {
    run_apart(plan, args, launch);
  }
}

std::vector<Images> tensors_of(const KernelRequest& request, const ConvTask& task) {
  const ConvShape& shape = task.shape;
  std::vector<Images> tensors;
  const auto append = [&](int arg, std::int64_t elements, bool is_result) {
    if (arg < 0) return;
    const DataType type = operand(request, arg).dtype;
    Images images{.arg = arg,
                  .is_result = is_result,
                  .elements = elements,
                  .element_bytes = type == DataType::kFloat32 ? 4 : 2};
    if (type != DataType::kFloat32) {
      images.convert = is_result ? device::find_conversion(task.isa, DataType::kFloat32, type)
                                 : device::find_conversion(task.isa, type, DataType::kFloat32);
    }
    tensors.push_back(images);
  };
  const std::int64_t y = shape.out_channels * shape.output_size();
  append(task.x, shape.in_channels * shape.input_size(),
         task.pass == ConvTask::Pass::kBackwardData);
  append(task.y, y, task.pass == ConvTask::Pass::kForward);
  append(task.residual, y, false);
  return tensors;
}

/// Returns the elements of the copies of one group of one image.
std::int64_t copied_elements(const F16ConvPlan& plan) {
  std::int64_t elements = 0;
  for (const Images& tensor : plan.tensors) {
    if (tensor.convert != nullptr) elements += tensor.elements;
  }
  return elements;
}

/// Splits the images and groups into units. Every unit packs its weights: if a unit has more
/// weights than pixels, all threads compute it together.
void split_work(F16ConvPlan& plan) {
  const std::int64_t group = copied_elements(plan);
  const std::int64_t image = group * plan.groups;
  const std::int64_t fitting = kUnitBytes / static_cast<std::int64_t>(sizeof(float));
  ConvUnits& units = plan.units;
  plan.unit_groups = plan.groups;
  units.images = std::clamp<std::int64_t>(std::max(fitting, plan.weights()) / image, 1,
                                          std::max<std::int64_t>(units.batch / plan.threads, 1));
  if (image > fitting && plan.groups > kChannels) {
    const std::int64_t wanted = fitting / group / kChannels * kChannels;
    plan.unit_groups = std::clamp<std::int64_t>(wanted, kChannels, plan.groups);
  }
  units.images = even_part_of(units.batch, units.images, plan.threads);
  units.groups = ceil_div(plan.groups, plan.unit_groups);
  plan.is_shared =
      plan.threads > 1 && (units.count() < plan.threads ||
                           plan.unit_groups * (plan.group_weights - units.images * group) > 0);
  if (!plan.is_shared) return;
  plan.unit_groups = plan.groups;
  units.groups = 1;
  units.images = std::clamp<std::int64_t>(
      kSharedUnitBytes / static_cast<std::int64_t>(sizeof(float)) / image, 1, units.batch);
  units.images = split_evenly(units.batch, units.images).big;
}

/// Offers the float32 kernel of a unit.
KernelOffer unit_kernel(const KernelRequest& request, const F16ConvPlan& plan, std::int64_t images,
                        std::int64_t groups) {
  KernelRequest wide{.node = request.node,
                     .inputs = request.inputs,
                     .outputs = request.outputs,
                     .constants = std::vector<const Tensor*>(request.inputs.size(), nullptr),
                     .threads = plan.is_shared ? plan.threads : 1,
                     .cpu = request.cpu};
  for (auto* list : {&wide.inputs, &wide.outputs}) {
    for (TensorDesc& desc : *list) {
      if (desc.is_present()) desc.dtype = DataType::kFloat32;
    }
  }
  ConvTask task = plan.task;
  task.shape.batch = images;
  task.shape.groups = groups;
  return offer_conv_float(wide, task);
}

bool set_kernels(const KernelRequest& request, F16ConvPlan& plan, std::int64_t& scratch_bytes) {
  const std::int64_t last_images =
      plan.units.batch - (plan.units.image_units() - 1) * plan.units.images;
  const std::int64_t last_groups = plan.groups - (plan.units.groups - 1) * plan.unit_groups;
  for (const bool is_last_image : {false, true}) {
    for (const bool is_last_group : {false, true}) {
      if ((is_last_image && last_images == plan.units.images) ||
          (is_last_group && last_groups == plan.unit_groups)) {
        continue;
      }
      KernelOffer offer =
          unit_kernel(request, plan, is_last_image ? last_images : plan.units.images,
                      is_last_group ? last_groups : plan.unit_groups);
      if (offer.kernel.fn == nullptr) return false;
      scratch_bytes = std::max(scratch_bytes, offer.kernel.scratch_bytes);
      plan.kernels[is_last_image ? 1 : 0][is_last_group ? 1 : 0] = std::move(offer.kernel);
    }
  }
  return true;
}

void place_scratch(F16ConvPlan& plan, std::int64_t kernel_bytes) {
  ScratchLayout own;
  for (Images& tensor : plan.tensors) {
    if (tensor.convert == nullptr) continue;
    tensor.copy = own.reserve<float>(plan.units.images * plan.unit_groups * tensor.elements);
  }
  if (plan.is_sum() && !plan.is_shared) plan.sums = own.reserve<float>(plan.weights());
  if (plan.is_sum()) plan.partial = own.reserve<float>(plan.unit_groups * plan.group_weights);
  plan.kernel_scratch = own.reserve<std::byte>(kernel_bytes);
  ScratchLayout all;
  plan.thread_scratch = all.reserve_blocks(plan.is_shared ? 1 : plan.threads, own);
  plan.scratch_bytes = all.size_bytes();
}

bool is_float32(const KernelRequest& request, int arg) {
  return arg < 0 || operand(request, arg).dtype == DataType::kFloat32;
}

bool is_image_type(DataType type) {
  return type == DataType::kFloat32 || type == DataType::kFloat16 || type == DataType::kBfloat16;
}

}  // namespace
}  // namespace onnxgrad::ops::conv_f16

namespace onnxgrad::ops {

KernelOffer offer_conv_f16(const KernelRequest& request, const ConvTask& task) {
  using namespace conv_f16;  // NOLINT(google-build-using-namespace): this file's own
  if (!is_float32(request, task.w) || !is_float32(request, task.bias)) {
    return KernelOffer::decline("weights of 16 bits");
  }
  if (task.shape.flops() == 0) return KernelOffer::decline("an empty tensor");
  for (const int arg : {task.x, task.y, task.residual}) {
    if (arg >= 0 && !is_image_type(operand(request, arg).dtype)) {
      return KernelOffer::decline("images that are neither float32 nor of 16 bits");
    }
  }
  auto plan = std::make_shared<conv_f16::F16ConvPlan>();
  const ConvShape& shape = task.shape;
  plan->task = task;
  plan->threads = request.threads;
  plan->units.batch = shape.batch;
  plan->groups = shape.groups;
  plan->tensors = tensors_of(request, task);
  plan->group_weights = shape.out_channels * shape.in_channels * shape.kernel_size();
  plan->group_bias = task.pass == ConvTask::Pass::kForward ? shape.out_channels : shape.in_channels;
  if (copied_elements(*plan) == 0) return KernelOffer::decline("no images of 16 bits");
  split_work(*plan);
  std::int64_t kernel_bytes = 0;
  if (!set_kernels(request, *plan, kernel_bytes)) {
    return KernelOffer::decline("no kernel for float32");
  }
  place_scratch(*plan, kernel_bytes);
  opdef::PreparedKernel kernel;
  kernel.fn = kKernel<conv_f16::run>;
  kernel.label = "halves, " + plan->kernels[0][0].label;
  kernel.flops = shape.flops();
  kernel.scratch_bytes = plan->scratch_bytes;
  kernel.data = std::move(plan);
  return {.kernel = std::move(kernel), .declined = {}};
}

}  // namespace onnxgrad::ops
