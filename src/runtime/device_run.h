#ifndef ONNXGRAD_RUNTIME_DEVICE_RUN_H_
#define ONNXGRAD_RUNTIME_DEVICE_RUN_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "device/device.h"
#include "runtime/plan.h"

// The parts of an execution that only a device other than the host has.

namespace onnxgrad::runtime {

/// The StepCells of an executor in the memory of its device.
class DeviceCells {
 public:
  /// Both outlive this.
  DeviceCells(device::Device& device, device::Stream& stream);

  device::Address address() const { return memory_.address; }
  /// Makes them equal to those of the host; copies nothing if they are.
  void update(const opdef::StepCells& cells);
  /// Called when StepKernels::count_step has been submitted.
  void note_counted_step() { ++known_.step; }
  /// Reads the memory of the device, after work that may have failed; waits.
  const opdef::StepCells& read();

 private:
  device::Stream& stream_;
  device::Buffer memory_;
  opdef::StepCells known_;
};

/// A plan on a device that cannot read the host's memory: copies of its constants, slots that
/// inputs are copied into before each run, and the submission of its segments.
class DeviceRun {
 public:
  /// Copies the constants. All arguments outlive this.
  DeviceRun(const Plan& plan, device::Device& device, device::Stream& stream, DeviceCells& cells);
  /// Waits for the work that reads it.
  ~DeviceRun();
  DeviceRun(const DeviceRun&) = delete;
  DeviceRun& operator=(const DeviceRun&) = delete;

  device::Address constant(std::size_t i) const { return constants_[i].address; }
  /// The slot of feed `i`, which each copy_feeds() fills from there.
  device::Address bind(std::size_t i, const std::byte* data);
  /// The slot of feed `i`, for its owner to fill.
  device::Address slot(std::size_t i);
  /// Feed `i` is read from elsewhere.
  void release(std::size_t i) { feeds_[i].on_host = nullptr; }
  void copy_feeds();

  /// The call of the plan's copy `i`, whose arguments are source and destination.
  device::KernelCall copy_call(std::size_t i, opdef::KernelArgs args) const;
  /// Whether all steps of the plan are one recordable segment.
  bool is_recordable() const;
  /// The calls [begin, end) of those that run() takes, with their places and operands.
  device::Work work(std::span<const device::KernelCall> calls, std::size_t begin,
                    std::size_t end) const;
  /// Submits the kernels of the plan's steps, then its copies: one call for each of them.
  void submit(std::span<const device::KernelCall> calls, const opdef::StepCells& cells);
  /// Submits one of them and waits until it is done.
  void run_alone(const device::KernelCall& call, const opdef::StepCells& cells);

 private:
  struct Feed {
    const std::byte* on_host = nullptr;  ///< nullptr: not copied
    device::Buffer slot = {};
  };

  const Plan& plan_;
  device::Device& device_;
  device::Stream& stream_;
  DeviceCells& cells_;
  std::vector<device::Buffer> constants_;
  std::vector<Feed> feeds_;
  std::vector<device::ByteCopy> copies_;                    // data of the copies' calls
  std::vector<device::CallPlace> places_;                   // of all steps, then the copies
  std::vector<device::Operand> copy_operands_;              // two for each copy
  std::vector<std::span<const device::Operand>> operands_;  // of all calls
};

}  // namespace onnxgrad::runtime

#endif  // ONNXGRAD_RUNTIME_DEVICE_RUN_H_
