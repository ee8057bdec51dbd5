#ifndef ONNXGRAD_DEVICE_REPORT_H_
#define ONNXGRAD_DEVICE_REPORT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "onnxgrad/model.h"

namespace [[gnu::visibility("default")]] onnxgrad {

/// An operator that the CPU runs for a device that has no kernel for it, as it is called in plans.
struct OperatorOnCpu {
  std::string op_type = {};
  std::int64_t count = 0;
};

/// Consecutive kernels of a plan that are run in the same way.
struct PlanSegment {
  std::string kind = {};  ///< "recordable", "submitted" or "on the CPU"
  std::int64_t kernels = 0;
  std::string reason = {};  ///< why it cannot be recorded; empty if it can
};

/// How a device runs a model.
struct DevicePlan {
  std::vector<OperatorOnCpu> on_cpu = {};
  std::int64_t copied_bytes = 0;  ///< between device and CPU in each run, for these
  std::vector<PlanSegment> segments = {};
  std::string problem = {};  ///< why there is no such plan; the rest is empty then
};

struct DeviceReport {
  std::string device = {};
  std::int64_t rows = 0;      ///< of the batch; other dimensions that are not known have it too
  DevicePlan training = {};   ///< a step of SGD with the automatic loss
  DevicePlan inference = {};  ///< all outputs

  /// One line per fact. On the CPU: that there is none.
  std::string to_text() const;
};

/// Plans a model for a device (see EngineOptions::device), without running it. Thread-safe. Throws:
/// DeviceError (there is no such device).
DeviceReport report_device(const Model& model, const std::string& device, std::int64_t rows = 32);

}  // namespace onnxgrad

#endif  // ONNXGRAD_DEVICE_REPORT_H_
