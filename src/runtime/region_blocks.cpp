#include <algorithm>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/check.h"
#include "device/device_tensor.h"
#include "runtime/region.h"

// Runs whose results are in blocks of memory of their own.

namespace onnxgrad::runtime {

namespace {

// The blocks of a run are its results' from its end on, however it ends.
struct BlocksEnder {
  explicit BlocksEnder(BlockPool& taken) : blocks(taken) {}
  ~BlocksEnder() { blocks.release(); }
  BlocksEnder(const BlocksEnder&) = delete;
  BlocksEnder& operator=(const BlocksEnder&) = delete;
  BlockPool& blocks;
};

}  // namespace

// Calls result_of(i, results before it) for the outputs of a run.
template <class F>
std::vector<Tensor> Region::run_in_blocks(std::span<const Tensor> feeds, F&& result_of) {
  const BlocksEnder ender{blocks_};
  blocks_.take();
  for (const auto& [slot, at] : block_slots_) args_[slot] = device::kernel_argument(resolve(at));
  for (std::size_t i = 0; i < feeds.size(); ++i) bind(i, feeds[i].raw());
  std::vector<Tensor> results;
  run();
  for (std::size_t i = 0; i < num_outputs(); ++i) results.push_back(result_of(i, results));
  return results;
}

std::vector<Tensor> Region::run_keeping(std::span<const Tensor> feeds) {
  return run_in_blocks(feeds, [&](std::size_t i, const std::vector<Tensor>& /*before*/) {
    return kept_output(i, feeds);
  });
}

std::vector<Tensor> Region::run_owning(std::span<const Tensor> feeds) {
  return run_in_blocks(feeds, [&](std::size_t i, const std::vector<Tensor>& before) {
    const bool is_computed =
        !compiled_.tail && compiled_.plan.outputs[i].location.kind == Location::Kind::kBlock;
    if (!is_computed) return output_tensor(i);
    Tensor kept = kept_output(i, feeds);
    const bool is_known =
        std::ranges::any_of(before, [&](const Tensor& other) { return other.raw() == kept.raw(); });
    return is_known ? kept.clone() : kept;
  });
}

// Feeds are read where they are, on the device or the host.
std::vector<DeviceTensor> Region::run_on_device(std::span<const DeviceTensor> feeds) {
  ONNXGRAD_ASSERT(!is_on_host());
  const BlocksEnder ender{blocks_};
  blocks_.take();
  for (const auto& [slot, at] : block_slots_) args_[slot] = device::kernel_argument(resolve(at));
  for (std::size_t i = 0; i < feeds.size(); ++i) {
    const DeviceTensor::Impl& feed = feeds[i].impl();
    if (!device::is_on_device(feeds[i])) {
      bind(i, feed.host.raw());
      continue;
    }
    stream().wait_for(*feed.ready);
    bind(i, feed.address);
  }
  run();
  throw_faults();
  std::vector<DeviceTensor> results;
  std::vector<device::Address> given;  // the memory of results
  const auto computed = device::mark_on(context_.options.stream);
  for (std::size_t i = 0; i < num_outputs(); ++i) {
    const bool is_block =
        !compiled_.tail && compiled_.plan.outputs[i].location.kind == Location::Kind::kBlock;
    const device::Address address = output_address(i);
    const opdef::TensorDesc desc = output_desc(i);
    const bool is_given = std::ranges::find(given, address) != given.end();
    if (!is_block || is_given || desc.dtype == DataType::kString) {
      results.push_back(output_on_device(i));
      continue;
    }
    given.push_back(address);
    const Location& location = compiled_.plan.outputs[i].location;
    results.emplace_back(std::make_shared<const DeviceTensor::Impl>(
        DeviceTensor::Impl{.dtype = desc.dtype,
                           .dims = desc.dims,
                           .device = &context_.engine.device,
                           .address = address,
                           .owner = blocks_.taken(location.block).owner,
                           .ready = computed}));
  }
  return results;
}

// Values that kernels refuse are an error of the call that gave them, not of one that reads what
// they would have given.
void Region::throw_faults() const {
  if (may_throw()) stream().synchronize();
}

DeviceTensor Region::output_on_device(std::size_t i) const {
  const opdef::TensorDesc desc = output_desc(i);
  if (is_on_host() || desc.dtype == DataType::kString) return DeviceTensor(output_tensor(i));
  throw_faults();
  device::Device& device = context_.engine.device;
  const std::int64_t bytes = desc.dims.size_bytes(desc.dtype);
  device::Buffer buffer = device.allocate(bytes);
  const device::Address address = buffer.address;
  if (bytes > 0) stream().copy(address, output_address(i), bytes);
  auto ready = device::mark_on(context_.options.stream);
  return DeviceTensor(std::make_shared<const DeviceTensor::Impl>(
      DeviceTensor::Impl{.dtype = desc.dtype,
                         .dims = desc.dims,
                         .device = &device,
                         .address = address,
                         .owner = device::kept_until(std::move(buffer), ready),
                         .ready = ready}));
}

Tensor Region::kept_output(std::size_t i, std::span<const Tensor> feeds) const {
  if (compiled_.tail) return output_tensor(i);
  const auto& [location, desc] = compiled_.plan.outputs[i];
  const auto place = static_cast<std::size_t>(location.at);
  switch (location.kind) {
    case Location::Kind::kBlock:
      if (!is_on_host()) return output_tensor(i);
      return Tensor::view(desc.dtype, desc.dims, device::kernel_argument(resolve(location)),
                          blocks_.taken(location.block).owner);
    case Location::Kind::kFeed:
      return feeds[place].reshaped(desc.dims);
    case Location::Kind::kConstant:
      return compiled_.plan.constants[place].reshaped(desc.dims);
    default:
      return output_tensor(i);
  }
}

}  // namespace onnxgrad::runtime
