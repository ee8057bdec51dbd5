#include "ops/nn/conv/conv_dnn_cuda.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/rounding.h"
#include "device/cuda/dnn.h"
#include "ops/kernel_support_cuda.h"

namespace onnxgrad::ops {
namespace conv_dnn_cuda {
namespace {

using device::cuda::DnnConvSpec;
using device::cuda::DnnPlan;
using device::cuda::TextKernel;
using device::cuda::Word;
using opdef::Layout;
using Pass = ConvOperands::Pass;

constexpr double kFewFlops = 2e6;  // about what a thread for each result does in 5 us

struct Library {
  std::shared_ptr<const DnnPlan> plan;
  std::vector<Word> tensors;  ///< addresses, in the order of add_convolution()
  int scratch = 0;
  std::vector<TextKernel> after;
};

void run(const void* data, opdef::KernelArgs args, const opdef::Launch& launch) {
  const auto& one = *static_cast<const Library*>(data);
  const auto at = [&](const Word& word) { return device::cuda::value_of(word, args, launch); };
  constexpr std::size_t kMostTensors = 5;
  std::array<std::uint64_t, kMostTensors> addresses{};
  std::ranges::transform(one.tensors, addresses.begin(), at);
  one.plan->run(std::span(addresses).first(one.tensors.size()), at(Word::argument(one.scratch)),
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
TextKernel epilogue(const opdef::KernelRequest& request, const ConvOperands& conv,
                    bool has_channels_last) {
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
       Word::of(has_channels_last ? 1
                : is_forward      ? shape.output_size()
                                  : shape.input_size()),
       Word::of(shape.groups * (is_forward ? shape.out_channels : shape.in_channels)),
       Word::of(static_cast<double>(conv.low)), Word::of(static_cast<double>(conv.high))});
}

// Converts `elements` of a result of 16 bits to float32.
TextKernel widening(const opdef::KernelRequest& request, DataType half, const Word& from,
                    const Word& to, std::int64_t elements) {
  const std::string text = fmt::format(
      R"(
OG_KERNEL(og_widen, 3) {{
  for (og_i64 i = og_first(); i < a.integer(2); i += og_stride()) {{
    a.pointer<float>(1)[i] = {}(a.pointer<const og_u16>(0)[i]);
  }}
}}
)",
      half == DataType::kFloat16 ? "og_from_f16" : "og_from_bf16");
  return text_kernel_over(request, elements, text, "og_widen", {from, to, Word::of(elements)});
}

// Rows of 16 bits and tf32 are read by the tensor cores channel by channel.
bool wants_channels_last(const DnnConvSpec& spec) {
  return spec.dtype == DataType::kFloat16 || spec.dtype == DataType::kBfloat16 ||
         (spec.dtype == DataType::kFloat32 && spec.allows_tf32);
}

// The plan with everything in it, or that of the sums alone if texts after it are faster.
std::shared_ptr<const DnnPlan> faster_plan(const opdef::KernelRequest& request, DnnConvSpec& spec,
                                           const ConvOperands& conv, std::string& declined) {
  constexpr double kLaunchUs = 1;
  constexpr double kBytesPerUs = 2.5e6;
  auto whole = device::cuda::dnn_convolution(card_of(request), spec, declined);
  const bool is_wide = spec.dtype == DataType::kFloat32 || spec.dtype == DataType::kFloat64;
  if (!spec.has_epilogue() || !is_wide) {  // 16 bits would be rounded twice
    if (whole == nullptr && spec.has_epilogue()) declined += " that rounds the result once";
    return whole;
  }
  DnnConvSpec sums = spec;
  sums.has_bias = sums.has_residual = false;
  sums.low = DnnConvSpec{}.low;
  sums.high = DnnConvSpec{}.high;
  auto apart = device::cuda::dnn_convolution(card_of(request), sums, declined);
  if (apart == nullptr) return whole;
  const Dims& dims = operand(request, conv.pass == Pass::kForward ? conv.y : conv.x).dims;
  const double bytes =
      static_cast<double>(dims.size_bytes(spec.dtype)) * (spec.has_residual ? 3 : 2);
  if (whole != nullptr && whole->time_us() <= apart->time_us() + kLaunchUs + bytes / kBytesPerUs) {
    return whole;
  }
  spec = sums;
  return apart;
}

// Sets the layouts of the arguments that are images or filters.
void set_layouts(const opdef::KernelRequest& request, const ConvOperands& conv,
                 opdef::PreparedKernel& kernel) {
  const std::size_t num_inputs = request.inputs.size();
  kernel.input_layouts.resize(num_inputs);
  kernel.output_layouts.resize(request.outputs.size());
  for (const int arg : {conv.x, conv.w, conv.y, conv.residual}) {
    if (arg < 0) continue;
    const auto i = static_cast<std::size_t>(arg);
    Layout& layout =
        i < num_inputs ? kernel.input_layouts[i] : kernel.output_layouts[i - num_inputs];
    layout = {.kind = Layout::Kind::kChannelsLast};
  }
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
  const int result = conv.pass == Pass::kForward        ? conv.y
                     : conv.pass == Pass::kBackwardData ? conv.x
                                                        : conv.w;
  DnnConvSpec spec{.pass = static_cast<DnnConvSpec::Pass>(conv.pass),
                   .dtype = operand(request, result == conv.w ? conv.x : conv.w).dtype,
                   .allows_tf32 = request.numerics.allows_tf32,
                   .is_deterministic = request.numerics.is_deterministic};
  // cuDNN has no gradient of 16-bit factors in float32: it is rounded, and then widened.
  const bool widens = conv.pass != Pass::kForward && !conv.finishes() && is_f16(spec.dtype) &&
                      operand(request, result).dtype == DataType::kFloat32;
  for (const int arg : {conv.x, conv.w, conv.y, conv.bias, conv.residual}) {
    const bool is_left = arg < 0 || (widens && arg == result);
    if (!is_left && operand(request, arg).dtype != spec.dtype) {
      return opdef::KernelOffer::decline("operands of different types");
    }
  }
  spec.x = dims_of(shape, shape.batch, shape.groups * shape.in_channels, &WindowAxis::input);
  spec.w =
      dims_of(shape, shape.groups * shape.out_channels, shape.in_channels, &WindowAxis::kernel);
  spec.y = dims_of(shape, shape.batch, shape.groups * shape.out_channels, &WindowAxis::output);
  spec.strides = numbers_of(shape, &WindowAxis::stride);
  spec.dilations = numbers_of(shape, &WindowAxis::dilation);
  spec.pads_begin = numbers_of(shape, &WindowAxis::pad_begin);
  spec.pads_end = numbers_of(shape, &WindowAxis::pad_end);
  spec.has_channels_last = wants_channels_last(spec);
  spec.has_bias = conv.bias >= 0;
  spec.has_residual = conv.residual >= 0;
  spec.low = static_cast<double>(conv.low);
  spec.high = static_cast<double>(conv.high);
  const bool finishes = spec.has_epilogue();
  std::string declined;
  auto made = std::make_shared<Library>();
  made->plan = faster_plan(request, spec, conv, declined);
  if (made->plan == nullptr) return opdef::KernelOffer::decline(declined);
  made->scratch = conv.scratch;
  std::int64_t scratch_bytes = made->plan->workspace_bytes();
  for (const int arg : {conv.x, conv.w, conv.y}) {
    if (!widens || arg != result) {
      made->tensors.push_back(Word::argument(arg));
      continue;
    }
    constexpr std::int64_t kAlignment = 256;
    const Word rounded = Word::argument(conv.scratch, base::round_up(scratch_bytes, kAlignment));
    const std::int64_t elements = operand(request, result).dims.num_elements();
    scratch_bytes = rounded.offset + elements * std::int64_t{sizeof(std::uint16_t)};
    made->tensors.push_back(rounded);
    made->after.push_back(widening(request, spec.dtype, rounded, Word::argument(result), elements));
  }
  if (spec.has_bias) made->tensors.push_back(Word::argument(conv.bias));
  if (spec.has_residual) made->tensors.push_back(Word::argument(conv.residual));
  const bool is_apart = finishes && !spec.has_epilogue();
  if (is_apart) made->after.push_back(epilogue(request, conv, spec.has_channels_last));
  opdef::KernelOffer offer;
  offer.kernel.fn = run;
  offer.kernel.label = std::string("cuDNN") + (spec.has_channels_last ? ", channels last" : "") +
                       (is_apart   ? ", then an epilogue"
                        : finishes ? ", with its epilogue"
                        : widens   ? ", widened"
                                   : "");
  offer.kernel.flops = shape.flops();
  offer.kernel.scratch_bytes = scratch_bytes;
  offer.kernel.is_deterministic = spec.is_deterministic;
  offer.kernel.data = std::move(made);
  if (spec.has_channels_last) set_layouts(request, conv, offer.kernel);
  return offer;
}

}  // namespace onnxgrad::ops
