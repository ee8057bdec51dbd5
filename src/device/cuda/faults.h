#ifndef ONNXGRAD_DEVICE_CUDA_FAULTS_H_
#define ONNXGRAD_DEVICE_CUDA_FAULTS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

namespace onnxgrad::device::cuda {

/// Values that kernels refuse while they run, as indices that are out of range. A kernel notes the
/// first one in a record, in pinned memory, and in DeviceStepCells, so that guarded kernels behind
/// it do nothing; and goes on without it. The host looks for notes whenever it has waited for a
/// stream, and throws those of its work. Any thread.
class Faults {
 public:
  /// Throws the error for a value that was refused, and its position.
  using Raise = std::function<void(std::int64_t value, std::int64_t position)>;
  /// Pinned memory of so many bytes.
  using Allocate = std::function<std::shared_ptr<std::byte>(std::int64_t bytes)>;
  /// Sets 8 bytes of the card's memory to 0, and waits.
  using Clear = std::function<void(std::uint64_t address)>;

  Faults(Allocate allocate, Clear clear);

  /// The address of the record of a kernel that refuses values, for as long as the result lives.
  std::shared_ptr<const std::int64_t> add(Raise raise);
  /// Throws: what the first kernel raises that noted a value in work with these cells, or without
  /// any. Later steps are done again.
  void raise(const std::set<std::uint64_t>& cells);

 private:
  struct Record;
  Record* new_record();

  Allocate allocate_;
  Clear clear_;
  std::shared_ptr<std::byte> board_;  ///< the address of the first record that was noted
  std::mutex mutex_;
  std::vector<std::shared_ptr<std::byte>> slabs_;
  std::vector<Record*> free_;
  std::map<Record*, Raise> raises_;
};

}  // namespace onnxgrad::device::cuda

#endif  // ONNXGRAD_DEVICE_CUDA_FAULTS_H_
