#include "onnxgrad/profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "api/measures.h"
#include "runtime/executor.h"

namespace onnxgrad {

namespace api {

Profile profile_of(const runtime::Executor& executor) {
  Profile result;
  for (runtime::KernelProfile& kernel : executor.profile()) {
    result.kernels.push_back({.op_type = std::move(kernel.op_type),
                              .node = std::move(kernel.node),
                              .kernel = std::move(kernel.label),
                              .calls = kernel.calls,
                              .total_s = kernel.total_s,
                              .flops = kernel.flops,
                              .threads = kernel.threads});
  }
  result.trace_json = executor.trace_json();
  return result;
}

}  // namespace api

std::string Profile::to_text() const {
  double all = 0;
  for (const KernelTime& kernel : kernels) all += kernel.total_s;
  std::string text = fmt::format("{:>6} {:>10} {:>9} {:>10} {:>8}  {}\n", "share", "total ms",
                                 "calls", "mean us", "GFlop/s", "kernel");
  for (const KernelTime& kernel : kernels) {
    const double mean = kernel.calls > 0 ? kernel.total_s / static_cast<double>(kernel.calls) : 0;
    const double speed = mean > 0 ? kernel.flops / mean * 1e-9 : 0;
    text += fmt::format("{:>5.1f}% {:>10.3f} {:>9} {:>10.2f} {:>8.1f}  {} {} [{}{}]\n",
                        all > 0 ? 100 * kernel.total_s / all : 0, 1e3 * kernel.total_s,
                        kernel.calls, 1e6 * mean, speed, kernel.op_type, kernel.node, kernel.kernel,
                        kernel.threads > 1 ? fmt::format(", {} threads", kernel.threads) : "");
  }
  return text;
}

std::vector<std::pair<std::string, std::int64_t>> MemoryReport::by_device() const {
  if (device == "cpu") return {{device, total()}};
  const std::int64_t on_host = snapshots + file + host;
  return {{"cpu", on_host}, {device, total() - on_host}};
}

std::string MemoryReport::to_text() const {
  const std::pair<const char*, std::int64_t> rows[] = {{"weights", weights},
                                                       {"optimizer state", optimizer_state},
                                                       {"activations", activations},
                                                       {"scratch", scratch},
                                                       {"constants", constants},
                                                       {"dynamic", dynamic},
                                                       {"evaluation", evaluation},
                                                       {"snapshots", snapshots},
                                                       {"file", file},
                                                       {"on the host", host},
                                                       {"total", total()}};
  std::string text;
  for (const auto& [purpose, bytes] : rows) {
    if (purpose == std::string_view("on the host") && bytes == 0) continue;
    text += fmt::format("{:<16}{:>16} bytes\n", purpose, bytes);
  }
  for (const auto& [name, bytes] : by_device()) {
    if (device != "cpu") text += fmt::format("{:<16}{:>16} bytes\n", "on " + name, bytes);
  }
  if (recomputed_values > 0) {
    text += fmt::format("{} values of {} bytes are computed again, {:.4g} FLOPs\n",
                        recomputed_values, recomputed_bytes, recomputed_flops);
  }
  return text;
}

}  // namespace onnxgrad
