#include "device/testing/simulated_recording.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "device/testing/simulated_device.h"

// Recordings of the simulated device, and errors in their use that it must catch.

namespace onnxgrad::device::testing::simulated_recording_test {
namespace {

constexpr std::int64_t kBytes = sizeof(double);

// args: x [1], y [1]:  y = y + x.
void add_to(const void*, opdef::KernelArgs args, const opdef::Launch&) {
  *args.at<double>(1) += *args.at<double>(0);
}

// A kernel that says that it cannot be recorded.
void wait_for_all(const void*, opdef::KernelArgs, const opdef::Launch&) {}

struct Recordings : ::testing::Test {
  Device& device = simulated_device();
  std::unique_ptr<Stream> stream = device.make_stream();
  Buffer x = number(2);
  Buffer y = number(10);
  Buffer cells = device.allocate(sizeof(opdef::StepCells));
  std::vector<std::byte*> args{kernel_argument(x.address), kernel_argument(y.address)};

  Recordings() {
    const opdef::StepCells none;
    stream->copy_in(cells.address, reinterpret_cast<const std::byte*>(&none), sizeof none);
    GTEST_FLAG_SET(death_test_style, "threadsafe");
  }
  Buffer number(double value) {
    Buffer buffer = device.allocate(kBytes);
    stream->copy_in(buffer.address, reinterpret_cast<const std::byte*>(&value), kBytes);
    return buffer;
  }
  double read(const Buffer& buffer) {
    return stream->read_scalar(buffer.address, DataType::kFloat64);
  }
  KernelCall call(opdef::KernelFn fn, const void* data = nullptr) {
    return {.fn = fn, .data = data, .args = args.data(), .num_args = args.size()};
  }
  std::unique_ptr<Recording> record(const KernelCall& one) {
    return stream->record({.calls = {&one, 1}}, cells.address);
  }
  void run(const KernelCall& one) { stream->run({.calls = {&one, 1}}, cells.address); }
};

TEST_F(Recordings, KeepTheirArguments) {
  const KernelCall add = call(add_to);
  run(add);
  const auto recording = record(add);
  const Buffer other = number(100);
  args[0] = kernel_argument(other.address);
  stream->repeat(*recording, 3);
  EXPECT_EQ(read(y), 10 + 2 + 3 * 2);
}

TEST_F(Recordings, NeedAWarmUp) {
  EXPECT_DEATH(record(call(add_to, &device)), "has not run before");
}

TEST_F(Recordings, RefuseKernelsThatCannotBeRecorded) {
  const KernelCall waiting = call(wait_for_all);
  RecordingRules::of_process().forbid(wait_for_all);
  run(waiting);
  EXPECT_DEATH(record(waiting), "cannot be recorded");
}

// The memory of `x` is freed, and a buffer of its size takes its place.
TEST_F(Recordings, NeedTheMemoryThatTheyWereMadeWith) {
  const KernelCall add = call(add_to);
  run(add);
  const auto recording = record(add);
  stream->synchronize();
  x = {};
  const Buffer next = number(3);
  EXPECT_DEATH(stream->repeat(*recording, 1), "memory which is freed");
}

}  // namespace
}  // namespace onnxgrad::device::testing::simulated_recording_test
