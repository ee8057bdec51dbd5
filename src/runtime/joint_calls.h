#ifndef ONNXGRAD_RUNTIME_JOINT_CALLS_H_
#define ONNXGRAD_RUNTIME_JOINT_CALLS_H_

#include <cstddef>
#include <span>
#include <vector>

#include "device/work.h"
#include "opdef/follower.h"
#include "runtime/plan.h"

namespace onnxgrad::runtime {

/// A call of a kernel on the host, and of those that run with it.
struct JointCall {
  device::KernelCall call;
  const opdef::Follower* follower = nullptr;

  void run(const opdef::Launch& launch) const {
    if (follower == nullptr) return call.fn(call.data, call.args, launch);
    opdef::Launch joint = launch;
    joint.follower = follower;
    call.fn(call.data, call.args, joint);
  }
};

/// Writes the followers of a plan's groups (joint_steps.h), each to the place of its step in
/// `followers`; `args_of(i)`: the arguments of step i. Other places are left as they are.
template <class ArgsOf>
void link_followers(std::span<const PlanStep> steps, const ArgsOf& args_of,
                    opdef::Follower* followers) {
  for (std::size_t i = 0; i < steps.size();) {
    const std::size_t end = i + 1 + steps[i].followers;
    for (++i; i < end; ++i) {
      const opdef::PreparedKernel& kernel = steps[i].kernel;
      followers[i] = {.fn = kernel.by_blocks.fn,
                      .data = kernel.data.get(),
                      .args = args_of(i),
                      .next = i + 1 < end ? followers + i + 1 : nullptr};
    }
  }
}

/// The calls of a plan, by groups of joint steps.
class JointCalls {
 public:
  JointCalls() = default;
  /// `calls`: one per step; their arguments outlive this.
  JointCalls(std::span<const PlanStep> steps, std::span<const device::KernelCall> calls) {
    followers_.resize(steps.size());
    link_followers(steps, [&](std::size_t i) { return calls[i].args; }, followers_.data());
    for (std::size_t i = 0; i < steps.size(); i += 1 + steps[i].followers) {
      calls_.push_back(
          {.call = calls[i], .follower = steps[i].followers > 0 ? &followers_[i + 1] : nullptr});
    }
  }

  auto begin() const { return calls_.begin(); }
  auto end() const { return calls_.end(); }

 private:
  std::vector<JointCall> calls_;
  std::vector<opdef::Follower> followers_;  // by step
};

}  // namespace onnxgrad::runtime

#endif  // ONNXGRAD_RUNTIME_JOINT_CALLS_H_
