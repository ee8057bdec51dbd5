#ifndef ONNXGRAD_DEVICE_TESTING_SIMULATED_STREAM_H_
#define ONNXGRAD_DEVICE_TESTING_SIMULATED_STREAM_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "device/device.h"
#include "device/testing/simulated_memory.h"
#include "device/testing/simulated_schedule.h"
#include "device/testing/simulated_shadow.h"

namespace onnxgrad::device::testing {

/// The parts that the streams and events of a simulated device share.
struct SimulatedParts {
  explicit SimulatedParts(std::uint64_t seed) : schedule(seed) {}

  std::shared_ptr<SimulatedMemory> memory = std::make_shared<SimulatedMemory>();
  SimulatedSchedule schedule;
  static inline std::atomic<std::int64_t> num_waits = 0;
  static inline std::atomic<std::int64_t> num_copies_in = 0;
  static inline std::atomic<std::int64_t> num_copies_out = 0;
};

class SimulatedStream final : public Stream {
 public:
  static constexpr int kComputeStreams = 2;

  explicit SimulatedStream(std::shared_ptr<SimulatedParts> parts) : parts_(std::move(parts)) {}
  ~SimulatedStream() override;

  void run(const Work& work, Address cells) override;
  std::unique_ptr<Recording> record(const Work& work, Address cells) override;
  void repeat(const Recording& recording, std::int64_t times) override;
  std::shared_ptr<Event> mark(bool is_timed) override;
  void wait_for(const Event& event) override;
  void copy_in(Address to, const std::byte* from, std::int64_t bytes) override;
  void copy_in_staged(Address to, const std::byte* from, std::int64_t bytes) override;
  void copy_out(std::byte* to, Address from, std::int64_t bytes) override;
  void copy(Address to, Address from, std::int64_t bytes) override;
  void synchronize() override;

 private:
  /// A stream for copies and events, and the compute streams by number.
  static constexpr int kOwnRow = kComputeStreams;

  static std::shared_ptr<const std::vector<KeptCall>> keep(const Work& work);
  void submit(const std::shared_ptr<const std::vector<KeptCall>>& calls, Address cells);
  /// Adds a task after all others.
  void give(std::function<void()> work);
  void keep_short();

  std::shared_ptr<SimulatedParts> parts_;
  TaskOwner owner_;
  std::vector<TaskRef> last_;  // what is submitted next begins after these
};

}  // namespace onnxgrad::device::testing

#endif  // ONNXGRAD_DEVICE_TESTING_SIMULATED_STREAM_H_
