#ifndef ONNXGRAD_RUNTIME_DEVICE_SERIES_H_
#define ONNXGRAD_RUNTIME_DEVICE_SERIES_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "device/device.h"
#include "onnxgrad/error.h"
#include "runtime/device_run.h"
#include "runtime/execution.h"

// Series of steps on a device that the host does not look at in between. Around the calls of the
// plan are calls of device::StepKernels: before them one takes the step's number from a table and
// one per column gathers its rows; after them one per result keeps it in a ring, and the last one
// counts the step. All steps are the same calls with the same arguments, so they can be a recording
// that the device repeats. The host writes the table before a series, and reads the rings after it.

namespace onnxgrad::runtime {

/// Batches of the host on their way to the feeds of a plan: two slots on the device, which a stream
/// of its own copies to.
class FeedSlots {
 public:
  /// `steps` is the stream of the steps. Both outlive this.
  FeedSlots(device::Device& device, device::Stream& steps);

  struct Feed {
    device::Address at = device::Address::kNull;  ///< kNull: nothing reads it
    std::int64_t bytes = 0;
  };
  /// Makes room for batches of these feeds.
  void make_room(std::span<const Feed> feeds);
  /// Copies the batch of a step to one of the slots, while the steps before it run; waits until the
  /// last copy from there is done.
  void copy_ahead(StagedBatches& batches, std::size_t step, std::span<const Feed> feeds);
  /// Brings the batch of a step to its feeds.
  void bring(std::size_t step, std::span<const Feed> feeds);
  /// Waits for the copies, after an error, and forgets it.
  void abandon();
  std::int64_t memory_bytes() const;

 private:
  struct Slot {
    std::vector<device::Buffer> feeds;
    std::shared_ptr<device::Event> is_copied;  ///< nullptr: nothing yet
    std::shared_ptr<device::Event> is_read;
  };

  device::Device& device_;
  device::Stream& steps_;
  std::array<Slot, 2> slots_;
  std::unique_ptr<device::Stream> copies_;
};

/// The series of a plan.
class DeviceSeries {
 public:
  struct Rows {
    device::Address from = device::Address::kNull;
    device::Address to = device::Address::kNull;
    std::int64_t bytes = 0;  ///< of all rows
    std::int64_t row_bytes = 0;
    bool operator==(const Rows&) const = default;
  };
  struct Scalar {
    device::Address at = device::Address::kNull;
    DataType dtype = DataType::kFloat32;
    bool operator==(const Scalar&) const = default;
  };
  /// All that is in the arguments of a step.
  struct Form {
    std::vector<Rows> gathered = {};
    device::Address order = device::Address::kNull;
    std::int64_t order_bytes = 0;
    std::int64_t batch_rows = 0;
    std::optional<Scalar> taken = {};
    std::vector<Scalar> kept = {};
    bool is_whole = false;                      ///< the calls of the plan are between the others
    std::vector<device::Address> of_plan = {};  ///< its feeds and its arena
    std::vector<device::Memory> memory = {};    ///< that the addresses are in
    bool operator==(const Form&) const = default;
  };

  /// All outlive this.
  DeviceSeries(device::Device& device, device::Stream& stream, DeviceCells& cells);

  /// Makes room for a series, and its calls unless they are those of the last one. Those of the
  /// plan are taken into whole steps; else its owner submits them between submit_begin() and
  /// submit_end().
  void set_form(Form form, std::size_t steps, const device::Work& plan_steps,
                const device::Work& plan_copies);
  /// Writes the table and the cells on the device.
  void begin(const StepSeries& series, const opdef::StepCells& cells);
  /// Submits whole steps.
  void submit(std::size_t steps);
  void submit_begin();
  /// `kept`: the results; their places may have become known only now.
  void submit_end(std::span<const Scalar> kept);
  bool is_whole() const { return form_.is_whole; }
  /// Waits for all steps and reads their results.
  void read();
  /// Result `i` of a step, from 0, when they have been read.
  double result(std::size_t step, std::size_t i) const { return read_[i * capacity_ + step]; }
  /// Waits, after an error, for copies from the host.
  void abandon();
  /// An error, which comes late, with the steps that may have caused it.
  DeviceError placed(const DeviceError& error) const;

  FeedSlots& slots();
  /// Bytes of its cells, table, rings and slots.
  std::int64_t memory_bytes() const;

 private:
  void make_room(std::size_t steps, std::size_t results);
  void add(std::string name, opdef::KernelFn fn, const void* data, std::vector<std::byte*> args,
           std::vector<device::Operand> operands);
  void add_begin();
  void add_plan(const device::Work& steps);
  void add_end(std::size_t first_of_plan);
  device::Work work(std::size_t begin, std::size_t end) const;
  device::Address table() const { return memory_.address + unit_; }
  device::Address ring(std::size_t i) const;

  device::Device& device_;
  device::Stream& stream_;
  DeviceCells& cells_;
  std::uint64_t first_step_ = 1;  ///< of the series, as sessions count them
  std::size_t num_submitted_ = 0;
  std::int64_t unit_;  ///< size of the cells, as they are laid out
  std::unique_ptr<FeedSlots> slots_;

  std::size_t capacity_ = 0;  ///< steps
  std::size_t rings_ = 0;
  device::Buffer memory_;  ///< SeriesCells; the table; the rings
  std::vector<std::byte> written_;
  std::vector<double> read_;

  Form form_;
  bool has_form_ = false;
  std::deque<std::vector<std::byte*>> args_;
  std::deque<std::vector<device::Operand>> own_operands_;
  std::vector<device::RowGather> gathers_;
  std::vector<device::ScalarCopy> scalars_;
  std::vector<device::KernelCall> calls_;
  std::vector<device::CallPlace> places_;
  std::vector<std::span<const device::Operand>> operands_;
  std::vector<std::string> names_;
  std::size_t num_begin_ = 0;
  std::size_t num_end_ = 0;
  bool has_run_ = false;
  bool can_record_ = true;
  std::unique_ptr<device::Recording> recording_;
};

}  // namespace onnxgrad::runtime

#endif  // ONNXGRAD_RUNTIME_DEVICE_SERIES_H_
