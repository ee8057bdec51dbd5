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

/// The calls of a plan, by groups of joint steps (joint_steps.h).
class JointCalls {
 public:
  JointCalls() = default;
  /// `calls`: one per step; their arguments outlive this.
  JointCalls(std::span<const PlanStep> steps, std::span<const device::KernelCall> calls) {
    followers_.resize(steps.size());
    for (std::size_t i = 0; i < steps.size();) {
      calls_.push_back({.call = calls[i]});
      const std::size_t end = i + 1 + steps[i].followers;
      const opdef::Follower** next = &calls_.back().follower;
      for (++i; i < end; ++i) {
        followers_[i] = {
            .fn = steps[i].kernel.by_blocks.fn, .data = calls[i].data, .args = calls[i].args};
        *next = &followers_[i];
        next = &followers_[i].next;
      }
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
