#include "device/cuda/timing.h"

#include <algorithm>
#include <limits>

#include "device/cuda/context.h"
#include "device/cuda/libraries.h"

namespace onnxgrad::device::cuda {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

Owned make_event() {
  Handle made = nullptr;
  check(driver().EventCreate(&made, 0), "cuEventCreate");
  return {made, driver().EventDestroy};
}

// As many launches as a row has, as a graph; empty: one of them failed.
Owned row_of(Handle stream, int length, const std::function<int()>& launch) {
  check(driver().StreamBeginCapture(stream, kCaptureThreadLocal), "cuStreamBeginCapture");
  int status = kSuccess;
  for (int i = 0; i < length && status == kSuccess; ++i) status = launch();
  Handle captured = nullptr;
  const int end = driver().StreamEndCapture(stream, &captured);
  const Owned graph(captured, driver().GraphDestroy);
  if (status != kSuccess || end != kSuccess) return {};
  Handle made = nullptr;
  check(driver().GraphInstantiate(&made, graph.get(), 0), "cuGraphInstantiate");
  return {made, driver().GraphExecDestroy};
}

}  // namespace

double best_time_us(Handle stream, int runs, const std::function<int()>& launch) {
  constexpr double kShort = 100;  // launched one by one, such kernels wait for the host
  constexpr int kRow = 10;
  const Owned begin = make_event();
  const Owned end = make_event();
  const auto time = [&](const std::function<int()>& work) {
    check(driver().EventRecord(begin.get(), stream), "cuEventRecord");
    const int status = work();
    check(driver().EventRecord(end.get(), stream), "cuEventRecord");
    check(driver().StreamSynchronize(stream), "cuStreamSynchronize");
    if (status != kSuccess) return kNever;
    float ms = 0;
    check(driver().EventElapsedTime(&ms, begin.get(), end.get()), "cuEventElapsedTime");
    return 1000.0 * static_cast<double>(ms);
  };
  if (time(launch) == kNever) return kNever;  // it loads the kernel
  double best = time(launch);
  if (best > kShort) {
    for (int i = 1; i < runs; ++i) best = std::min(best, time(launch));
    return best;
  }
  const Owned row = row_of(stream, kRow, launch);
  if (!row) return kNever;
  best = kNever;
  for (int i = 0; i < runs; ++i) {
    best = std::min(best, time([&] { return driver().GraphLaunch(row.get(), stream); }));
  }
  return best / kRow;
}

}  // namespace onnxgrad::device::cuda
