#include "device/cuda/timing.h"

#include <algorithm>
#include <limits>

#include "device/cuda/context.h"
#include "device/cuda/libraries.h"

namespace onnxgrad::device::cuda {

double best_time_us(Handle stream, int runs, const std::function<int()>& launch) {
  double best = std::numeric_limits<double>::infinity();
  const auto event = [] {
    Handle made = nullptr;
    check(driver().EventCreate(&made, 0), "cuEventCreate");
    return Owned(made, driver().EventDestroy);
  };
  const Owned begin = event();
  const Owned end = event();
  for (int i = 0; i <= runs; ++i) {
    check(driver().EventRecord(begin.get(), stream), "cuEventRecord");
    const int status = launch();
    check(driver().EventRecord(end.get(), stream), "cuEventRecord");
    check(driver().StreamSynchronize(stream), "cuStreamSynchronize");
    if (status != kSuccess) return std::numeric_limits<double>::infinity();
    float ms = 0;
    check(driver().EventElapsedTime(&ms, begin.get(), end.get()), "cuEventElapsedTime");
    if (i > 0) best = std::min(best, 1000.0 * static_cast<double>(ms));  // the first one loads it
  }
  return best;
}

}  // namespace onnxgrad::device::cuda
