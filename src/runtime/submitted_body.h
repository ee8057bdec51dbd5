#ifndef ONNXGRAD_RUNTIME_SUBMITTED_BODY_H_
#define ONNXGRAD_RUNTIME_SUBMITTED_BODY_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "device/device.h"
#include "opdef/body.h"
#include "runtime/plan.h"

namespace onnxgrad::runtime {

/// Device of a submitted body: Launch::stream of its node's kernel points to one.
struct BodyTarget {
  device::Device& device;
  device::Stream& stream;
};

/// A plan that the host submits to a device again and again; values stay on the device. Its graph
/// has the form that PlannedBody describes. It is run on one stream.
class SubmittedBody final : public opdef::CompiledBody {
 public:
  /// `draws`: whether its kernels may take random numbers, which differ between iterations.
  SubmittedBody(Plan plan, const std::vector<opdef::TensorDesc>& states, std::int64_t alignment,
                bool draws);
  ~SubmittedBody() override;
  SubmittedBody(const SubmittedBody&) = delete;
  SubmittedBody& operator=(const SubmittedBody&) = delete;

  const std::vector<opdef::TensorDesc>& outputs() const override { return outputs_; }
  std::int64_t workspace_bytes() const override { return workspace_bytes_; }
  bool may_throw() const override { return plan_.may_throw(); }
  double flops() const override { return flops_; }
  /// Bytes of its device for cells and constants, and of the host's mirror: none before it is run.
  std::int64_t memory_bytes() const;
  std::int64_t mirror_bytes() const;
  /// Bytes that memory_bytes() will be.
  std::int64_t planned_bytes(const device::Device& device) const;
  std::int64_t run(const opdef::BodyRun& run, const opdef::Launch& launch) const override;
  void read(std::byte* to, const std::byte* from, std::int64_t bytes,
            const opdef::Launch& launch) const override;

 private:
  class Runner;

  struct State {
    std::int64_t bytes = 0;
    std::int64_t value = 0;  ///< offset in the workspace, where its value is not wanted elsewhere
    std::int64_t next = 0;   ///< offset of its new value
  };

  Plan plan_;
  std::vector<opdef::TensorDesc> outputs_;
  std::vector<State> states_;
  std::int64_t counter_ = 0;  ///< offset of the number of the iteration
  std::int64_t workspace_bytes_ = 0;
  double flops_ = 0;
  bool draws_ = false;
  mutable std::unique_ptr<Runner> runner_;  // made by the first run, on its device
};

}  // namespace onnxgrad::runtime

#endif  // ONNXGRAD_RUNTIME_SUBMITTED_BODY_H_
