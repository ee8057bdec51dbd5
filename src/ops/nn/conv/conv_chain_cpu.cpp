#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "device/cpu/threads.h"
#include "opdef/conv_chain.h"
#include "opdef/registry.h"
#include "ops/candidate_cpu.h"
#include "ops/kernel_support.h"
#include "ops/nn/conv/conv_units_cpu.h"

// Consecutive convolutions on a few images at a time: a result is still in the cache when the next
// convolution reads it, and needs no memory of its own. Each uses the best kernel for that number
// of images (offer_conv_float).

namespace onnxgrad::ops::conv_chain_cpu {

using opdef::ConvChain;

namespace {

// Input and output size of a unit's largest convolution: most of an L2 cache.
constexpr std::int64_t kUnitBytes = std::int64_t{768} * 1024;
// A result between two links, of all images, that stays in the cache anyway; and of one image, that
// does not.
constexpr std::int64_t kLeastBytes = std::int64_t{1} << 20;
constexpr std::int64_t kMostImageBytes = std::int64_t{2} << 20;
constexpr double kLongestWait = 1.15;  // largest ratio of the busiest thread's time to the average
constexpr auto kFloat = static_cast<std::int64_t>(sizeof(float));

/// Arguments of a link's kernel.
enum LinkArg : std::uint8_t { kX, kW, kBias, kResidual, kY, kScratch, kLinkArgs };

struct Link {
  /// Kernels for full units and for the smaller last one.
  std::array<opdef::PreparedKernel, 2> kernels = {};
  std::int64_t y_elements = 0;  ///< per image
  ScratchArray<float> y = {};   ///< a unit's result in its scratch; unused by the last link
};

struct ChainPlan {
  std::vector<Link> links;
  int threads = 1;
  bool is_shared = false;  ///< all threads compute each unit; false: each has its own units
  ConvUnits units;
  std::int64_t x_elements = 0;  ///< per image
  ScratchBlocks thread_scratch = {};
  ScratchArray<std::byte> kernel_scratch = {};
};

std::byte* part(std::byte* images, std::int64_t elements) { return images + elements * kFloat; }

void run_unit(const ChainPlan& plan, const ConvUnits::Unit& unit, KernelArgs args, std::byte* own,
              const Launch& launch) {
  const std::size_t is_last = unit.images < plan.units.images ? 1 : 0;
  std::byte* x = part(args[0], unit.image * plan.x_elements);
  KernelArgs operands = args.from(1);
  for (const Link& link : plan.links) {
    const bool is_end = &link == &plan.links.back();
    std::byte* y = is_end ? part(operands[ConvChain::kLinkInputs], unit.image * link.y_elements)
                          : reinterpret_cast<std::byte*>(link.y.in(own));
    std::byte* residual = operands[2];
    if (residual != nullptr) residual = part(residual, unit.image * link.y_elements);
    const std::array<std::byte*, kLinkArgs> inner = {
        x, operands[0], operands[1], residual, y, plan.kernel_scratch.in(own)};
    const opdef::PreparedKernel& kernel = link.kernels[is_last];
    kernel.fn(kernel.data.get(), inner.data(), launch);
    x = y;
    operands = operands.from(ConvChain::kLinkInputs);
  }
}

void run(const ChainPlan& plan, KernelArgs args, const Launch& launch) {
  std::byte* scratch = args[2 + plan.links.size() * ConvChain::kLinkInputs];
  const std::int64_t units = plan.units.count();
  if (plan.is_shared) {
    for (std::int64_t u = 0; u < units; ++u) {
      run_unit(plan, plan.units.at(u), args, scratch, launch);
    }
    return;
  }
  const std::int64_t chunks = device::chunks_of(plan.threads, units);
  device::on_threads(plan.threads, chunks, [&](const device::Chunk& chunk) {
    std::byte* own = plan.thread_scratch.in(scratch, chunk.thread);
    for (std::int64_t u = chunk.first(units); u < chunk.last(units); ++u) {
      run_unit(plan, plan.units.at(u), args, own, launch);
    }
  });
}

/// Request for a link as a separate node, with its operands.
struct LinkRequest {
  ir::Node node;
  std::vector<TensorDesc> inputs;
  std::vector<const Tensor*> constants;
  TensorDesc output;
  ConvShape shape;
};

Dims with_batch(const Dims& dims, std::int64_t batch) {
  std::vector<std::int64_t> sizes(dims.begin(), dims.end());
  sizes[0] = batch;
  return Dims(sizes);
}

std::vector<LinkRequest> links_of(const KernelRequest& request) {
  const ConvChain chain = ConvChain::read(request.node);
  std::vector<LinkRequest> links;
  TensorDesc x = request.inputs[0];
  for (std::size_t i = 0; i < chain.links.size(); ++i) {
    LinkRequest& link = links.emplace_back();
    link.node.name = request.node.name;
    link.node.domain = ir::kFusedDomain;
    link.node.op_type = "Conv";
    link.node.attributes = chain.links[i];
    link.inputs = {x};
    link.constants = {nullptr};
    for (std::size_t j = 1; j <= ConvChain::kLinkInputs; ++j) {
      link.inputs.push_back(request.inputs[i * ConvChain::kLinkInputs + j]);
      link.constants.push_back(request.constants[i * ConvChain::kLinkInputs + j]);
    }
    link.shape = conv_shape(link.node, x.dims, link.inputs[kW].dims);
    std::vector<std::int64_t> sizes{x.dims[0], link.shape.groups * link.shape.out_channels};
    for (std::size_t axis = 3 - link.shape.spatial_rank; axis < 3; ++axis) {
      sizes.push_back(link.shape.axes[axis].output);
    }
    link.output = {DataType::kFloat32, Dims(sizes)};
    x = link.output;
  }
  return links;
}

std::int64_t image_elements(const TensorDesc& images) {
  return images.dims.num_elements() / images.dims[0];
}

/// Returns the images per unit, at most `most` of `batch`, for `threads` threads: all units have
/// equally many if more than half of `most` allow that, so that one kernel per link, with one copy
/// of its weights, suffices.
std::int64_t images_of_unit(std::int64_t batch, std::int64_t most, std::int64_t threads) {
  most = std::clamp<std::int64_t>(most, 1, batch);
  for (std::int64_t images = most; images > most / 2; --images) {
    if (batch % images == 0 && batch / images % threads == 0) return images;
  }
  return even_part_of(batch, most, threads);
}

/// Splits the images into units. All threads compute each unit together if otherwise some would
/// wait too long for the busiest one.
void split_work(const std::vector<LinkRequest>& links, ChainPlan& plan) {
  std::int64_t largest = 1;
  for (const LinkRequest& link : links) {
    largest = std::max(largest, image_elements(link.inputs[kX]) + image_elements(link.output));
  }
  const std::int64_t most = kUnitBytes / kFloat / largest;
  plan.units.images = images_of_unit(plan.units.batch,
                                     std::min(most, plan.units.batch / plan.threads), plan.threads);
  const std::int64_t rounds = ceil_div(plan.units.count(), plan.threads);
  plan.is_shared = kLongestWait * static_cast<double>(plan.units.batch) <
                   static_cast<double>(rounds * plan.threads * plan.units.images);
  if (plan.is_shared) plan.units.images = images_of_unit(plan.units.batch, most * plan.threads, 1);
}

KernelOffer link_offer(const KernelRequest& request, const LinkRequest& link, const ChainPlan& plan,
                       std::int64_t images) {
  KernelRequest unit{.node = link.node,
                     .inputs = link.inputs,
                     .outputs = {link.output},
                     .constants = link.constants,
                     .threads = plan.is_shared ? plan.threads : 1,
                     .keeps_constants = request.keeps_constants,
                     .cpu = request.cpu};
  for (TensorDesc* desc : {&unit.inputs[kX], &unit.inputs[kResidual], unit.outputs.data()}) {
    if (desc->is_present()) desc->dims = with_batch(desc->dims, images);
  }
  const auto task = ConvTask::of(unit);
  return task ? offer_conv_float(unit, *task)
              : KernelOffer::decline("more than three spatial axes");
}

bool is_depthwise(const LinkRequest& link) {
  const Dims& w = link.inputs[kW].dims;
  return w[1] == 1 && w[0] == link.inputs[kX].dims[1];
}

/// Returns why the convolutions are faster one after another, or "". A chain pays where results
/// that come from memory, not from the cache, decide the time: depthwise convolutions have little
/// arithmetic for each number. Products of many channels read their weights once for all images.
std::string reason_against(const std::vector<LinkRequest>& links) {
  for (std::size_t i = 0; i + 1 < links.size(); ++i) {
    const Dims& between = links[i].output.dims;
    const std::int64_t bytes = between.num_elements() * kFloat;
    if (between[0] < 2 || bytes < kLeastBytes) return "a result between stays in the cache anyway";
    if (bytes > kMostImageBytes * between[0]) return "a result of one image exceeds the cache";
    if (!is_depthwise(links[i]) && !is_depthwise(links[i + 1])) {
      return "products of many channels are faster for all images at once";
    }
  }
  return "";
}

KernelOffer offer_chain(const KernelRequest& request) {
  for (const TensorDesc& input : request.inputs) {
    if (input.is_present() && input.dtype != DataType::kFloat32) {
      return KernelOffer::decline("supports only float32");
    }
  }
  constexpr std::size_t kMostRank = 5;
  if (request.inputs[0].dims.rank() > kMostRank) {
    return KernelOffer::decline("more than three spatial axes");
  }
  if (request.inputs[0].dims.num_elements() == 0) return KernelOffer::decline("an empty tensor");
  const std::vector<LinkRequest> links = links_of(request);
  if (request.is_candidate) {
    std::string reason = reason_against(links);
    return reason.empty() ? accept_candidate() : KernelOffer::decline(std::move(reason));
  }
  auto plan = std::make_shared<ChainPlan>();
  plan->threads = request.threads;
  plan->units.batch = request.inputs[0].dims[0];
  plan->x_elements = image_elements(request.inputs[0]);
  split_work(links, *plan);
  opdef::PreparedKernel kernel;
  ScratchLayout own;
  std::int64_t kernel_bytes = 0;
  const std::int64_t last_images =
      plan->units.batch - (plan->units.count() - 1) * plan->units.images;
  for (const LinkRequest& request_of : links) {
    Link& link = plan->links.emplace_back();
    link.y_elements = image_elements(request_of.output);
    for (const bool is_last : {false, true}) {
      if (is_last && last_images == plan->units.images) continue;
      KernelOffer offer =
          link_offer(request, request_of, *plan, is_last ? last_images : plan->units.images);
      if (offer.kernel.fn == nullptr) return offer;
      kernel_bytes = std::max(kernel_bytes, offer.kernel.scratch_bytes);
      kernel.kept_bytes += offer.kernel.kept_bytes;
      if (!is_last) {
        kernel.label += (kernel.label.empty() ? "" : ", ") + offer.kernel.label;
      }
      link.kernels[is_last ? 1 : 0] = std::move(offer.kernel);
    }
    kernel.flops += request_of.shape.flops();
    if (&request_of != &links.back()) {
      link.y = own.reserve<float>(plan->units.images * link.y_elements);
    }
  }
  plan->kernel_scratch = own.reserve<std::byte>(kernel_bytes);
  ScratchLayout all;
  plan->thread_scratch = all.reserve_blocks(plan->is_shared ? 1 : plan->threads, own);
  kernel.fn = kKernel<run>;
  kernel.label = fmt::format("{} images at a time: {}", plan->units.images, kernel.label);
  kernel.scratch_bytes = all.size_bytes();
  kernel.data = std::move(plan);
  return {.kernel = std::move(kernel), .declined = {}};
}

}  // namespace

void register_conv_chain_cpu(opdef::KernelRegistry& registry) {
  registry.add(ir::kFusedDomain, opdef::kConvChain, 0, offer_chain);
}

}  // namespace onnxgrad::ops::conv_chain_cpu
