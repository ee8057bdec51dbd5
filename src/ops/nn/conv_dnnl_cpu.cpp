#include <fmt/format.h>
#include <omp.h>

#include <dnnl.hpp>

#include <algorithm>
#include <array>
#include <memory>
#include <mutex>
#include <vector>

#include "base/check.h"
#include "ops/nn/conv_task.h"

// Convolutions by oneDNN. Its fast kernels want channels blocked by the vector length; tensors in a
// plan are row-major, so operands are reordered into scratch before and the result after. That
// costs about 5 % of the time with 16 channels and more, and half of it for a first layer of 1
// or 3.
//
// Threads: oneDNN's parallel regions take the count that OpenMP has for the calling thread, at
// creation and in each call. OmpThreads sets it for the length of a call; it is a property of the
// calling thread, so other threads see nothing of it. With one thread no parallel region is opened.
//
// Source of the algorithms: Georganas et al., Anatomy of High-Performance Deep Learning
// Convolutions on SIMD Architectures, SC 2018.

namespace onnxgrad::ops {

using opdef::KernelOffer;
using opdef::KernelRequest;
using opdef::Launch;

namespace {

constexpr std::int64_t kAlignment = 64;

class OmpThreads {
 public:
  explicit OmpThreads(int threads) : before_(omp_get_max_threads()) {
    if (threads != before_) omp_set_num_threads(threads);
    threads_ = threads;
  }
  ~OmpThreads() {
    if (threads_ != before_) omp_set_num_threads(before_);
  }
  OmpThreads(const OmpThreads&) = delete;
  OmpThreads& operator=(const OmpThreads&) = delete;

 private:
  int before_;
  int threads_ = 0;
};

// One oneDNN call: a primitive and its operands in the order of dnnl_primitive_execute.
struct Call {
  dnnl::primitive primitive;
  std::vector<dnnl_exec_arg_t> operands = {};
};

// Where a memory object's data is: an argument of the kernel, or an offset in its scratch block.
struct Place {
  dnnl::memory memory;
  int arg = -1;
  std::int64_t scratch_offset = 0;
};

// Everything that a step needs. The memory objects are written in each call, hence the lock: plans
// are meant to be shared, and an uncontended lock costs nothing beside a convolution.
struct DnnlConv {
  std::mutex mutex;
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  std::vector<Place> places;
  std::vector<Call> calls;
  int scratch_arg = -1;
  int threads = 1;
  // A bias that oneDNN's kernel does not add: result [batch, channels, positions] += bias[channel].
  int bias_arg = -1;
  int result_arg = -1;
  std::int64_t batch = 0;
  std::int64_t channels = 0;
  std::int64_t positions = 0;
};

void add_bias(const DnnlConv& conv, std::byte* const* args) {
  auto* result = reinterpret_cast<float*>(args[conv.result_arg]);
  const auto* bias = reinterpret_cast<const float*>(args[conv.bias_arg]);
  for (std::int64_t n = 0; n < conv.batch; ++n) {
    for (std::int64_t c = 0; c < conv.channels; ++c, result += conv.positions) {
      for (std::int64_t i = 0; i < conv.positions; ++i) result[i] += bias[c];
    }
  }
}

void run_dnnl(const void* data, std::byte* const* args, const Launch&) {
  // The planner hands data out as const; the lock makes these writes safe.
  auto& conv = *const_cast<DnnlConv*>(static_cast<const DnnlConv*>(data));  // NOLINT
  const std::scoped_lock lock(conv.mutex);
  const OmpThreads threads(conv.threads);
  for (const Place& place : conv.places) {
    std::byte* address =
        place.arg < 0 ? args[conv.scratch_arg] + place.scratch_offset : args[place.arg];
    dnnl_memory_set_data_handle(place.memory.get(), address);
  }
  for (const Call& call : conv.calls) {
    const dnnl_status_t status =
        dnnl_primitive_execute(call.primitive.get(), conv.stream.get(),
                               static_cast<int>(call.operands.size()), call.operands.data());
    ONNXGRAD_ASSERT(status == dnnl_success);
  }
  if (conv.bias_arg >= 0) add_bias(conv, args);
}

using Tag = dnnl::memory::format_tag;
using DnnlDims = dnnl::memory::dims;

dnnl::memory::desc plain_desc(const DnnlDims& dims) {
  constexpr std::array kTags = {Tag::a, Tag::ab, Tag::abc, Tag::abcd, Tag::abcde, Tag::abcdef};
  return {dims, dnnl::memory::data_type::f32, kTags.at(dims.size() - 1)};
}

dnnl::memory::desc any_desc(const DnnlDims& dims) {
  return {dims, dnnl::memory::data_type::f32, Tag::any};
}

// The dimensions of a convolution as oneDNN wants them.
struct Geometry {
  DnnlDims x, w, y, bias, strides, dilations, pad_begin, pad_end;

  explicit Geometry(const ConvShape& shape) {
    const std::int64_t g = shape.groups;
    x = {shape.batch, g * shape.in_channels};
    y = {shape.batch, g * shape.out_channels};
    w = {shape.out_channels, shape.in_channels};
    if (g > 1) w.insert(w.begin(), g);
    bias = {g * shape.out_channels};
    for (std::size_t i = 3 - shape.spatial_rank; i < 3; ++i) {
      const WindowAxis& axis = shape.axes[i];
      x.push_back(axis.input);
      y.push_back(axis.output);
      w.push_back(axis.kernel);
      strides.push_back(axis.stride);
      dilations.push_back(axis.dilation - 1);
      pad_begin.push_back(axis.pad_begin);
      // Exactly what the windows cover; may be negative.
      pad_end.push_back((axis.output - 1) * axis.stride + axis.extent() - axis.input -
                        axis.pad_begin);
    }
  }
};

// Builds the calls: reorders of the operands, the convolution, the reorder of the result.
class Builder {
 public:
  explicit Builder(const ConvTask& task, int threads)
      : task_(task), geometry_(task.shape), conv_(std::make_shared<DnnlConv>()) {
    conv_->scratch_arg = task.scratch;
    conv_->threads = threads;
    attr_.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  }

  std::shared_ptr<DnnlConv> build() {
    // With few input channels the blocked backward-data kernel wastes most of its lanes; the plain
    // one multiplies matrices (docs/benchmarks.md: 3 channels, 3x3: 30 against 60 Gflop/s).
    const bool is_plain = task_.pass == ConvTask::Pass::kBackwardData && task_.shape.groups == 1 &&
                          task_.shape.in_channels < 8;
    const auto desc = is_plain ? plain_desc : any_desc;
    const bool has_bias = task_.bias >= 0 && task_.pass == ConvTask::Pass::kForward;
    const dnnl::convolution_forward::desc forward_desc =
        has_bias ? dnnl::convolution_forward::desc(
                       dnnl::prop_kind::forward_training, dnnl::algorithm::convolution_direct,
                       desc(geometry_.x), desc(geometry_.w), plain_desc(geometry_.bias),
                       desc(geometry_.y), geometry_.strides, geometry_.dilations,
                       geometry_.pad_begin, geometry_.pad_end)
                 : dnnl::convolution_forward::desc(
                       dnnl::prop_kind::forward_training, dnnl::algorithm::convolution_direct,
                       desc(geometry_.x), desc(geometry_.w), desc(geometry_.y), geometry_.strides,
                       geometry_.dilations, geometry_.pad_begin, geometry_.pad_end);
    const dnnl::convolution_forward::primitive_desc forward(forward_desc, attr_, conv_->engine);
    switch (task_.pass) {
      case ConvTask::Pass::kForward:
        add_forward(forward, has_bias);
        break;
      case ConvTask::Pass::kBackwardData:
        add_backward_data(forward, desc);
        conv_->bias_arg = task_.bias;
        conv_->result_arg = task_.x;
        conv_->batch = task_.shape.batch;
        conv_->channels = task_.shape.groups * task_.shape.in_channels;
        conv_->positions = task_.shape.input_size();
        break;
      case ConvTask::Pass::kBackwardWeight:
        add_backward_weight(forward);
        break;
    }
    return conv_;
  }

  std::int64_t scratch_bytes() const { return scratch_bytes_; }
  const std::string& implementation() const { return implementation_; }

 private:
  void add_forward(const dnnl::convolution_forward::primitive_desc& desc, bool has_bias) {
    Call call{.primitive = dnnl::convolution_forward(desc)};
    call.operands = {{DNNL_ARG_SRC, input(task_.x, geometry_.x, desc.src_desc())},
                     {DNNL_ARG_WEIGHTS, input(task_.w, geometry_.w, desc.weights_desc())}};
    if (has_bias) {
      call.operands.push_back({DNNL_ARG_BIAS, argument(task_.bias, desc.bias_desc())});
    }
    finish(std::move(call), desc, DNNL_ARG_DST, task_.y, geometry_.y, desc.dst_desc());
  }

  template <class DescFn>
  void add_backward_data(const dnnl::convolution_forward::primitive_desc& forward, DescFn any) {
    const dnnl::convolution_backward_data::primitive_desc desc(
        {dnnl::algorithm::convolution_direct, any(geometry_.x), any(geometry_.w), any(geometry_.y),
         geometry_.strides, geometry_.dilations, geometry_.pad_begin, geometry_.pad_end},
        attr_, conv_->engine, forward);
    Call call{.primitive = dnnl::convolution_backward_data(desc)};
    call.operands = {{DNNL_ARG_DIFF_DST, input(task_.y, geometry_.y, desc.diff_dst_desc())},
                     {DNNL_ARG_WEIGHTS, input(task_.w, geometry_.w, desc.weights_desc())}};
    finish(std::move(call), desc, DNNL_ARG_DIFF_SRC, task_.x, geometry_.x, desc.diff_src_desc());
  }

  void add_backward_weight(const dnnl::convolution_forward::primitive_desc& forward) {
    const dnnl::convolution_backward_weights::primitive_desc desc(
        {dnnl::algorithm::convolution_direct, any_desc(geometry_.x), any_desc(geometry_.w),
         any_desc(geometry_.y), geometry_.strides, geometry_.dilations, geometry_.pad_begin,
         geometry_.pad_end},
        attr_, conv_->engine, forward);
    Call call{.primitive = dnnl::convolution_backward_weights(desc)};
    call.operands = {{DNNL_ARG_SRC, input(task_.x, geometry_.x, desc.src_desc())},
                     {DNNL_ARG_DIFF_DST, input(task_.y, geometry_.y, desc.diff_dst_desc())}};
    finish(std::move(call), desc, DNNL_ARG_DIFF_WEIGHTS, task_.w, geometry_.w,
           desc.diff_weights_desc());
  }

  // A memory object at an argument of the kernel.
  dnnl_memory_t argument(int arg, const dnnl::memory::desc& desc) {
    conv_->places.push_back(
        {.memory = dnnl::memory(desc, conv_->engine, DNNL_MEMORY_NONE), .arg = arg});
    return conv_->places.back().memory.get();
  }

  // A memory object in the scratch block.
  dnnl_memory_t scratch(const dnnl::memory::desc& desc) {
    conv_->places.push_back({.memory = dnnl::memory(desc, conv_->engine, DNNL_MEMORY_NONE),
                             .scratch_offset = scratch_bytes_});
    const auto bytes = static_cast<std::int64_t>(desc.get_size());
    scratch_bytes_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return conv_->places.back().memory.get();
  }

  void add_reorder(const dnnl::memory::desc& from_desc, dnnl_memory_t from,
                   const dnnl::memory::desc& to_desc, dnnl_memory_t to) {
    const dnnl::reorder::primitive_desc desc(conv_->engine, from_desc, conv_->engine, to_desc,
                                             attr_);
    Call call{.primitive = dnnl::reorder(desc)};
    call.operands = {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}};
    add_scratchpad(call, desc.scratchpad_desc());
    conv_->calls.push_back(std::move(call));
  }

  void add_scratchpad(Call& call, const dnnl::memory::desc& desc) {
    if (desc.get_size() > 0) call.operands.push_back({DNNL_ARG_SCRATCHPAD, scratch(desc)});
  }

  // The argument as `wanted`: itself, or reordered into scratch.
  dnnl_memory_t input(int arg, const DnnlDims& dims, const dnnl::memory::desc& wanted) {
    const dnnl::memory::desc plain = plain_desc(dims);
    dnnl_memory_t given = argument(arg, plain);
    if (plain == wanted) return given;
    dnnl_memory_t reordered = scratch(wanted);
    add_reorder(plain, given, wanted, reordered);
    return reordered;
  }

  template <class PrimitiveDesc>
  void finish(Call call, const PrimitiveDesc& desc, int result_arg, int arg, const DnnlDims& dims,
              const dnnl::memory::desc& result_desc) {
    const dnnl::memory::desc plain = plain_desc(dims);
    dnnl_memory_t result = argument(arg, plain);
    const bool is_plain = plain == result_desc;
    dnnl_memory_t computed = is_plain ? result : scratch(result_desc);
    call.operands.push_back({result_arg, computed});
    add_scratchpad(call, desc.scratchpad_desc());
    conv_->calls.push_back(std::move(call));
    if (!is_plain) add_reorder(result_desc, computed, plain, result);
    implementation_ = desc.impl_info_str();
  }

  const ConvTask& task_;
  Geometry geometry_;
  std::shared_ptr<DnnlConv> conv_;
  dnnl::primitive_attr attr_;
  std::int64_t scratch_bytes_ = 0;
  std::string implementation_;
};

}  // namespace

KernelOffer offer_conv_dnnl(const KernelRequest& request) {
  if (request.outputs[0].dtype != DataType::kFloat32) return KernelOffer::decline("float32 only");
  const auto task = ConvTask::of(request);
  if (!task) return KernelOffer::decline("more than three spatial axes");
  if (task->shape.flops() == 0) return KernelOffer::decline("an empty tensor");
  const OmpThreads threads(request.threads);
  Builder builder(*task, request.threads);
  try {
    opdef::PreparedKernel kernel;
    kernel.data = builder.build();
    kernel.fn = run_dnnl;
    kernel.scratch_bytes = builder.scratch_bytes();
    kernel.label = "dnnl " + builder.implementation();
    kernel.flops = task->shape.flops();
    return {.kernel = std::move(kernel), .declined = {}};
  } catch (const dnnl::error& error) {
    return KernelOffer::decline(fmt::format("oneDNN has no kernel: {}", error.what()));
  }
}

}  // namespace onnxgrad::ops
