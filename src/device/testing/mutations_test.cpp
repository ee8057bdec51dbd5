#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "device/testing/simulated_device.h"

// Errors in kernels, and in how the host uses a device, each of which the simulated device finds:
// it ends the process with a message, or the numbers are wrong. Errors in plans:
// runtime/mutations_test.cpp.

namespace onnxgrad::device::testing::mutations_test {
namespace {

constexpr std::int64_t kCount = 4;
constexpr std::int64_t kBytes = kCount * std::int64_t{sizeof(double)};

// args: x [4], y [4], scratch [4]:  y = x + 1.
void add_one(const void*, opdef::KernelArgs args, const opdef::Launch&) {
  for (int i = 0; i < kCount; ++i) args.at<double>(1)[i] = args.at<double>(0)[i] + 1;
}
void write_beyond(const void* data, opdef::KernelArgs args, const opdef::Launch& launch) {
  add_one(data, args, launch);
  args.at<double>(1)[kCount] = 0;
}
void write_before(const void* data, opdef::KernelArgs args, const opdef::Launch& launch) {
  add_one(data, args, launch);
  args.at<double>(1)[-1] = 0;
}
void write_to_input(const void* data, opdef::KernelArgs args, const opdef::Launch& launch) {
  add_one(data, args, launch);
  args.at<double>(0)[1] = 0;
}
void add_to_output(const void*, opdef::KernelArgs args, const opdef::Launch&) {
  for (int i = 0; i < kCount; ++i) args.at<double>(1)[i] += args.at<double>(0)[i];
}
void add_scratch(const void*, opdef::KernelArgs args, const opdef::Launch&) {
  for (int i = 0; i < kCount; ++i) {
    args.at<double>(1)[i] = args.at<double>(0)[i] + args.at<double>(2)[i];
  }
}
void forget_last(const void*, opdef::KernelArgs args, const opdef::Launch&) {
  for (int i = 0; i + 1 < kCount; ++i) args.at<double>(1)[i] = args.at<double>(0)[i] + 1;
}
void read_beyond(const void*, opdef::KernelArgs args, const opdef::Launch&) {
  for (int i = 0; i < kCount; ++i) args.at<double>(1)[i] = args.at<double>(0)[i + 1];
}
void write_cells(const void* data, opdef::KernelArgs args, const opdef::Launch& launch) {
  add_one(data, args, launch);
  ++const_cast<opdef::StepCells*>(launch.cells)
        ->step;  // NOLINT(cppcoreguidelines-pro-type-const-cast)
}

class Mutation : public ::testing::Test {
 protected:
  Mutation() {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    const opdef::StepCells none;
    stream_->copy_in(cells_.address, reinterpret_cast<const std::byte*>(&none), sizeof none);
    fill(2);
  }

  void fill(double value) {
    const std::vector<double> values(kCount, value);
    stream_->copy_in(x_.address, reinterpret_cast<const std::byte*>(values.data()), kBytes);
  }

  void run(opdef::KernelFn fn) {
    const KernelCall call{.fn = fn, .args = args_.data(), .num_args = args_.size()};
    stream_->run({.calls = {&call, 1}, .operands = {&operands_of_call_, 1}}, cells_.address);
  }
  double sum(const Buffer& buffer) {
    double total = 0;
    for (const double value : read(buffer)) total += value;
    return total;
  }
  std::vector<double> read(const Buffer& buffer) {
    return stream_->read(buffer.address, DataType::kFloat64, {kCount}).to_doubles();
  }
  // Runs a kernel until it is done.
  void finish(opdef::KernelFn fn) {
    run(fn);
    stream_->synchronize();
  }

  Device& device_ = simulated_device();
  std::unique_ptr<Stream> stream_ = device_.make_stream();
  Buffer x_ = device_.allocate(kBytes);
  Buffer y_ = device_.allocate(kBytes);
  Buffer scratch_ = device_.allocate(kBytes);
  Buffer cells_ = device_.allocate(sizeof(opdef::StepCells));
  std::array<std::byte*, 3> args_{kernel_argument(x_.address), kernel_argument(y_.address),
                                  kernel_argument(scratch_.address)};
  std::array<Operand, 3> operands_{Operand{.bytes = kBytes, .is_read = true},
                                   Operand{.bytes = kBytes, .is_written = true},
                                   Operand{.bytes = kBytes, .is_written = true}};
  std::span<const Operand> operands_of_call_ = operands_;
};

TEST_F(Mutation, NoneIsFound) {
  finish(add_one);
  EXPECT_EQ(sum(y_), 12);
  args_[1] = args_[0];  // in place
  finish(add_one);
  EXPECT_EQ(sum(x_), 12);
}

TEST_F(Mutation, HostDereference) {
  EXPECT_DEATH(static_cast<void>(*static_cast<volatile std::byte*>(args_[0])), "");
}

TEST_F(Mutation, ShortenedOperand) {
  operands_[1].bytes -= 1;
  EXPECT_DEATH(finish(add_one), "writes outside of argument 1");
}

TEST_F(Mutation, WriteOutsideOfTheOutput) {
  EXPECT_DEATH(finish(write_beyond), "writes outside of argument 1");
  EXPECT_DEATH(finish(write_before), "writes outside of argument");
}

TEST_F(Mutation, WriteToAnInput) {
  EXPECT_DEATH(finish(write_to_input), "writes to its input, argument 0");
  EXPECT_DEATH(finish(write_cells), "writes to the cells");
}

// Whatever is in the memory: it had a result of the kernel before.
TEST_F(Mutation, ReadOfWhatNobodyWrote) {
  for (const opdef::KernelFn fn : {add_to_output, add_scratch, read_beyond}) {
    finish(add_one);
    finish(fn);
    EXPECT_TRUE(std::isnan(sum(y_)));
  }
}

TEST_F(Mutation, UnwrittenResult) {
  finish(add_one);
  finish(forget_last);
  EXPECT_TRUE(std::isnan(read(y_)[kCount - 1]));
}

TEST_F(Mutation, FreedBuffer) {
  EXPECT_DEATH(
      {
        run(add_one);
        y_ = {};
        stream_->synchronize();
      },
      "outside the device's buffers|not memory of the device");
}

TEST_F(Mutation, FreedStagingMemory) {
  EXPECT_DEATH(
      {
        stream_->copy_in_staged(x_.address, device_.allocate_staging(kBytes).get(), kBytes);
        stream_->synchronize();
      },
      "staging memory that is not there");
}

TEST_F(Mutation, CopyReadBeforeSynchronize) {
  double first = 0;
  finish(add_one);
  stream_->copy_out(reinterpret_cast<std::byte*>(&first), y_.address, sizeof first);
  EXPECT_TRUE(std::isnan(first));
  stream_->synchronize();
  EXPECT_EQ(first, 3);
}

// Two streams take turns with x: a copy that does not wait for the kernel that reads it, or the
// kernel that does not wait for the copy.
TEST_F(Mutation, MissingWaitOfTheCopyStream) {
  const std::unique_ptr<Stream> copies = device_.make_stream();
  const auto is_right = [&](std::uint64_t seed, bool waits_for_copy, bool waits_for_kernel) {
    set_seed(device_, seed);
    std::array<double, 4> results{};
    std::shared_ptr<Event> is_read;
    stream_->synchronize();
    for (std::size_t i = 0; i < results.size(); ++i) {
      const std::vector<double> values(kCount, static_cast<double>(i));
      if (is_read != nullptr && waits_for_kernel) copies->wait_for(*is_read);
      copies->copy_in(x_.address, reinterpret_cast<const std::byte*>(values.data()), kBytes);
      const std::shared_ptr<Event> is_there = copies->mark(false);
      if (waits_for_copy) stream_->wait_for(*is_there);
      run(add_one);
      is_read = stream_->mark(false);
      stream_->copy_out(reinterpret_cast<std::byte*>(&results[i]), y_.address, sizeof(double));
    }
    stream_->synchronize();
    copies->synchronize();
    return results == std::array<double, 4>{1, 2, 3, 4};
  };
  int found_copy = 0;
  int found_kernel = 0;
  for (std::uint64_t seed = 0; seed < 32; ++seed) {
    EXPECT_TRUE(is_right(seed, true, true));
    found_copy += is_right(seed, false, true) ? 0 : 1;
    found_kernel += is_right(seed, true, false) ? 0 : 1;
    const bool is_again = is_right(seed, true, false);
    EXPECT_EQ(is_right(seed, true, false), is_again);
  }
  EXPECT_GT(found_copy, 4);
  EXPECT_GT(found_kernel, 4);
}

TEST_F(Mutation, HostReadInAStep) {
  const HostReads before = host_reads();
  run(add_one);
  EXPECT_EQ(host_reads(), before);
  stream_->read_scalar(y_.address, DataType::kFloat64);
  EXPECT_EQ(host_reads().waits, before.waits + 1);
  EXPECT_EQ(host_reads().copies_out, before.copies_out + 1);
}

}  // namespace
}  // namespace onnxgrad::device::testing::mutations_test
