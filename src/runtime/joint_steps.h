#ifndef ONNXGRAD_RUNTIME_JOINT_STEPS_H_
#define ONNXGRAD_RUNTIME_JOINT_STEPS_H_

#include <cstddef>
#include <span>
#include <vector>

#include "ir/graph.h"
#include "opdef/kernel.h"
#include "runtime/views.h"

namespace onnxgrad::runtime {

/// Groups of consecutive steps: each but the first of a group runs on the blocks that the one
/// before it completes (opdef/follower.h). Its own blocks are computed while the first is at work
/// on others, so all operands of a group are in use until its end.
class JointSteps {
 public:
  /// No groups.
  explicit JointSteps(std::size_t steps) : first_(steps), last_(steps) {
    for (std::size_t i = 0; i < steps; ++i) first_[i] = last_[i] = i;
  }
  /// Finds the groups among the steps, given by their nodes and kernels.
  JointSteps(std::span<const ir::Node* const> nodes,
             std::span<const opdef::PreparedKernel* const> kernels, const ViewRoots& roots);

  /// First and last step of the group of step `i`.
  std::size_t first(std::size_t i) const { return first_[i]; }
  std::size_t last(std::size_t i) const { return last_[i]; }
  bool is_follower(std::size_t i) const { return first_[i] < i; }
  bool has_groups() const { return first_ != last_; }

 private:
  std::vector<std::size_t> first_, last_;
};

}  // namespace onnxgrad::runtime

#endif  // ONNXGRAD_RUNTIME_JOINT_STEPS_H_
