#ifndef ONNXGRAD_RUNTIME_DEVICE_RUN_H_
#define ONNXGRAD_RUNTIME_DEVICE_RUN_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "device/device.h"
#include "runtime/host_steps.h"
#include "runtime/plan.h"
#include "runtime/submitted_body.h"

// The parts of an execution that only a device other than the host has.

namespace onnxgrad::runtime {

/// The StepCells of an executor in the memory of its device.
class DeviceCells {
 public:
  /// Both outlive this.
  DeviceCells(device::Device& device, device::Stream& stream);
  /// Waits for the work that uses them.
  ~DeviceCells();
  DeviceCells(const DeviceCells&) = delete;
  DeviceCells& operator=(const DeviceCells&) = delete;

  device::Address address() const { return memory_.address; }
  const device::Buffer& memory() const { return memory_; }
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
/// inputs are copied into before each run, and its segments. Recordable work is submitted in its
/// first run, which is the warm-up, recorded in the next one with the same arguments, and repeated
/// from then on, until an argument changes: another arena, or an input that is elsewhere.
class DeviceRun {
 public:
  /// The place of a location on the device.
  using Resolve = std::function<device::Address(const Location&)>;

  /// Copies the constants. All arguments outlive this.
  DeviceRun(const Plan& plan, device::Device& device, device::Stream& stream, DeviceCells& cells,
            Resolve resolve);
  /// Waits for the work that reads it.
  ~DeviceRun();
  DeviceRun(const DeviceRun&) = delete;
  DeviceRun& operator=(const DeviceRun&) = delete;

  device::Address constant(std::size_t i) const { return constants_[i].address; }
  /// The slot of feed `i`, which each copy_feeds() fills from there; kNull: only the CPU reads it.
  device::Address bind(std::size_t i, const std::byte* data);
  /// The slot of feed `i`, for its owner to fill.
  device::Address slot(std::size_t i);
  /// Feed `i` is read from elsewhere on the device. `is_kept`: its memory is the same until
  /// forget_recordings() is called.
  void release(std::size_t i, bool is_kept);
  /// Whether an address is that of the slot of feed `i`.
  bool is_slot(std::size_t i, device::Address address) const {
    return feeds_[i].slot.owner != nullptr && feeds_[i].slot.address == address;
  }
  /// Called when memory that the plan uses is another one, perhaps at the address of the old.
  void forget_recordings();
  void copy_feeds();
  /// Bytes of the slots, of the constants, and of the host's mirror of the device's memory.
  std::int64_t slot_bytes() const;
  std::int64_t constant_bytes() const;
  std::int64_t mirror_bytes() const { return on_host_.mirror_bytes(); }
  /// Bytes of the device that a run of a plan takes besides its arena and blocks: constants, and
  /// slots of the feeds that are in host memory.
  static std::int64_t planned_bytes(const Plan& plan, const device::Device& device,
                                    const std::vector<bool>& is_fed_there);

  /// The call of the plan's copy `i`, whose arguments are source and destination.
  device::KernelCall copy_call(std::size_t i, opdef::KernelArgs args) const;
  /// Whether all steps of the plan are one recordable segment.
  bool is_recordable() const;
  /// The calls [begin, end) of those that run() takes, with their places and operands.
  device::Work work(std::span<const device::KernelCall> calls, std::size_t begin,
                    std::size_t end) const;
  /// Runs the plan's steps, then its copies: one call for each of them. The work of the device is
  /// only submitted. Throws: what a step on the CPU throws; what the device throws.
  void run(std::span<const device::KernelCall> calls, const opdef::StepCells& cells);
  /// Runs them one after the other: step i between events i and i + 1.
  std::vector<std::shared_ptr<device::Event>> run_timed(std::span<const device::KernelCall> calls,
                                                        const opdef::StepCells& cells);
  /// Runs step `i` until it is done; all steps are run in order, and finish() follows.
  void run_alone(std::size_t i, std::span<const device::KernelCall> calls,
                 const opdef::StepCells& cells);
  /// Runs what follows the steps: copies to the device of what the CPU has computed for later
  /// readers, and the plan's copies.
  void finish(std::span<const device::KernelCall> calls);

  /// A result of step `i`, which has been run alone.
  Tensor result(std::size_t i, const device::KernelCall& call, const PlanResult& result) const;
  /// A tensor of texts, which are on the host.
  Tensor texts(const PlanOutput& output) const;

 private:
  /// Constants and feeds that are read on the device; not those that only the CPU reads, nor texts.
  struct Readers {
    explicit Readers(const Plan& plan);
    std::vector<bool> constants;
    std::vector<bool> feeds;
  };
  struct Feed {
    const std::byte* on_host = nullptr;  ///< nullptr: not copied
    device::Buffer slot = {};
  };

  /// Calls that are recorded together.
  struct Part {
    std::size_t begin = 0;
    std::size_t end = 0;
    bool is_refused = false;            ///< the device records nothing
    std::vector<std::byte*> args = {};  ///< of the last run
    std::unique_ptr<device::Recording> recording = nullptr;
  };

  void copy_constants();
  void add_parts();
  void divide();
  bool uses_blocks(const Part& part) const;
  void copy_out(std::span<const Transfer> transfers);
  void copy_in(std::span<const Transfer> transfers);
  void enter(const Segment& segment);
  void run_step(const Segment& segment, std::size_t i, const device::KernelCall& call,
                const opdef::StepCells& cells);
  template <class Run>
  void walk(const opdef::StepCells& cells, const Run& run_segment);
  void submit(Part& part, std::span<const device::KernelCall> calls);

  const Plan& plan_;
  device::Device& device_;
  device::Stream& stream_;
  DeviceCells& cells_;
  BodyTarget target_;
  Resolve resolve_;
  HostSteps on_host_;
  std::vector<device::Buffer> constants_;
  Readers readers_;
  std::vector<Feed> feeds_;
  std::vector<Part> parts_;                                 // one per segment, then the copies
  std::vector<device::ByteCopy> copies_;                    // data of the copies' calls
  std::vector<device::CallPlace> places_;                   // of all steps, then the copies
  std::vector<device::Operand> copy_operands_;              // two for each copy
  std::vector<std::span<const device::Operand>> operands_;  // of all calls
  std::vector<std::string> names_;                          // of all calls
};

}  // namespace onnxgrad::runtime

#endif  // ONNXGRAD_RUNTIME_DEVICE_RUN_H_
