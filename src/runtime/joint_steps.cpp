#include "runtime/joint_steps.h"

#include <algorithm>

namespace onnxgrad::runtime {
namespace {

/// Whether a kernel can compute its blocks as another one completes them.
bool fits(const opdef::BlockResult& result, const opdef::PreparedKernel& kernel) {
  const opdef::BlockWork& work = kernel.by_blocks;
  return work.fn != nullptr && work.finish == nullptr && kernel.checks.empty() &&
         (work.cut == opdef::BlockCut::kAny || result.cut == opdef::BlockCut::kRows) &&
         (work.width == 0 || work.width == result.width) && work.threads <= result.threads &&
         result.threads <= work.most_threads;
}

/// Whether a node reads `result` only through inputs of which its kernel needs the same block, at
/// least one, and no other output of the nodes `before`.
bool reads_blocks(const ir::Node& node, const opdef::BlockWork& work, const ir::Value* result,
                  std::span<const ir::Node* const> before, const ViewRoots& roots) {
  bool reads = false;
  for (std::size_t k = 0; k < node.inputs.size(); ++k) {
    if (node.inputs[k] == nullptr) continue;
    const ir::Value* input = roots.of(node.inputs[k]);
    if (input == result &&
        std::ranges::find(work.inputs, static_cast<int>(k)) != work.inputs.end()) {
      reads = true;
    } else if (std::ranges::find(before, input->producer) != before.end()) {
      return false;
    }
  }
  return reads;
}

}  // namespace

JointSteps::JointSteps(std::span<const ir::Node* const> nodes,
                       std::span<const opdef::PreparedKernel* const> kernels,
                       const ViewRoots& roots)
    : JointSteps(nodes.size()) {
  for (std::size_t begin = 0; begin < nodes.size();) {
    const opdef::BlockResult& result = kernels[begin]->completes;
    std::size_t end = begin + 1;
    while (result.cut != opdef::BlockCut::kNone && end < nodes.size()) {
      const ir::Value* completed = nodes[end - 1]->output(0);
      if (completed == nullptr || !fits(result, *kernels[end]) ||
          !reads_blocks(*nodes[end], kernels[end]->by_blocks, roots.of(completed),
                        nodes.subspan(begin, end - begin), roots)) {
        break;
      }
      ++end;
    }
    for (std::size_t i = begin; i < end; ++i) {
      first_[i] = begin;
      last_[i] = end - 1;
    }
    begin = end;
  }
}

}  // namespace onnxgrad::runtime
