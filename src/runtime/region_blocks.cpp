#include <algorithm>
#include <span>
#include <utility>
#include <vector>

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
