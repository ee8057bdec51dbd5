#include "device/testing/simulated_device.h"

#include <gtest/gtest.h>

#include <cmath>
#include <csignal>
#include <memory>
#include <numeric>
#include <vector>

// Errors that the simulated device must catch. The test suites of runtime and train run on it.

namespace onnxgrad::device::testing::simulated_device_test {
namespace {

constexpr std::int64_t kBytes = 4 * sizeof(double);

const std::byte* bytes_of(const std::vector<double>& values) {
  return reinterpret_cast<const std::byte*>(values.data());
}

// args: x [4], y [4]:  y = x + step.
void add_step(const void*, opdef::KernelArgs args, const opdef::Launch& launch) {
  const auto* x = args.at<double>(0);
  auto* y = args.at<double>(1);
  for (int i = 0; i < 4; ++i) y[i] = x[i] + static_cast<double>(launch.cells->step);
}

void fail(const void*, opdef::KernelArgs, const opdef::Launch&) {
  throw DataError({.what = "an index is out of range", .hint = "Change it."});
}

struct SimulatedDevice : ::testing::Test {
  Device& device = simulated_device();
  std::unique_ptr<Stream> stream = device.make_stream();
  Buffer x = device.allocate(kBytes);
  Buffer y = device.allocate(kBytes);
  Buffer own_cells = device.allocate(sizeof(opdef::StepCells));
  std::vector<std::byte*> args{kernel_argument(x.address), kernel_argument(y.address)};

  void run(opdef::KernelFn fn, const opdef::StepCells& cells = {}) {
    const KernelCall call{.fn = fn, .args = args.data(), .num_args = args.size()};
    stream->copy_in(own_cells.address, reinterpret_cast<const std::byte*>(&cells), sizeof cells);
    stream->run({.calls = {&call, 1}}, own_cells.address);
  }
  std::vector<double> read(const Buffer& buffer) {
    return stream->read(buffer.address, DataType::kFloat64, {4}).to_doubles();
  }
};

TEST_F(SimulatedDevice, ResultsThatNobodyWaitedForAreNaN) {
  const std::vector<double> values{1, 2, 3, 4};
  stream->copy_in(x.address, bytes_of(values), kBytes);
  std::vector<double> result(4);
  stream->copy_out(reinterpret_cast<std::byte*>(result.data()), x.address, kBytes);
  EXPECT_TRUE(std::isnan(std::accumulate(result.begin(), result.end(), 0.0)));
  stream->synchronize();
  EXPECT_EQ(result, values);
}

TEST_F(SimulatedDevice, NewMemoryIsNaN) {
  for (const double value : read(x)) EXPECT_TRUE(std::isnan(value));
}

// A call copies its source, arguments and step before it returns.
TEST_F(SimulatedDevice, TakesWhatItIsGivenAtOnce) {
  std::vector<double> values{1, 2, 3, 4};
  opdef::StepCells cells{.step = 10};
  stream->copy_in(x.address, bytes_of(values), kBytes);
  run(add_step, cells);
  values.assign(4, 0);
  cells.step = 0;
  args.assign(2, nullptr);
  EXPECT_EQ(read(y), (std::vector<double>{11, 12, 13, 14}));
}

TEST_F(SimulatedDevice, AnErrorComesLaterAndStopsWhatFollows) {
  const std::vector<double> values{1, 2, 3, 4};
  stream->copy_in(x.address, bytes_of(values), kBytes);
  run(fail);
  stream->copy(y.address, x.address, kBytes);
  EXPECT_THROW(stream->synchronize(), DataError);
  EXPECT_TRUE(std::isnan(read(y)[0]));
  EXPECT_EQ(read(x), values);
}

// Whoever waits for the point gets the error, each time; the streams are as before.
TEST_F(SimulatedDevice, AnErrorGoesToOtherStreams) {
  const std::vector<double> values{1, 2, 3, 4};
  const std::unique_ptr<Stream> other = device.make_stream();
  const std::unique_ptr<Stream> unrelated = device.make_stream();
  stream->copy_in(x.address, bytes_of(values), kBytes);
  run(fail);
  const std::shared_ptr<Event> bad = stream->mark(false);
  other->wait_for(*bad);
  other->copy(y.address, x.address, kBytes);
  EXPECT_THROW(other->synchronize(), DataError);
  EXPECT_TRUE(std::isnan(unrelated->read(y.address, DataType::kFloat64, {4}).to_doubles()[0]));
  EXPECT_THROW(bad->wait(), DataError);
  EXPECT_THROW(bad->wait(), DataError);
  other->copy(y.address, x.address, kBytes);
  other->synchronize();
  EXPECT_THROW(stream->synchronize(), DataError);
  EXPECT_EQ(read(y), values);
}

// Death tests start a new process: a forked one would lack the stream's thread.
struct SimulatedDeviceDeath : SimulatedDevice {
  SimulatedDeviceDeath() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(SimulatedDeviceDeath, AnAddressIsNoPointer) {
  EXPECT_DEATH(
      {
        const volatile auto* pointer = kernel_argument(x.address);
        static_cast<void>(*pointer);
      },
      "");
}

TEST_F(SimulatedDeviceDeath, AHostPointerIsNoAddress) {
  std::vector<double> on_host(4);
  args[0] = reinterpret_cast<std::byte*>(on_host.data());
  EXPECT_DEATH(
      {
        run(add_step);
        stream->synchronize();
      },
      "not memory of the device");
}

TEST_F(SimulatedDeviceDeath, FreedMemoryIsNotUsed) {
  EXPECT_DEATH(
      {
        run(add_step);
        y = {};
        stream->synchronize();
      },
      "outside the device's buffers|not memory of the device");
}

TEST_F(SimulatedDeviceDeath, CopiesStayWithinABuffer) {
  EXPECT_DEATH(
      {
        stream->copy(y.address, x.address, kBytes + 1);
        stream->synchronize();
      },
      "outside the device's buffers");
}

}  // namespace
}  // namespace onnxgrad::device::testing::simulated_device_test
