#include "ops/nn/pool_dnn_cuda.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "device/cuda/dnn.h"
#include "device/cuda/libraries.h"
#include "device/cuda/timing.h"
#include "ops/kernel_support_cuda.h"

namespace onnxgrad::ops {
namespace pool_dnn_cuda {
namespace {

using device::cuda::DnnPlan;
using device::cuda::DnnPoolSpec;
using device::cuda::TextKernel;
using device::cuda::Word;
using Kind = PoolOperands::Kind;

constexpr std::int64_t kFewReads = 100'000;
constexpr int kTimedRuns = 3;

struct Library {
  std::shared_ptr<const DnnPlan> plan;
  int x = 0, y = 0, scratch = 0;
};

void run(const void* data, opdef::KernelArgs args, const opdef::Launch& launch) {
  const auto& one = *static_cast<const Library*>(data);
  const auto at = [&](int arg) {
    return device::cuda::value_of(Word::argument(arg), args, launch);
  };
  const std::array<std::uint64_t, 2> addresses{at(one.x), at(one.y)};
  one.plan->run(addresses, at(one.scratch), launch.stream);
}

bool is_plain(const WindowAxis& axis) {
  const std::int64_t room = axis.input + axis.pad_begin + axis.pad_end - axis.kernel;
  return axis.dilation == 1 && axis.pad_begin >= 0 && axis.pad_end >= 0 && room >= 0 &&
         room / axis.stride + 1 == axis.output;
}

std::vector<std::int64_t> numbers_of(const PoolShape& shape, std::int64_t WindowAxis::* number,
                                     std::vector<std::int64_t> first = {}) {
  for (std::size_t i = shape.spatial_rank == 3 ? 0 : 1; i < 3; ++i) {
    first.push_back(shape.axes[i].*number);
  }
  return first;
}

// Time of one launch, with operands and results of zeros.
double time_us(const opdef::KernelRequest& request, const TextKernel& text) {
  device::cuda::Context& context = *card_of(request);
  device::cuda::Handle made = nullptr;
  device::cuda::check(device::cuda::driver().StreamCreate(&made, device::cuda::kNonBlocking),
                      "cuStreamCreate");
  const device::cuda::Owned stream(made, device::cuda::driver().StreamDestroy);
  std::vector<device::Buffer> buffers;
  std::vector<std::byte*> args;
  for (const auto* list : {&request.inputs, &request.outputs}) {
    for (const opdef::TensorDesc& desc : *list) {
      const std::int64_t bytes = desc.is_present() ? desc.dims.size_bytes(desc.dtype) : 0;
      buffers.push_back(context.allocate(std::max<std::int64_t>(bytes, 1)));
      const auto address = static_cast<std::uint64_t>(buffers.back().address);
      device::cuda::check(device::cuda::driver().MemsetD8Async(
                              address, 0, static_cast<std::size_t>(bytes), stream.get()),
                          "cuMemsetD8Async");
      args.push_back(static_cast<std::byte*>(device::cuda::library_pointer(address)));
    }
  }
  return device::cuda::best_time_us(stream.get(), kTimedRuns, [&] {
    device::cuda::launch_text_kernel(text, args.data(), {.stream = stream.get()});
    return device::cuda::kSuccess;
  });
}

}  // namespace
}  // namespace pool_dnn_cuda

opdef::KernelOffer offer_pool_dnn(const opdef::KernelRequest& request, const PoolShape& shape,
                                  const PoolOperands& pool, const device::cuda::TextKernel& text) {
  using namespace pool_dnn_cuda;  // NOLINT(google-build-using-namespace)
  std::int64_t reads = shape.planes * shape.output_size();
  for (const WindowAxis& axis : shape.axes) reads *= axis.kernel;
  if (reads < kFewReads) return opdef::KernelOffer::decline("a small pool");
  if (!std::ranges::all_of(shape.axes, is_plain)) {
    return opdef::KernelOffer::decline("windows that cuDNN has not");
  }
  const bool counts_pads = request.node.int_attribute("count_include_pad", 0) != 0;
  const std::int64_t channels = request.inputs[0].dims[1];
  const std::vector<std::int64_t> images{shape.planes / channels, channels};
  const DnnPoolSpec spec{.mode = pool.kind == Kind::kMaximum ? device::cuda::dnn_api::kMaximumPool
                                 : counts_pads ? device::cuda::dnn_api::kAverageWithPads
                                               : device::cuda::dnn_api::kAverage,
                         .is_gradient = pool.kind == Kind::kAverageGradient,
                         .dtype = request.inputs[0].dtype,
                         .x = numbers_of(shape, &WindowAxis::input, images),
                         .y = numbers_of(shape, &WindowAxis::output, images),
                         .kernel = numbers_of(shape, &WindowAxis::kernel),
                         .strides = numbers_of(shape, &WindowAxis::stride),
                         .pads_begin = numbers_of(shape, &WindowAxis::pad_begin),
                         .pads_end = numbers_of(shape, &WindowAxis::pad_end),
                         .is_deterministic = request.numerics.is_deterministic};
  std::string declined;
  auto plan = device::cuda::dnn_pool(card_of(request), spec, declined);
  if (plan == nullptr) return opdef::KernelOffer::decline(declined);
  if (time_us(request, text) < plan->time_us()) {
    return opdef::KernelOffer::decline("the text is faster");
  }
  opdef::KernelOffer offer;
  offer.kernel.fn = run;
  offer.kernel.label = "cuDNN, windows of " + std::to_string(reads) + " elements";
  offer.kernel.scratch_bytes = plan->workspace_bytes();
  offer.kernel.is_deterministic = spec.is_deterministic;
  offer.kernel.data = std::make_shared<Library>(
      Library{.plan = std::move(plan),
              .x = pool.x,
              .y = pool.y,
              .scratch = static_cast<int>(request.inputs.size() + request.outputs.size())});
  return offer;
}

}  // namespace onnxgrad::ops
