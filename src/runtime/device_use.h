#ifndef ONNXGRAD_RUNTIME_DEVICE_USE_H_
#define ONNXGRAD_RUNTIME_DEVICE_USE_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "runtime/execution.h"
#include "runtime/plan.h"

namespace onnxgrad::runtime {

/// How the plan of a device other than the host runs.
struct DeviceUse {
  /// Operators that the CPU runs, with the number of their nodes.
  std::map<std::string, std::int64_t> on_cpu;
  /// Bytes that a run copies between device and CPU for them.
  std::int64_t copied_bytes = 0;
  std::vector<Segment> segments;
};

/// Describes an execution of an Executor; empty on the host. Nodes that are run through the host
/// after the plan, because shapes depend on values, are segments of their own at its end; what
/// follows them is not known before a run.
DeviceUse device_use(const Execution& execution);

}  // namespace onnxgrad::runtime

#endif  // ONNXGRAD_RUNTIME_DEVICE_USE_H_
