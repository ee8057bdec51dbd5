#include "ops/nn/conv_dnn_cuda.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "device/cuda/dnn.h"
#include "ops/kernel_support_cuda.h"

namespace onnxgrad::ops {
namespace conv_dnn_cuda {
namespace {

using device::cuda::DnnConvolution;
using device::cuda::DnnConvSpec;
using device::cuda::TextKernel;
using device::cuda::Word;
using Pass = ConvOperands::Pass;

constexpr double kFewFlops = 2e6;  // about what a thread for each result does in 5 us

struct Library {
  std::shared_ptr<const DnnConvolution> convolution;
  int x = 0;
  int w = 0;
  int y = 0;
  int scratch = 0;
  std::vector<TextKernel> after;
};

void run(const void* data, opdef::KernelArgs args, const opdef::Launch& launch) {
  const auto& one = *static_cast<const Library*>(data);
  const auto at = [&](int arg) {
    return device::cuda::value_of(Word::argument(arg), args, launch);
  };
  one.convolution->run(
      {.x = at(one.x), .w = at(one.w), .y = at(one.y), .workspace = at(one.scratch)},
      launch.stream);
  device::cuda::launch_text_kernels(&one.after, args, launch);
}

// The windows that cuDNN derives from the sizes have to be those of the task.
bool derives_output(const WindowAxis& axis) {
  const std::int64_t room = axis.input + axis.pad_begin + axis.pad_end - axis.extent();
  return room >= 0 && room / axis.stride + 1 == axis.output && axis.pad_begin >= 0 &&
         axis.pad_end >= 0;
}

// [channels, two or three spatial axes]: a leading one of size 1 is left out.
std::vector<std::int64_t> dims_of(const ConvShape& shape, std::int64_t first, std::int64_t second,
                                  std::int64_t WindowAxis::* size) {
  std::vector<std::int64_t> dims{first, second};
  for (std::size_t i = shape.spatial_rank == 3 ? 0 : 1; i < 3; ++i) {
    dims.push_back(shape.axes[i].*size);
  }
  return dims;
}

std::vector<std::int64_t> numbers_of(const ConvShape& shape, std::int64_t WindowAxis::* number) {
  std::vector<std::int64_t> numbers = dims_of(shape, 0, 0, number);
  numbers.erase(numbers.begin(), numbers.begin() + 2);
  return numbers;
}

// Adds bias and residual to the result in place, and clamps it.
TextKernel epilogue(const opdef::KernelRequest& request, const ConvOperands& conv) {
  const bool is_forward = conv.pass == Pass::kForward;
  const ConvShape& shape = conv.shape;
  const int result = is_forward ? conv.y : conv.x;
  const opdef::TensorDesc& desc = operand(request, result);
  const std::string text =
      std::string("typedef ") + (desc.dtype == DataType::kFloat64 ? "double" : "float") + R"( og_t;
OG_KERNEL(og_finish_all, 8) {
  og_t* const y = a.pointer<og_t>(0);
  const og_t low = (og_t)a.real(6), high = (og_t)a.real(7);
  for (og_i64 i = og_first(); i < a.integer(3); i += og_stride()) {
    og_t value = y[i];
    if (a.integer(1) != 0) {
      value = value + a.pointer<og_t>(1)[i / a.integer(4) % a.integer(5)];
    }
    if (a.integer(2) != 0) value = value + a.pointer<og_t>(2)[i];
    y[i] = value < low ? low : value > high ? high : value;  // NaN stays NaN
  }
}
)";
  const auto address = [](int arg) {
    return arg < 0 ? Word::of(std::int64_t{0}) : Word::argument(arg);
  };
  const std::int64_t elements = desc.dims.num_elements();
  return text_kernel_over(
      request, elements, text, "og_finish_all",
      {Word::argument(result), address(conv.bias), address(conv.residual), Word::of(elements),
       Word::of(is_forward ? shape.output_size() : shape.input_size()),
       Word::of(shape.groups * (is_forward ? shape.out_channels : shape.in_channels)),
       Word::of(static_cast<double>(conv.low)), Word::of(static_cast<double>(conv.high))});
}

}  // namespace
}  // namespace conv_dnn_cuda

opdef::KernelOffer offer_conv_dnn(const opdef::KernelRequest& request, const ConvOperands& conv) {
  using namespace conv_dnn_cuda;  // NOLINT(google-build-using-namespace)
  const ConvShape& shape = conv.shape;
  if (shape.flops() < kFewFlops) return opdef::KernelOffer::decline("a small convolution");
  if (!std::ranges::all_of(shape.axes, derives_output)) {
    return opdef::KernelOffer::decline("windows that the pads do not give");
  }
  DnnConvSpec spec{.pass = static_cast<DnnConvSpec::Pass>(conv.pass),
                   .dtype = operand(request, conv.w).dtype,
                   .allows_tf32 = request.numerics.allows_tf32,
                   .is_deterministic = request.numerics.is_deterministic};
  const bool finishes = conv.bias >= 0 || conv.finishes();
  const bool is_wide = spec.dtype == DataType::kFloat32 || spec.dtype == DataType::kFloat64;
  for (const int arg : {conv.x, conv.y, conv.bias, conv.residual}) {
    if (arg >= 0 && operand(request, arg).dtype != spec.dtype) {
      return opdef::KernelOffer::decline("operands of different types");
    }
  }
  if (finishes && !is_wide) return opdef::KernelOffer::decline("a result that is rounded twice");
  spec.x = dims_of(shape, shape.batch, shape.groups * shape.in_channels, &WindowAxis::input);
  spec.w =
      dims_of(shape, shape.groups * shape.out_channels, shape.in_channels, &WindowAxis::kernel);
  spec.y = dims_of(shape, shape.batch, shape.groups * shape.out_channels, &WindowAxis::output);
  spec.strides = numbers_of(shape, &WindowAxis::stride);
  spec.dilations = numbers_of(shape, &WindowAxis::dilation);
  spec.pads_begin = numbers_of(shape, &WindowAxis::pad_begin);
  spec.pads_end = numbers_of(shape, &WindowAxis::pad_end);
  std::string declined;
  auto made = std::make_shared<Library>();
  made->convolution = DnnConvolution::of(card_of(request), spec, declined);
  if (made->convolution == nullptr) return opdef::KernelOffer::decline(declined);
  made->x = conv.x;
  made->w = conv.w;
  made->y = conv.y;
  made->scratch = conv.scratch;
  if (finishes) made->after.push_back(epilogue(request, conv));
  opdef::KernelOffer offer;
  offer.kernel.fn = run;
  offer.kernel.label = finishes ? "cuDNN, then an epilogue" : "cuDNN";
  offer.kernel.flops = shape.flops();
  offer.kernel.scratch_bytes = made->convolution->workspace_bytes();
  offer.kernel.is_deterministic = spec.is_deterministic;
  offer.kernel.data = std::move(made);
  return offer;
}

}  // namespace onnxgrad::ops
