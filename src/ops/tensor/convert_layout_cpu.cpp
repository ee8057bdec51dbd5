#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

#include "device/cpu_options.h"
#include "ir/builder.h"
#include "opdef/convert_layout.h"
#include "opdef/kernel.h"
#include "opdef/layout_order.h"
#include "ops/kernel_support.h"
#include "ops/tensor/strided_copy_cpu.h"

namespace onnxgrad::ops::convert_layout_cpu {
namespace {

using opdef::Layout;

// Strides of a run of channels in one of the two memories, in elements.
struct Strides {
  std::int64_t image = 0;
  std::int64_t group = 0;  // of as many channels as the conversion takes together
  std::int64_t channel = 0;
  std::int64_t pixel = 0;
};

// Images, channels and pixels of a tensor.
struct Shape {
  std::int64_t images = 1, channels = 1, pixels = 1;

  // Groups of `group` channels, which divides the block of a blocked layout or is all of it.
  Strides strides(Layout layout, std::int64_t group) const {
    if (layout.is_plain()) return {channels * pixels, group * pixels, pixels, 1};
    if (layout.kind == Layout::Kind::kChannelsLast) return {pixels * channels, group, 1, channels};
    const std::int64_t block = layout.block;
    return {ceil_div(channels, block) * pixels * block, pixels * block, 1, block};
  }
  std::int64_t offset_of_channel(Layout layout, std::int64_t c) const {
    if (layout.is_plain()) return c * pixels;
    if (layout.kind == Layout::Kind::kChannelsLast) return c;
    return c / layout.block * pixels * layout.block + c % layout.block;
  }
};

// Bytes of the target's last block that no channel has, with what else is in that block.
struct Padding {
  std::int64_t offset = 0;  // in the first image
  std::int64_t bytes = 0;   // 0: there is none
  std::int64_t image = 0;   // bytes from image to image
  std::int64_t images = 0;
};

struct Task {
  std::vector<CopyPlan> copies;
  Padding padding;
};

void run(const Task& task, KernelArgs args) {
  const Padding& padding = task.padding;
  for (std::int64_t n = 0; n < (padding.bytes > 0 ? padding.images : 0); ++n) {
    std::memset(args[1] + padding.offset + n * padding.image, 0,
                static_cast<std::size_t>(padding.bytes));
  }
  for (const CopyPlan& copy : task.copies) run_copy(copy, args[0], args[1]);
}

// Copies `groups` groups of `group` channels from channel `first` on.
CopyRequest copy_of(const Shape& shape, Layout from, Layout to, std::int64_t first,
                    std::int64_t groups, std::int64_t group, std::int64_t unit) {
  const Strides source = shape.strides(from, unit);
  const Strides target = shape.strides(to, unit);
  struct Axis {
    std::int64_t size, source, target;
  };
  std::array axes{
      Axis{shape.images, source.image, target.image}, Axis{groups, source.group, target.group},
      Axis{group, source.channel, target.channel}, Axis{shape.pixels, source.pixel, target.pixel}};
  std::ranges::stable_sort(axes, std::ranges::greater(), &Axis::target);
  CopyRequest copy{.source_offset = shape.offset_of_channel(from, first),
                   .target_offset = shape.offset_of_channel(to, first)};
  for (const Axis& axis : axes) {
    copy.sizes.push_back(axis.size);
    copy.source_strides.push_back(axis.source);
    copy.target_strides.push_back(axis.target);
  }
  return copy;
}

// Parts of the channels in which both memories have one stride from group to group: whole blocks
// and a rest, or, from blocks to other blocks, pieces that are within one block of both.
std::vector<CopyRequest> copies_of(const Shape& shape, Layout from, Layout to) {
  const bool from_blocks = from.kind == Layout::Kind::kBlocked;
  const bool to_blocks = to.kind == Layout::Kind::kBlocked;
  std::vector<CopyRequest> copies;
  if (from_blocks && to_blocks) {
    const std::int64_t piece = std::gcd(std::int64_t{from.block}, std::int64_t{to.block});
    for (std::int64_t c = 0; c < shape.channels; c += piece) {
      const std::int64_t size = std::min(piece, shape.channels - c);
      copies.push_back(copy_of(shape, from, to, c, 1, size, piece));
    }
    return copies;
  }
  std::int64_t block = from_blocks ? from.block : to.block;
  if (!from_blocks && !to_blocks) block = shape.channels;
  const std::int64_t whole = shape.channels / block;
  const std::int64_t rest = shape.channels % block;
  if (whole > 0) copies.push_back(copy_of(shape, from, to, 0, whole, block, block));
  if (rest > 0) copies.push_back(copy_of(shape, from, to, whole * block, 1, rest, block));
  return copies;
}

KernelOffer offer_convert(const KernelRequest& request) {
  const auto op = opdef::ConvertLayout::read(request.node);
  const TensorDesc& x = request.inputs[0];
  const std::int64_t bytes = element_bytes(x.dtype);
  if (bytes == 0) return decline_dtype(request, x.dtype);
  Task task;
  if (x.dims.num_elements() > 0) {
    if (x.dims.rank() < 2) return KernelOffer::decline("a layout has channels");
    const Shape shape{
        .images = x.dims[0], .channels = x.dims[1], .pixels = x.dims.product(2, x.dims.rank())};
    for (CopyRequest& copy : copies_of(shape, op.from, op.to)) {
      copy.element_bytes = bytes;
      task.copies.push_back(plan_copy(copy, device::isa_of(request), request.threads));
    }
    if (op.to.kind == Layout::Kind::kBlocked && shape.channels % op.to.block != 0) {
      const std::int64_t plane = shape.pixels * op.to.block * bytes;
      const std::int64_t blocks = ceil_div(shape.channels, op.to.block);
      task.padding = {.offset = (blocks - 1) * plane,
                      .bytes = plane,
                      .image = blocks * plane,
                      .images = shape.images};
    }
  }
  KernelOffer offer =
      prepared<run>(std::move(task), fmt::format("{} to {}", to_string(op.from), to_string(op.to)));
  offer.kernel.input_layouts = {op.from};
  offer.kernel.output_layouts = {op.to};
  return offer;
}

}  // namespace

void register_convert_layout_cpu(opdef::KernelRegistry& registry) {
  registry.add(ir::kFusedDomain, opdef::kConvertLayout, 0, offer_convert);
}

}  // namespace onnxgrad::ops::convert_layout_cpu
